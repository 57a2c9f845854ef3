"""Credit: the reward and the advantage of every episode, built in or by plug-ins.

A plug-in is called once per episode or group. So it may be slow, random, or keep a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from arpo.algorithms.advantages import advantages
from arpo.algorithms.rewards import reward
from arpo.config import LossConfig
from arpo.plugins import Plugin
from arpo.types import Group, Task, Trajectory


class TasksById(Protocol):
    def __getitem__(self, task_id: str) -> Task: ...


class Credit:
    """`tasks` are those of the episodes; only a plug-in for rewards needs them."""

    def __init__(
        self,
        loss: LossConfig,
        reward: Plugin | None = None,
        advantage: Plugin | None = None,
        tasks: TasksById | None = None,
    ) -> None:
        self._loss, self._reward, self._advantage = loss, reward, advantage
        self._tasks = tasks
        self._rewards: dict[str, float] = {}  # of the plug-in, by episode
        self._advantages: dict[tuple[str, ...], tuple[float, ...]] = {}  # of the plug-in, by episodes

    def reward(self, trajectory: Trajectory) -> float:
        if self._reward is None:
            return reward(trajectory, self._loss.format_weight)
        name = trajectory.episode_id
        if name not in self._rewards:
            assert self._tasks is not None
            value = self._reward(trajectory, self._tasks[trajectory.task_id])
            self._rewards[name] = self._reward.number(value, f"episode {name}")
        return self._rewards[name]

    def advantages(self, group: Group) -> tuple[float, ...]:
        """One value per episode of the group. All are 0 if the group has no signal."""
        rewards_G = [self.reward(trajectory) for trajectory in group.trajectories]
        if self._advantage is None or len(rewards_G) < 2:
            return advantages(rewards_G, self._loss.advantage)
        episodes = tuple(trajectory.episode_id for trajectory in group.trajectories)
        if episodes not in self._advantages:
            self._advantages[episodes] = self._checked(self._advantage(rewards_G, group), group)
        return self._advantages[episodes]

    def _checked(self, values: Sequence[float], group: Group) -> tuple[float, ...]:
        assert self._advantage is not None
        subject, size = f"a group of task {group.task_id}", len(group.trajectories)
        try:
            listed = list(values)
        except TypeError:
            listed = []
        if len(listed) != size:
            raise self._advantage.error(f"returned {values!r} for {subject}, must be {size} numbers")
        return tuple(self._advantage.number(value, subject) for value in listed)
