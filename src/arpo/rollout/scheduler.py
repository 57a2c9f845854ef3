"""The episodes of a batch, all at once: no episode waits for another, groups complete in any order.

Groups are returned by their index and their episodes by their number, so that what a batch holds does not
depend on who was quick. Interrupting and saving are not its business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arpo.config import RolloutConfig
from arpo.envs.base import Env
from arpo.envs.pool import EnvPool
from arpo.rollout.episode import Agent, run_episode
from arpo.types import Failure, Group, Task, Trajectory

Outcome = Trajectory | Failure
OnEpisode = Callable[[int, Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    pool: EnvPool
    agent: Agent
    settings: RolloutConfig
    seed: int

    async def run(self, batch: str, tasks: Sequence[tuple[int, Task]], on_episode: OnEpisode) -> list[Group]:
        """One group of `group_size` episodes for each (index, task); `on_episode` hears of each as it ends.

        Episodes are named batch-index-number. Cancelled, it cancels every episode and waits for their
        environments to be closed; the first error that is nobody's fault but ours ends it the same way.
        """
        places = [
            (index, task, number) for index, task in tasks for number in range(self.settings.group_size)
        ]

        async def play(index: int, task: Task, number: int) -> Outcome:
            outcome = await self._episode(task, f"{batch}-{index}-{number}")
            on_episode(index, outcome)
            return outcome

        try:
            async with asyncio.TaskGroup() as running:
                episodes = [running.create_task(play(*place)) for place in places]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        outcomes: dict[int, list[Outcome]] = {index: [] for index, _ in tasks}
        for (index, _, _), episode in zip(places, episodes, strict=True):
            outcomes[index].append(episode.result())
        return [
            _group(index, task, outcomes[index]) for index, task in sorted(tasks, key=lambda pair: pair[0])
        ]

    async def _episode(self, task: Task, episode_id: str) -> Outcome:
        async def episode(env: Env) -> Trajectory:
            return await run_episode(
                task, env, self.agent, episode_id=episode_id, settings=self.settings, seed=self.seed
            )

        return await self.pool.run(task, episode_id, episode)


def reason(failure: Failure) -> str:
    """task pool-001, step: RuntimeError: the screen went dark"""
    first_line = failure.message.partition("\n")[0]
    return f"task {failure.task_id}, {failure.where}: {first_line[:200]}"


def _group(index: int, task: Task, outcomes: Sequence[Outcome]) -> Group:
    return Group(
        index=index,
        task_id=task.id,
        trajectories=tuple(outcome for outcome in outcomes if isinstance(outcome, Trajectory)),
        failures=tuple(outcome for outcome in outcomes if isinstance(outcome, Failure)),
    )
