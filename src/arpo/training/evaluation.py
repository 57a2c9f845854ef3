"""Evaluations of a run: before training, between batches, and after training."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence

from arpo.config import Config
from arpo.config.task_set_names import OVERALL
from arpo.evaluation.evaluate import evaluate_sets
from arpo.evaluation.finished_episodes import FinishedEpisodes, evaluation_key
from arpo.evaluation.scoring import AllFailed, Score, by_kind, change_intervals, over_same_tasks, read_scores
from arpo.reporting.display import count_noun
from arpo.rollout.scheduler import Scheduler
from arpo.storage.codec import EVALUATED
from arpo.storage.run_folder import EVALUATIONS
from arpo.tasks.sets import evaluated
from arpo.tasks.sources import task_kinds
from arpo.training.reporting import Records
from arpo.types import Group, Task, Trajectory

EVALUATING = "evaluating"  # folder of the finished episodes of an evaluation in progress


class EvaluationStopped(Exception):
    """The run was asked to stop. The finished episodes of the evaluation are stored."""


class Evaluations:
    """Plays the task sets of a run, and records the scores."""

    def __init__(
        self, config: Config, sets: Mapping[str, Sequence[Task]], scheduler: Scheduler, records: Records
    ) -> None:
        self._config, self._sets, self._scheduler, self._records = config, sets, scheduler, records
        self._folder = records.store.folder / EVALUATING
        self._playing: asyncio.Task[dict[str, list[Group]]] | None = None
        self._shown_first = False

    @property
    def running(self) -> bool:
        return self._playing is not None

    def stop(self) -> None:
        """End the evaluation with EvaluationStopped. Call it in the event loop."""
        if self._playing is not None:
            self._playing.cancel()

    async def measure(self, landmark: str, model: object) -> dict[str, float]:
        """Evaluate the task sets and store one episode per task. Returns metrics: the rate of each set.

        `landmark` is "base" (before training), "final" (after training) or "" (between). The first two also
        play the overall set, and enter the summary. `model` is the engine's module, or its published folder.
        """
        records, batch = self._records, self._records.progress.batch
        due = {name: tasks for name, tasks in self._sets.items() if landmark or name != OVERALL}
        sets = evaluated(due, self._config.eval)
        with records.timing.stage("evaluate"):
            try:
                groups = await self._play(sets, model)
            except AllFailed as error:
                for failure in error.failures:
                    records.store.add_failure(failure)
                raise
        answered: list[tuple[Task, Trajectory]] = []
        for name, played in groups.items():
            shown = [(sets[name][one.index], one.trajectories[0]) for one in played if one.trajectories]
            answered += shown
            records.trackers.log_episodes(batch, name, shown)
            for group in played:
                records.store_group(group, episodes=1)
        records.check_answers(f"{EVALUATED}{batch}", answered)
        scores = {name: Score.of(played) for name, played in groups.items()}
        records.store.log_evaluation(
            {
                "step": batch,
                "episodes": records.progress.episodes,
                "landmark": landmark,
                "sets": {name: score.by_task for name, score in scores.items()},
                "failures": {name: score.failures for name, score in scores.items()},
                "without_verdict": {name: score.without_verdict for name, score in scores.items()},
            }
        )
        if landmark:
            self._set_landmark(landmark, scores)
        return {f"eval_{name}": score.rate for name, score in scores.items()}

    async def _play(self, sets: Mapping[str, Sequence[Task]], model: object) -> dict[str, list[Group]]:
        """Play the episodes that are missing in the folder of finished ones."""
        name = f"{EVALUATED}{self._records.progress.batch}"
        kept = FinishedEpisodes(self._folder, evaluation_key(self._config, sets, model), "--run.dir")
        playing = evaluate_sets(
            self._scheduler, self._config, sets, name, self._records.display, kept, self._show_first
        )
        self._playing = asyncio.create_task(playing)
        try:
            return await self._playing
        except asyncio.CancelledError:
            if (own := asyncio.current_task()) is not None and own.cancelling():
                raise
            raise EvaluationStopped from None
        finally:
            self._playing = None
            kept.close()

    def _show_first(self, task: Task, trajectory: Trajectory) -> None:
        """Show the first episode of a run as soon as it ends: something to see at once."""
        if self._records.progress.success or self._shown_first:
            return
        self._shown_first = True
        result = "solved" if trajectory.score >= self._config.replay.threshold else "failed"
        steps = count_noun(len(trajectory.turns), "step")
        self._records.display.mention(
            f"first episode, before training: “{task.instruction}”: {result} after {steps}"
        )

    def _set_landmark(self, landmark: str, scores: Mapping[str, Score]) -> None:
        """Set the rates of the summary. With "final", those of "base" and "final" are over the same tasks."""
        progress, landmarks = self._records.progress, {landmark: scores}
        if landmark == "final":
            base = next(one for one in self._records.store.read_log(EVALUATIONS) if one["landmark"] == "base")
            before, after = over_same_tasks(read_scores(base), scores)
            landmarks = {"base": before, "final": after}
            progress.left_out = {name: tuple(sorted(score.left_out)) for name, score in after.items()}
            progress.intervals = change_intervals(before, after)
            kinds = {
                task.id: task_kinds(task) for name in after if name != OVERALL for task in self._sets[name]
            }
            progress.kinds = {
                when: by_kind((score for name, score in scores.items() if name != OVERALL), kinds.__getitem__)
                for when, scores in landmarks.items()
            }
        for name, found in landmarks.items():
            progress.success[name] = {each: score.rate for each, score in found.items()}
            progress.counts[name] = {each: (score.successes, score.episodes) for each, score in found.items()}

    def forget_finished(self) -> None:
        """Delete the finished episodes of an interrupted evaluation: a checkpoint has its results."""
        shutil.rmtree(self._folder, ignore_errors=True)
