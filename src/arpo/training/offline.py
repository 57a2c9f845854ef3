"""The offline loop: it learns from stored episodes by RFT, DPO or KTO, and plays only to be measured.

The episodes are those of the training tasks in offline.source, a folder that `arpo collect` filled or that a
run left; what a run played to be measured is left out, and what cannot be trained on. They are read when
their update comes. A batch is one update, and who is in it is keyed by (seed, pass).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import Any

from arpo.algorithms.preference_losses import Balance, Verdict, dpo, kto, mismatched, pairs, rft, samples_for
from arpo.algorithms.rewards import is_example
from arpo.algorithms.samples import trajectory_samples
from arpo.config import Config
from arpo.errors import UserError
from arpo.evaluation.evaluate import load_sets
from arpo.learner.base import Batch, Learner, Metrics
from arpo.models.loading import load_renderer
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.reporting.display import Display
from arpo.storage.run_folder import FAILURES, PACK, TRAJECTORIES, RunFolder, RunFolderReader
from arpo.training.run import EVALUATED, Progress, Run
from arpo.types import Trajectory

OF_OTHER_TASKS = "they are of other tasks"
WITHOUT_TOKENS = "answers in them have no tokens, as those of a text server"
WITHOUT_SCREENSHOTS = f"their screenshots are not in {PACK} (pruned, or the file was cut)"
# What the learner says of the surrogate, and of tokens that the engine has sampled just now.
ONLINE_METRICS = {"loss", "ratio", "clip_fraction", "kl", "base_kl", "logprob_gap", "engine_kl"}

Unit = tuple[str, ...]  # episodes that stay together: one, or of DPO a success and a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The stored episodes of the training tasks: names by task, tasks and names in alphabetical order.

    `played` counts also those that cannot be trained on: they too were part of the budget. `failed` could not
    be carried out.
    """

    reader: RunFolderReader
    played: int
    failed: int
    successes: Mapping[str, Sequence[str]]
    failures: Mapping[str, Sequence[str]]

    @property
    def both(self) -> list[str]:
        """The tasks that were both solved and not."""
        return sorted(self.successes.keys() & self.failures.keys())

    @property
    def digest(self) -> str:
        """The same for the same episodes with the same verdicts."""
        listed = [sorted(self.successes.items()), sorted(self.failures.items())]
        return hashlib.sha256(repr(listed).encode()).hexdigest()


