"""The offline training loop: learns from stored episodes: RFT, SFT, DPO, KTO. It plays only to evaluate.

The episodes come from offline.source, a folder of `arpo collect` or of a run. Evaluation episodes, seeds of
replay, episodes of other tasks and episodes that cannot be trained on are left out. An episode is read from
disk when its update comes. A batch is one update. (seed, pass) decides its episodes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, dropwhile, pairwise
from pathlib import Path
from random import Random
from typing import Any

from arpo.algorithms.preference_losses import TrajectoryLoss
from arpo.algorithms.rewards import is_example
from arpo.algorithms.schedules import decay
from arpo.config import Config
from arpo.config.recipe import changed, format_value, load_recorded, value
from arpo.errors import UserError, closed_on_error
from arpo.learner.base import Metrics
from arpo.models.loading import load_renderer
from arpo.prompts.rendering import Renderer
from arpo.reporting.display import Display
from arpo.rollout.agent import begin
from arpo.rollout.episode import repeats_prompts
from arpo.rollout.player import open_dialect, open_template
from arpo.storage.codec import StoredEpisode, is_training_episode
from arpo.storage.run_folder import NO_SCREENSHOTS, RECIPE, TRAJECTORIES, RunFolder, RunFolderReader
from arpo.tasks.sets import load_sets
from arpo.tasks.sources import TaskIndex
from arpo.training.checkpoints import Progress, State, images_fit, load_checked
from arpo.training.offline_methods import OfflineMethod, Unit, open_method
from arpo.training.run import Run
from arpo.types import Trajectory

OTHER_TASKS = "they belong to other tasks"
NO_TOKENS = "they have answers without tokens, like those of a chat server"
OTHER_PROMPTS = "their prompts or tokens are not those of this run (another text of the task, for example)"
# Settings that prompts depend on. Not model.path: another model may have the same prompts and tokens.
OF_PROMPTS = (
    "model.dialect",
    "model.prompt",
    "model.min_pixels",
    "model.max_pixels",
    "rollout.max_images",
    "rollout.history",
    "rollout.max_context_tokens",
    "rollout.max_answer_tokens",
)
# Metrics of the online surrogate and of freshly sampled tokens: meaningless for stored episodes.
ONLINE_METRICS = {
    "loss",
    "ratio",
    "clip_fraction",
    "capped_fraction",
    "kl",
    "base_kl",
    "logprob_gap",
    "engine_kl",
    "engine_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The stored episodes of the training tasks: episode ids by task, both sorted.

    `played` is the episode budget: it includes episodes that cannot be trained on. `failed` is the number of
    episodes that could not be played.
    """

    reader: RunFolderReader
    played: int
    failed: int
    successes: Mapping[str, Sequence[str]]
    failures: Mapping[str, Sequence[str]]

    @property
    def digest(self) -> str:
        """A hash of the episodes and their outcomes."""
        listed = [sorted(self.successes.items()), sorted(self.failures.items())]
        return hashlib.sha256(repr(listed).encode()).hexdigest()


