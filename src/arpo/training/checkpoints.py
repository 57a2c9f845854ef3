"""Checkpoints of a run: everything that the next batch depends on. Checks of a folder that is resumed.

On resume, everything written after the newest checkpoint is removed. So an interrupted run ends with the same
result as an uninterrupted one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from arpo.algorithms.noisy_rewards import Audit
from arpo.config import Config
from arpo.config.changes import Change, add_changes, describe_refusals
from arpo.config.recipe import load_recorded
from arpo.envs.quarantine import QuarantineState
from arpo.errors import UserError
from arpo.learner.base import Learner
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.reporting.display import Display
from arpo.reporting.findings import AnswerStats
from arpo.rollout.player import Player
from arpo.storage import checkpoint
from arpo.storage.codec import COLLECTED
from arpo.storage.files import RESTORE_OR_LEAVE, check_format, damage, parse_object
from arpo.storage.from_json import from_json
from arpo.storage.run_folder import METRICS, RECIPE, TRAJECTORIES, RunFolder, RunFolderReader
from arpo.types import Group, Trajectory, Turn

STATE = "state.json"


@dataclass(slots=True, kw_only=True)
class Progress:
    """The counters of a run, stored in every checkpoint."""

    batch: int = 0
    tasks: int = 0  # in batches so far, over all epochs
    episodes: int = 0  # in batches so far
    failures: int = 0
    skipped: int = 0  # updates with an infinite or undefined loss or gradient
    untrained: int = 0  # batches without training, because engine and learner disagreed
    learner_restarts: int = 0  # after the loss of a rank, on a cluster
    groups: dict[str, int] = field(default_factory=dict)
    # By landmark (base, final) and task set: rates, and successes with episodes.
    success: dict[str, dict[str, float]] = field(default_factory=dict)
    counts: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    # By task set: the 95% interval of the change from base to final.
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    # By landmark and kind of task, over all task sets but the overall one: successes with episodes.
    kinds: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    # By task set: tasks without a verdict before or after training.
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Answers of the first and of the newest phase, and the kinds of findings that were shown.
    first_answers: AnswerStats | None = None
    newest_answers: AnswerStats | None = None
    shown_findings: tuple[str, ...] = ()
    seconds: float = 0.0
    audit: Audit = field(default_factory=Audit)  # of a judge (reward.judge)


class Checkpoints:
    """The checkpoints in a run folder. `newest` is None for a new run.

    Raises UserError if no intact one is left, or if a file of the run does not match the newest one.
    """

    def __init__(self, store: RunFolder, keep: int, display: Display) -> None:
        self._store, self._keep = store, keep
        self._folder = store.folder / checkpoint.CHECKPOINTS
        self.newest, damaged = checkpoint.latest(self._folder)
        for line in damaged:
            display.note(line)
        if self.newest is not None:
            check_format(self.newest.path / checkpoint.MANIFEST)
            store.check_sizes(_read_state(self.newest.path / STATE, lambda _: None).offsets)
        elif damaged or any(line.get("step") for line in store.read_log(METRICS)):
            # A new start would remove all files of the run.
            raise UserError(
                f"{self._folder}: no intact checkpoint is left. Restore one, or remove the run folder to "
                "start again"
            )

    @property
    def learner(self) -> Path | None:
        """The learner's folder in the newest checkpoint."""
        return None if self.newest is None else self.newest.path / checkpoint.LEARNER

    @property
    def batch(self) -> int | None:
        """The batch of the newest checkpoint."""
        return None if self.newest is None else self.newest.step

    def needed_episodes(self) -> set[str]:
        """Ids of the stored episodes that the checkpoints on disk name."""
        needed: set[str] = set()
        for path in self._folder.glob(f"step-*/{STATE}"):
            with suppress(UserError):  # a resume skips a damaged checkpoint
                state = _read_state(path, needed.add)
                needed.update(episode for episodes in state.replay.values() for episode in episodes)
        return needed

    def save(
        self, batch: int, learner: Learner, state: Mapping[str, Any], offsets: Callable[[], Mapping[str, int]]
    ) -> None:
        """Write a checkpoint. It replaces one of the same batch. Blocks its thread.

        `offsets` waits until the episodes of the state are on disk, and returns the sizes of the files.
        """
        text = json.dumps({**state, "offsets": offsets()})

        def write(folder: Path) -> None:
            learner.save(folder / checkpoint.LEARNER)
            (folder / STATE).write_text(text + "\n", encoding="utf-8")

        self.newest = checkpoint.save(self._folder, batch, write, self._keep)

    def restore(self, learner: Learner, load: Callable[[str], Trajectory]) -> State | None:
        """Load the learner; returns the rest of the state, None for a new run.

        Everything written after the checkpoint is removed. `load` returns a stored trajectory by its
        episode id.
        """
        if self.newest is None:
            self._store.rewind({})
            return None
        state = _read_state(self.newest.path / STATE, load)
        learner.load(self.newest.path / checkpoint.LEARNER)
        self._store.rewind(state.offsets)
        return state

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Add to an OSError of the block, for example a full disk, where the run will resume."""
        try:
            yield
        except OSError as error:
            if self.newest is not None:
                error.add_note(f"it resumes after batch {self.newest.step}")
            raise


def _read_state(path: Path, load: Callable[[str], object]) -> State:
    """`load` is called with the id of each episode of a group."""
    value = parse_object(path.read_bytes(), path, RESTORE_OR_LEAVE)
    with damage(path, RESTORE_OR_LEAVE):
        return from_json(value, State, {Trajectory: lambda name: load(from_json(name, str))})


def group_to_json(group: Group) -> dict[str, Any]:
    """The group with the ids of its trajectories."""
    whole = asdict(replace(group, trajectories=()))
    return whole | {"trajectories": [trajectory.episode_id for trajectory in group.trajectories]}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedBatch:
    """The unwritten results of a batch: its metrics wait for those of the evaluation.

    `groups` are for the callback, `played` is the number of episodes, `seconds` are durations by stage.
    """

    metrics: Mapping[str, float]
    groups: tuple[Group, ...]
    played: int
    seconds: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(replace(self, groups=())) | {"groups": [group_to_json(group) for group in self.groups]}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """Groups of asynchronous training that no batch has taken. `unplayed` are numbers and task ids."""

    started: int
    unplayed: tuple[tuple[int, str], ...]
    finished: tuple[Group, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A checkpoint without the learner. The parts of other loops and orders of tasks are empty."""

    offsets: dict[str, int]
    progress: Progress
    pool: QuarantineState
    unfinished: UnfinishedBatch | None = None
    replay: dict[str, tuple[str, ...]] = field(default_factory=dict)  # episode ids
    orders: tuple[tuple[int, tuple[str, ...]], ...] = ()  # of a plug-in: an epoch and its task ids
    stream: StreamState | None = None
    source: str = ""  # digest of the offline episodes


