"""Replay: each task's own past successes, and the rescue of groups in which every episode failed.

The buffer holds trajectories as they were sampled, the engine's log-probabilities included. It reads no file
and owns no generator: the caller passes one in, and the store names and loads what the buffer held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from arpo.config import ReplayConfig
from arpo.types import Group, Rescue, Trajectory


class ReplayBuffer:
    """Per task, at most `capacity` successes, first in first out. Disabled, it stores and changes nothing."""

    def __init__(self, config: ReplayConfig) -> None:
        self._config = config
        self._stored: dict[str, deque[Trajectory]] = {}

    def rescue(self, groups: Sequence[Group], rng: Random, version: int) -> list[Group]:
        """The groups by index, each all-failed one with a stored success in place of one of its episodes.

        A group's own successes are stored after it was looked at. `version` is the policy's now, from which a
        stored success's age is counted.
        """
        in_order = sorted(groups, key=lambda group: group.index)
        if not self._config.enabled:
            return in_order
        rescued = []
        for group in in_order:
            rescued.append(self._rescue_one(group, rng, version))
            self._store(group.trajectories)
        return rescued

    def _rescue_one(self, group: Group, rng: Random, version: int) -> Group:
        stored = self._stored.get(group.task_id)
        # A lone trajectory is no group: a stored success in its place would have nothing to be compared with.
        if stored is None or len(group.trajectories) < 2 or any(map(self._succeeded, group.trajectories)):
            return group
        index = rng.randrange(len(group.trajectories))
        success = stored[rng.randrange(len(stored))]
        trajectories = list(group.trajectories)
        replaced, trajectories[index] = trajectories[index], success
        record = Rescue(
            index=index,
            replaced_episode=replaced.episode_id,
            stored_episode=success.episode_id,
            age=version - success.policy_version,
        )
        return replace(group, trajectories=tuple(trajectories), rescue=record)

    def _succeeded(self, trajectory: Trajectory) -> bool:
        return trajectory.score >= self._config.threshold

    def _store(self, trajectories: Iterable[Trajectory]) -> None:
        for trajectory in trajectories:
            if self._succeeded(trajectory) and not trajectory.malformed:
                empty: deque[Trajectory] = deque(maxlen=self._config.capacity)
                self._stored.setdefault(trajectory.task_id, empty).append(trajectory)

    def state(self) -> dict[str, list[str]]:
        """For each task the episode ids that it holds, oldest first: all that a checkpoint needs to name."""
        return {task: [held.episode_id for held in stored] for task, stored in self._stored.items()}

    def restore(self, trajectories: Iterable[Trajectory]) -> None:
        """Hold these and nothing else, each task's oldest first, as `state` listed them."""
        self._stored.clear()
        self._store(trajectories)