class OfflineTrainer:
    """The offline loop, for train.method rft, sft, dpo or kto."""

    def __init__(self, config: Config, store: RunFolder, display: Display) -> None:
        self.config = config
        self.source, self.method = open_source(config, display)
        progress = Progress(episodes=self.source.played, failures=self.source.failed)
        self.run = Run(config, store, display, progress, self)
        with closed_on_error(self.run):
            if self.run.restored is not None:
                self._restore(self.run.restored)

    async def train(self) -> bool:
        """Train until all passes are done or the run is asked to stop. Returns True if all are done."""
        run = self.run
        async with run.begun():
            while not self.done and not run.stopping:
                trajectories = self._take()
                with run.timing.stage("judge"):
                    loss = self.method.loss(
                        run.learner, trajectories, self._desirable(trajectories), self._rng()
                    )
                batch = replace(self.method.batch(trajectories, loss), lr_scales=(self._lr_scale(),))
                async with run.learning():
                    learned = await run.work(partial(run.learner.train, batch))
                await self._end_update(len(trajectories), loss, learned)
        return self.done and run.unfinished is None

    @property
    def done(self) -> bool:
        return self.run.progress.batch >= self._total_updates

    @property
    def _total_updates(self) -> int:
        return self.config.offline.passes * self._updates_per_pass

    def _lr_scale(self) -> float:
        optim = self.config.optim
        return decay(
            optim.schedule,
            done=self.run.progress.batch,
            total=self._total_updates,
            warmup=optim.warmup_updates,
        )

    @cached_property
    def _updates_per_pass(self) -> int:
        return len(self._updates(0))

    def _updates(self, number: int) -> list[list[Unit]]:
        """The updates of a pass, of nearly equal size. Every pass has the same number of updates."""
        rng = Random(f"offline/{self.config.run.seed}/{number}")
        units = self.method.units(self.source.successes, self.source.failures, rng)
        rng.shuffle(units)
        count = -(-len(units) // (self.config.offline.batch // len(units[0])))
        cuts = [index * len(units) // count for index in range(count + 1)]
        return [units[start:end] for start, end in pairwise(cuts)]

    def _take(self) -> list[Trajectory]:
        """The trajectories of the next update. For DPO, each success is followed by its failure."""
        number, index = divmod(self.run.progress.batch, self._updates_per_pass)
        names = chain(*self._updates(number)[index])
        return [load_checked(self.source.reader, name, self.run.player) for name in names]

    def _desirable(self, trajectories: Sequence[Trajectory]) -> list[bool]:
        successes = self.source.successes
        return [each.episode_id in successes.get(each.task_id, ()) for each in trajectories]

    def _rng(self) -> Random:
        return Random(f"mismatched/{self.config.run.seed}/{self.run.progress.batch}")

    async def _end_update(self, trajectories: int, loss: TrajectoryLoss, learned: Metrics) -> None:
        progress = self.run.progress
        progress.batch += 1
        for _ in range(trajectories):
            self.run.display.episode_done()
        metrics = {
            "episodes": progress.episodes,
            "failures": progress.failures,
            **{name: value for name, value in learned.items() if name not in ONLINE_METRICS},
            **loss.metrics,
        }
        await self.run.end_batch(metrics, (), played=0)

    def show(self) -> None:
        updates = [self._updates(number) for number in range(self.config.offline.passes)]
        sizes = [sum(map(len, update)) for one_pass in updates for update in one_pass]
        done = sum(sizes[: self.run.progress.batch])
        self.run.display.begin(f"training, {self.config.train.method}", sum(sizes), done)

    def state(self) -> dict[str, Any]:
        return {"source": self.source.digest}

    def saved(self) -> None: ...

    def _restore(self, state: State) -> None:
        if state.source != self.source.digest:
            raise UserError(
                f"offline.source: {self.source.reader.folder} holds other episodes than when this run "
                "started. Restore them, or start again in another --run.dir"
            )
        passes = self.run.progress.batch / self._updates_per_pass
        self.run.refuse_less("offline.passes", passes, self.config.offline.passes)


def open_source(config: Config, display: Display) -> tuple[Source, OfflineMethod]:
    """The episodes of offline.source and the method. Raises UserError if it has nothing to learn from."""
    if not config.offline.source:
        raise UserError(
            f"offline.source: is empty, and {config.train.method} learns from stored episodes. Name a "
            "folder of `arpo collect` or of a run"
        )
    folder = Path(config.offline.source)
    if folder.resolve() == Path(config.run.dir).resolve():
        raise UserError(f"offline.source: {folder} is run.dir. Choose another --run.dir")
    source = read_source(config, open_folder("offline.source", folder), display)
    successes, failures = (sum(map(len, kind.values())) for kind in (source.successes, source.failures))
    method = open_method(config.train.method, successes, failures)
    if not method.units(source.successes, source.failures, Random(0)):
        raise UserError(
            f"{folder}: no {method.needs} among its {source.played} episodes of the training tasks, so "
            f"{config.train.method} has nothing to learn. Collect more episodes, or screen the tasks first"
        )
    return source, method


def open_folder(key: str, folder: Path) -> RunFolderReader:
    """Raises UserError if the folder of this setting does not exist or is none of a run."""
    if not folder.is_dir():
        raise UserError(f"{key}: {folder}: not found. Name a folder of `arpo collect` or of a run")
    return RunFolderReader(folder)


def read_source(config: Config, reader: RunFolderReader, display: Display) -> Source:
    """Sort the episodes by task and outcome, and report those left out.

    Raises UserError if this run has other prompts, because of its settings or for all episodes.
    """
    tasks = TaskIndex(load_sets(config)["train"])
    counts: Counter[str] = Counter()
    found: dict[str, list[StoredEpisode]] = {}
    for episode in reader.episodes():
        if is_training_episode(episode.episode_id):
            obstacle = _obstacle(episode, tasks, reader)
            counts[obstacle] += 1
            if not obstacle:
                found.setdefault(episode.task_id, []).append(episode)
    if reader.ends_within_an_episode:
        display.note(f"{reader.folder}: the last line of {TRAJECTORIES} is incomplete: 1 episode is left out")
    played = counts.total() - counts[OTHER_TASKS]
    if not counts:
        raise UserError(f"{reader.folder}: has no episodes. Collect some, or name another folder")
    if not played:
        raise UserError(
            f"{reader.folder}: none of its {counts.total()} episodes belongs to tasks.train "
            f"({config.tasks.train}). Collect with the same tasks"
        )
    if not found:
        why = ", ".join(f"{counts[each]}: {each}" for each in (NO_TOKENS, NO_SCREENSHOTS) if counts[each])
        raise UserError(
            f"{reader.folder}: no episode of the training tasks can be used ({why}). Restore the files, or "
            "collect again"
        )
    usable = _with_same_prompts(config, found, tasks, reader)
    counts[OTHER_PROMPTS] = counts[""] - len(usable)
    for why in (OTHER_TASKS, NO_TOKENS, NO_SCREENSHOTS, OTHER_PROMPTS):
        if counts[why]:
            display.note(f"{reader.folder}: {counts[why]} episodes are left out: {why}")
    successes: dict[str, list[str]] = {}
    failures: dict[str, list[str]] = {}
    for episode in usable:
        known = episode.score if episode.evaluated is None else min(episode.score, episode.evaluated)
        success = is_example(known, episode.malformed, config.replay.threshold)  # for judge and evaluator
        outcomes = successes if success else failures
        outcomes.setdefault(episode.task_id, []).append(episode.episode_id)
    return Source(
        reader=reader,
        played=played,
        failed=sum(
            failure.task_id in tasks and is_training_episode(failure.episode_id)
            for failure in reader.failures()
        ),
        successes=_in_order(successes),
        failures=_in_order(failures),
    )


def _with_same_prompts(
    config: Config, found: Mapping[str, Sequence[StoredEpisode]], tasks: TaskIndex, reader: RunFolderReader
) -> list[StoredEpisode]:
    """The episodes, given by task, whose prompts and tokens are those of this run.

    One recipe has collected them all. So the shorter episodes of a task fit if a longer one does.
    """
    differs = _open_check(config, tasks, reader)
    usable: list[StoredEpisode] = []
    for episodes in found.values():
        usable += dropwhile(differs, sorted(episodes, key=lambda one: one.steps, reverse=True))
    total = sum(map(len, found.values()))
    others = _other_settings(reader.folder / RECIPE, config) if len(usable) < total else ""
    if others or not usable:
        remedy = f"Its recipe has {others}: set the same" if others else "Check model.path and the task texts"
        raise UserError(
            f"{reader.folder}: {total - len(usable)} of its {total} episodes have other prompts or tokens "
            f"than this run. {remedy}, or collect again"
        )
    return usable


def _open_check(config: Config, tasks: TaskIndex, reader: RunFolderReader) -> Callable[[StoredEpisode], bool]:
    """A function that tells whether an episode has other prompts or tokens than this run would give it.

    An agent program writes prompts of its own, which are not compared.
    """
    renderer, dialect, template = load_renderer(config.model), open_dialect(config), open_template(config)

    def differs(episode: StoredEpisode) -> bool:
        outline = reader.load_outline(episode.episode_id)
        instruction = outline.instruction or tasks[outline.task_id].instruction
        begun = begin(template, dialect, instruction, config.rollout)
        same = bool(config.rollout.agent) or repeats_prompts(outline, begun, renderer, config.rollout)
        return not (same and _answers_fit(outline, renderer))

    return differs


def _other_settings(recipe: Path, config: Config) -> str:
    """The settings of prompts in a recipe that differ from those of this run; "" without a recipe."""
    if not recipe.is_file():
        return ""
    recorded, _ = load_recorded(recipe)
    others = [name for name in changed(recorded, config) if name in OF_PROMPTS]
    return ", ".join(f"{name} = {format_value(value(recorded, name))}" for name in others)


def _obstacle(episode: StoredEpisode, tasks: TaskIndex, reader: RunFolderReader) -> str:
    """Why an episode cannot be trained on. Empty if it can."""
    if episode.task_id not in tasks:
        return OTHER_TASKS
    if not episode.has_tokens:
        return NO_TOKENS
    return "" if reader.has_screenshots(episode) else NO_SCREENSHOTS


def _in_order(names: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {task: sorted(names[task]) for task in sorted(names)}


def _answers_fit(trajectory: Trajectory, renderer: Renderer) -> bool:
    """Whether tokenizer and image size are those of the renderer: otherwise tokens have another meaning."""
    return all(
        renderer.decode(turn.completion.token_ids) == turn.completion.text and images_fit(turn, renderer)
        for turn in trajectory.turns
    )