def load_checked(
    reader: RunFolderReader, episode_id: str, player: Player, *, outline: bool = False
) -> Trajectory:
    """Load an episode. Raises UserError if the player's model cannot have sampled its tokens.

    `outline`: without decoding. The screenshots of the result have a size, but no pixels.
    """
    trajectory = reader.load_outline(episode_id) if outline else reader.load_trajectory(episode_id)
    rows = player.model.config.text_config.vocab_size
    for turn in trajectory.turns:
        tokens = (*turn.context, *turn.completion.token_ids)
        if not 0 <= min(tokens) <= max(tokens) < rows or not images_fit(turn, player.token_renderer):
            raise UserError(
                f"{reader.folder / TRAJECTORIES}: damaged, the tokens of episode {trajectory.episode_id!r} "
                f"do not fit the model and the screenshots: {RESTORE_OR_LEAVE}"
            )
    return trajectory


def images_fit(turn: Turn, renderer: Renderer) -> bool:
    """Whether the prompt has as many image tokens as its screenshots need."""
    slots = sum(vision.image_tokens(renderer.grid(shot), renderer.settings) for shot in turn.images)
    return turn.context.count(renderer.image_token_id) == slots


def check_folder(store: RunFolder, config: Config) -> Config | None:
    """The recipe of the run in the folder, None for a new run.

    Raises UserError if the folder has something else, or a run that cannot resume with this recipe.
    """
    if any(name.startswith(f"{COLLECTED}-") for name in store.episode_ids()):
        raise UserError(
            f"{store.folder}: holds collected episodes. Choose another --run.dir. To train on the "
            "episodes, name the folder as --offline.source"
        )
    resumed = (store.folder / checkpoint.CHECKPOINTS).is_dir()
    return check_recipe(store, config) if resumed else None


def note_changes(
    store: RunFolder, display: Display, found: Sequence[Change], batch: int, *, resumed: bool
) -> None:
    """Record and show the settings that change with this batch, the next one."""
    store.write_changes(add_changes(store.read_changes() if resumed else (), found, batch))
    for change in found:
        display.note(f"changed setting: {change}")


def check_recipe(store: RunFolder, config: Config, ignored: tuple[str, ...] = ()) -> Config | None:
    """The recipe in the folder, None without one.

    Raises UserError if a setting differs that may not change. `ignored`: prefixes of keys that may.
    """
    path = store.folder / RECIPE
    if not path.is_file():
        return None
    recorded, unknown = load_recorded(path)
    if unknown:
        raise UserError(
            f"{path}: an earlier version wrote this run, with settings that this version does not have: "
            f"{', '.join(unknown)}. Resume it with that version, or choose another --run.dir"
        )
    if kept := describe_refusals(recorded, config, ignored):
        raise UserError(
            f"{path}: a resumed run must keep {kept}. For other values choose another --run.dir, or remove "
            "the folder to start again"
        )
    return recorded
