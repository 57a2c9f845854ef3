"""Seeds (replay.seeds): successes, for example of a teacher, that a new run begins with.

Replay puts them into groups, and loss.teacher adds their likelihood to each update.

They are copied into the run folder. So a resumed run, pruning and the viewer need no other folder. The copies
have no log-probabilities and no policy versions: the policy of this run did not sample their tokens. `losses`
says what takes their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from arpo.config import Config
from arpo.errors import UserError
from arpo.reporting.display import Display, count_noun
from arpo.storage.codec import SEED
from arpo.storage.run_folder import RunFolderReader
from arpo.training.offline import Source, open_folder, read_source
from arpo.training.run import Run
from arpo.types import Trajectory


def open_seeds(config: Config, display: Display) -> Source:
    """The episodes of replay.seeds. Raises UserError if none is a success of a training task."""
    folder = Path(config.replay.seeds)
    if folder.resolve() == Path(config.run.dir).resolve():
        raise UserError(f"replay.seeds: {folder} is run.dir. Choose another --run.dir")
    reader = open_folder("replay.seeds", folder)
    reader.close_after_last_use()
    source = read_source(config, reader, display)
    if not source.successes:
        raise UserError(
            f"replay.seeds: {folder}: no usable success among its {source.played} episodes of the training "
            "tasks. Collect with the settings of this run"
        )
    return source


def copy_seeds(run: Run, source: Source) -> Iterator[Trajectory]:
    """Store at most replay.capacity successes of each training task in the run folder, and yield them."""
    config, seeds = run.config, 0
    for names in source.successes.values():
        for name in names[: config.replay.capacity]:
            seed = _as_seed(source.reader.load_trajectory(name))
            run.store.add_trajectory(seed)
            yield seed
            seeds += 1
    counts = f"{count_noun(seeds, 'seed')} of {count_noun(len(source.successes), 'task')}"
    use = "replay starts with" if config.replay.enabled else "loss.teacher uses"
    run.display.note(f"{use} {counts}, from {source.reader.folder}")


def copied_seeds(store: RunFolderReader) -> list[str]:
    """The episode ids of all seeds in a run folder, also of those that replay has dropped."""
    return sorted(name for name in store.episode_ids() if name.startswith(f"{SEED}-"))


def draw_seeds(names: Sequence[str], count: int, seed: int, batch: int, update: int) -> list[str]:
    """`count` different ones at random for one update, or all if there are fewer.

    A resumed run draws the same.
    """
    return Random(f"teacher/{seed}/{batch}/{update}").sample(names, min(count, len(names)))


def _as_seed(trajectory: Trajectory) -> Trajectory:
    turns = tuple(
        replace(turn, completion=replace(turn.completion, logprobs=(), versions=()))
        for turn in trajectory.turns
    )
    return replace(trajectory, episode_id=f"{SEED}-{trajectory.episode_id}", turns=turns)