class OfflineTrainer(Run):
    """One run of a recipe whose train.method is rft, dpo or kto."""

    def __init__(self, config: Config, store: RunFolder, display: Display) -> None:
        self.source = open_source(config, display)
        beginning = Progress(episodes=self.source.played, failures=self.source.failed)
        super().__init__(config, store, display, beginning)

    async def train(self) -> bool:
        """Go on until every pass is done, or until asked to stop; whether it is done."""
        await self._begin()
        while self.progress.batch < self._total and not self.stopping:
            trajectories = self._take()
            with self.timing.stage("judge"):
                wanted = self._wanted(trajectories)
                verdict = await judge(
                    self.learner, self.config, trajectories, wanted, self._balance(), self._rng()
                )
            learned = await self._learn(batch_of(self.config, trajectories, verdict))
            await self._finish_update(len(trajectories), verdict, learned)
        return self.progress.batch >= self._total

    @property
    def _total(self) -> int:
        return self.config.offline.passes * self._updates_a_pass

    @cached_property
    def _updates_a_pass(self) -> int:
        return len(self._updates(0))

    def _updates(self, number: int) -> list[list[Unit]]:
        """The updates of a pass, as equal in size as may be; every pass has as many."""
        settings, source, method = self.config.offline, self.source, self.config.train.method
        rng = Random(f"offline/{self.config.run.seed}/{number}")
        units: list[Unit]
        if method == "dpo":
            units = [*pairs(source.successes, source.failures, settings.pairs, rng)]
        else:
            kinds = (source.successes,) if method == "rft" else (source.successes, source.failures)
            units = [(name,) for kind in kinds for names in kind.values() for name in names]
        rng.shuffle(units)
        count = -(-len(units) // (settings.batch // len(units[0])))
        cuts = [place * len(units) // count for place in range(count + 1)]
        return [units[start:end] for start, end in pairwise(cuts)]

    def _take(self) -> list[Trajectory]:
        """The trajectories of the next update; of DPO a success and its failure follow each other."""
        number, place = divmod(self.progress.batch, self._updates_a_pass)
        return [self.source.reader.load_trajectory(name) for name in chain(*self._updates(number)[place])]

    def _wanted(self, trajectories: Sequence[Trajectory]) -> list[bool]:
        successes = self.source.successes
        return [each.episode_id in successes.get(each.task_id, ()) for each in trajectories]

    def _balance(self) -> Balance:
        successes, failures = (
            sum(map(len, kind.values())) for kind in (self.source.successes, self.source.failures)
        )
        return Balance.of(successes, failures, self.config.offline)

    def _rng(self) -> Random:
        return Random(f"mismatched/{self.config.run.seed}/{self.progress.batch}")

    async def _finish_update(self, trajectories: int, verdict: Verdict, learned: Metrics) -> None:
        """Count, and end the update as a batch; its loss is the method's own."""
        self.progress.batch += 1
        for _ in range(trajectories):
            self.display.episode_done()
        metrics = {
            "episodes": self.progress.episodes,
            "failures": self.progress.failures,
            **{name: value for name, value in learned.items() if name not in ONLINE_METRICS},
            **verdict.metrics,
        }
        await self._end_batch(metrics, played=0, done=self.progress.batch >= self._total)

    def _show(self) -> None:
        updates = [self._updates(number) for number in range(self.config.offline.passes)]
        sizes = [sum(map(len, update)) for one_pass in updates for update in one_pass]
        self.display.begin(
            f"training, {self.config.train.method}", sum(sizes), sum(sizes[: self.progress.batch])
        )

    def _state(self) -> dict[str, Any]:
        return {"source": self.source.digest}

    def _restore(self, state: Mapping[str, Any]) -> None:
        if state["source"] != self.source.digest:
            raise UserError(
                f"offline.source: {self.source.reader.folder} holds other episodes than when this run began: "
                "give it those, or begin again in a --run.dir of its own"
            )
        passes = self.progress.batch / self._updates_a_pass
        self._refuse_less("offline.passes", passes, self.config.offline.passes)


async def judge(
    learner: Learner,
    config: Config,
    trajectories: Sequence[Trajectory],
    wanted: Sequence[bool],
    balance: Balance,
    rng: Random,
) -> Verdict:
    """The method's loss of one update.

    KTO alone asks which trajectories are `wanted` and what they weigh; `rng` chooses whose beginning a
    mismatched one gets.
    """
    settings = config.offline
    match config.train.method:
        case "rft":
            return rft(await _logps(learner, trajectories, "mean", base=False))
        case "dpo":
            return dpo(await _gains(learner, trajectories, settings.length), settings.beta)
        case "kto":
            strange = await _gains(learner, mismatched(trajectories, rng), settings.length)
            gains = await _gains(learner, trajectories, settings.length)
            return kto(gains, wanted, strange, settings.beta, balance)
    raise ValueError(f"train.method {config.train.method!r} is none that learns offline")


def batch_of(config: Config, trajectories: Sequence[Trajectory], verdict: Verdict) -> Batch:
    """The one update that follows from a verdict."""
    length = "mean" if config.train.method == "rft" else config.offline.length
    return Batch(updates=(tuple(samples_for(trajectories, verdict.coefficients, length)),))


async def _gains(learner: Learner, trajectories: Sequence[Trajectory], length: str) -> list[float]:
    """Δ of each: log π_θ − log π_ref."""
    policy, base = [await _logps(learner, trajectories, length, base=which) for which in (False, True)]
    return [ours - theirs for ours, theirs in zip(policy, base, strict=True)]


async def _logps(
    learner: Learner, trajectories: Sequence[Trajectory], length: str, *, base: bool
) -> list[float]:
    """log π of each trajectory's sampled tokens: their sum or their mean."""
    samples = [list(trajectory_samples(each, 0.0, 0.0, replayed=False)) for each in trajectories]
    logps = iter(await learner.logprobs(list(chain(*samples)), base=base))
    sums = [sum(next(logps) for _ in own) for own in samples]
    if length == "sum":
        return sums
    return [total / each.sampled_tokens for total, each in zip(sums, trajectories, strict=True)]


def open_source(config: Config, display: Display) -> Source:
    """What offline.source holds for this recipe; refused where its method has nothing to learn there."""
    if not config.offline.source:
        raise UserError(
            f"offline.source: is empty: {config.train.method} learns from stored episodes: name a folder "
            "that `arpo collect` filled, or a run's"
        )
    folder = Path(config.offline.source)
    if folder.resolve() == Path(config.run.dir).resolve():
        raise UserError(f"offline.source: {folder} is run.dir: give the run a --run.dir of its own")
    source = _read(config, RunFolderReader(folder), display)
    learned = "successes and failures of one task" if config.train.method == "dpo" else "successes"
    if not (source.both if config.train.method == "dpo" else source.successes):
        raise UserError(
            f"{folder}: no {learned} among its {source.played} episodes of the training tasks, so "
            f"{config.train.method} has nothing to learn: collect more, or screen the tasks first"
        )
    name = next(iter(source.successes.values()))[0]
    _check_fit(source.reader.load_trajectory(name), load_renderer(config.model), folder)
    return source


def _read(config: Config, reader: RunFolderReader, display: Display) -> Source:
    """Sort its episodes by task and verdict, and tell what is left out."""
    known = set(reader.episode_ids())  # it may grow meanwhile
    tasks = {task.id for task in load_sets(config)["train"]}
    threshold = config.replay.threshold
    counts: Counter[str] = Counter()
    successes: dict[str, list[str]] = {}
    failures: dict[str, list[str]] = {}
    for record in reader.read_log(TRAJECTORIES):
        name, task = record["episode_id"], record["task_id"]
        if name in known and not name.startswith(EVALUATED):
            obstacle = _obstacle(record, tasks, reader)
            counts[obstacle] += 1
            if not obstacle:
                success = is_example(record["score"], record["malformed"], threshold)
                (successes if success else failures).setdefault(task, []).append(name)
    played = counts.total() - counts[OF_OTHER_TASKS]
    if not played:
        raise UserError(
            f"{reader.folder}: none of its {counts.total()} episodes is of the tasks of tasks.train "
            f"({config.tasks.train}): collect with the same tasks"
        )
    for why in (OF_OTHER_TASKS, WITHOUT_TOKENS, WITHOUT_SCREENSHOTS):
        if counts[why]:
            display.note(f"{reader.folder}: {counts[why]} episodes are left out: {why}")
    return Source(
        reader=reader,
        played=played,
        failed=sum(
            failure["task_id"] in tasks and not failure["episode_id"].startswith(EVALUATED)
            for failure in reader.read_log(FAILURES)
        ),
        successes=_in_order(successes),
        failures=_in_order(failures),
    )


def _obstacle(record: Mapping[str, Any], tasks: Set[str], reader: RunFolderReader) -> str:
    """Why an episode cannot be trained on; empty where it can."""
    if record["task_id"] not in tasks:
        return OF_OTHER_TASKS
    if not all(turn["completion"]["token_ids"] for turn in record["turns"]):
        return WITHOUT_TOKENS
    return "" if reader.has_screenshots(record) else WITHOUT_SCREENSHOTS


def _in_order(names: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {task: sorted(names[task]) for task in sorted(names)}


def _check_fit(trajectory: Trajectory, renderer: Renderer, folder: Path) -> None:
    """Refuse episodes of another tokenizer or other picture sizes: their tokens would mean something else."""
    for turn in trajectory.turns:
        completion = turn.completion
        slots = sum(vision.image_tokens(renderer.grid(shot), renderer.settings) for shot in turn.images)
        if (
            renderer.decode(completion.token_ids) != completion.text
            or turn.context.count(renderer.image_token_id) != slots
        ):
            raise UserError(
                f"{folder}: its episodes do not fit the model (model.path, model.min_pixels, "
                "model.max_pixels): their tokens are of another one: collect with the same model settings"
            )
