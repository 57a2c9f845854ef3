"""A judge in training (reward.judge): its verdict is a part of the score of every training episode.

Evaluations keep the scores of the evaluators. Votes are stored in judgements.jsonl of the run: a resumed run
that plays the same episode again asks for none of them twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from arpo.config import Config
from arpo.config.settings import JUDGE_SCREENSHOTS, JUDGE_VOTES
from arpo.errors import Outage
from arpo.evaluation.judge import NO_ANSWER, Judge
from arpo.evaluation.scoring import OF_JUDGE
from arpo.prompts.judge_question import Question, decide
from arpo.reporting.display import Display
from arpo.storage.judgements import VoteLog
from arpo.tasks.sources import TaskIndex
from arpo.types import Failure, Group, Trajectory


class JudgedScores:
    """Use as an async context manager around the rollouts of a run. Does nothing if reward.judge is 0."""

    def __init__(self, config: Config, folder: Path, tasks: TaskIndex, display: Display) -> None:
        self._config, self._folder, self._tasks, self._display = config, folder, tasks, display
        self._weight = config.reward.judge
        self._requests = asyncio.Semaphore(config.env.parallel)
        self._batch = config.train.tasks_per_batch * config.rollout.group_size
        self._unanswered = 0  # episodes since the last answer
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> JudgedScores:
        if self._weight:
            log = VoteLog(self._folder)
            self._opened.callback(log.close)
            self._judge = Judge(self._config.server, log)
            self._opened.push_async_callback(self._judge.close)
            try:
                for warning in await self._judge.start():
                    self._display.note(warning)
            except BaseException:
                await self._opened.aclose()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def judge(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with the scores (1 - w) evaluator + w verdict. Without a verdict: a Failure.

        The score of a task without an evaluator is the verdict.

        Raises Outage if the judge has answered no question about as many episodes in a row as a batch has.
        """
        if not self._weight:
            return list(groups)
        episodes = [one for group in groups for one in group.trajectories]
        try:
            async with asyncio.TaskGroup() as running:
                tasks = {one.episode_id: running.create_task(self._outcome(one)) for one in episodes}
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        outcomes = {name: task.result() for name, task in tasks.items()}
        failures = [one for one in outcomes.values() if isinstance(one, Failure)]
        silent = [one for one in failures if one.message.startswith(NO_ANSWER)]
        self._unanswered = self._unanswered + len(silent) if len(silent) == len(outcomes) else 0
        if self._unanswered >= self._batch:
            raise Outage(f"the judge {self._config.server.model} answers no question: {silent[0].message}")
        return [_judged(group, [outcomes[one.episode_id] for one in group.trajectories]) for group in groups]

    async def _outcome(self, episode: Trajectory) -> Trajectory | Failure:
        task = self._tasks[episode.task_id]
        question = Question(
            instruction=episode.instruction or task.instruction,
            episode=episode,
            screenshots=JUDGE_SCREENSHOTS,
        )
        async with self._requests:
            votes = await self._judge.ask(question, JUDGE_VOTES)
        verdict = decide([vote.success for vote in votes])
        if verdict is not None and task.has_evaluator:
            score = (1 - self._weight) * episode.score + self._weight * verdict
            return replace(episode, score=score, evaluated=episode.score)
        if verdict is not None:
            return replace(episode, score=float(verdict))
        reasons = [vote.reason for vote in votes if vote.success is None] or ["its votes have no majority"]
        return Failure(
            episode_id=episode.episode_id,
            task_id=episode.task_id,
            kind="NoVerdict",
            where=OF_JUDGE,
            message=reasons[0],
            attempts=1,
        )


def _judged(group: Group, outcomes: Sequence[Trajectory | Failure]) -> Group:
    failed = tuple(one for one in outcomes if isinstance(one, Failure))
    scored = tuple(one for one in outcomes if isinstance(one, Trajectory))
    return replace(group, trajectories=scored, failures=(*group.failures, *failed))
