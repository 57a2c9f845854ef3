"""Plays the episodes of a batch concurrently. No episode waits for another.

Groups are returned by index and their episodes by number. So the content of a batch does not depend on which
episode finished first.

A small model on a CPU plays in several processes, one per core: copies of this process, made for each batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType

from arpo.config import RolloutConfig
from arpo.envs.base import Env
from arpo.envs.pool import EnvPool
from arpo.rollout.activity import Activity
from arpo.rollout.agent import Agent, OnScreenshot, OnTurn
from arpo.rollout.copies import Copies
from arpo.rollout.episode import run_episode
from arpo.types import Failure, Group, Task, Trajectory

Outcome = Trajectory | Failure
OnEpisode = Callable[[int, Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    pool: EnvPool
    agent: Agent
    settings: RolloutConfig
    seed: int
    activity: Activity = field(default_factory=Activity)  # where the time of the environments goes
    copies: Copies | None = None
    parallel: int | None = None  # episodes at a time in this process; None: env.parallel

    async def run(
        self,
        batch: str,
        tasks: Sequence[tuple[int, Task]],
        on_episode: OnEpisode,
        finished: Mapping[str, Trajectory] = MappingProxyType({}),
        on_turn: OnTurn = lambda turn: None,
        on_screenshot: OnScreenshot = lambda screenshot, previous: None,
    ) -> list[Group]:
        """`play`, with parts of the tasks in `copies`. These do not call `on_turn`."""
        parts = [tasks]
        if self.copies is not None:
            parts = self.copies.split(tasks, self.settings.group_size, self.pool.parallel)
        if self.copies is None or len(parts) == 1:
            return await self.play(batch, tasks, on_episode, finished, on_turn, on_screenshot)
        sharing = replace(self, parallel=max(1, self.pool.parallel // len(parts)))
        own, *others = parts
        try:
            async with self.copies.playing(
                sharing, batch, others, on_episode, finished, on_screenshot
            ) as received:
                groups = await sharing.play(batch, own, on_episode, finished, on_turn, on_screenshot)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finished = {**finished, **received}
        groups += await self.play(batch, list(chain(*others)), on_episode, finished, on_turn, on_screenshot)
        return sorted(groups, key=lambda group: group.index)

    async def play(
        self,
        batch: str,
        tasks: Sequence[tuple[int, Task]],
        on_episode: OnEpisode,
        finished: Mapping[str, Trajectory] = MappingProxyType({}),
        on_turn: OnTurn = lambda turn: None,
        on_screenshot: OnScreenshot = lambda screenshot, previous: None,
    ) -> list[Group]:
        """Play one group of `group_size` episodes for each (index, task).

        Calls `on_episode(index, outcome)` when an episode ends. Episode ids are batch-index-number: the tasks
        [(4, task)] of "batch-1" with group_size 2 give "batch-1-4-0" and "batch-1-4-1". Those in `finished`
        enter the groups without being played again. `run_episode` calls `on_turn` and `on_screenshot`.

        If cancelled, it cancels every episode and waits until their environments are closed. An unexpected
        error does the same and is raised.
        """
        numbers = range(self.settings.group_size)
        jobs = [(index, task, number) for index, task in tasks for number in numbers]
        slots = nullcontext() if self.parallel is None else asyncio.Semaphore(self.parallel)

        async def play(index: int, task: Task, number: int) -> Outcome:
            name = f"{batch}-{index}-{number}"
            if name in finished:
                return finished[name]
            async with slots:
                outcome = await self.episode(task, name, on_turn, on_screenshot)
            on_episode(index, outcome)
            return outcome

        try:
            async with asyncio.TaskGroup() as running:
                episodes = [running.create_task(play(*job)) for job in jobs]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        outcomes: dict[int, list[Outcome]] = {index: [] for index, _ in tasks}
        for (index, _, _), episode in zip(jobs, episodes, strict=True):
            outcomes[index].append(episode.result())
        return [
            _group(index, task, outcomes[index]) for index, task in sorted(tasks, key=lambda pair: pair[0])
        ]

    async def episode(
        self,
        task: Task,
        episode_id: str,
        on_turn: OnTurn = lambda turn: None,
        on_screenshot: OnScreenshot = lambda screenshot, previous: None,
    ) -> Outcome:
        """Play one episode in a leased environment."""

        async def play(env: Env) -> Trajectory:
            return await run_episode(
                task,
                env,
                self.agent,
                episode_id=episode_id,
                settings=self.settings,
                seed=self.seed,
                on_turn=on_turn,
                on_screenshot=on_screenshot,
                activity=self.activity,
            )

        return await self.pool.run(task, episode_id, play)


def _group(index: int, task: Task, outcomes: Sequence[Outcome]) -> Group:
    return Group(
        index=index,
        task_id=task.id,
        trajectories=tuple(outcome for outcome in outcomes if isinstance(outcome, Trajectory)),
        failures=tuple(outcome for outcome in outcomes if isinstance(outcome, Failure)),
    )
