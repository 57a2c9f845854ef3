"""Replay: each task's own past successes, and the rescue of groups in which nearly every episode failed.

The buffer holds trajectories as they were sampled, the engine's log-probabilities included. It reads no file
and owns no generator: the caller passes one in, and the store names and loads what the buffer held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from arpo.algorithms.rewards import is_example
from arpo.config import ReplayConfig
from arpo.types import Group, Rescue, Trajectory


class ReplayBuffer:
    """Per task, at most `capacity` successes, first in first out. Disabled, it stores and changes nothing."""

    def __init__(self, config: ReplayConfig) -> None:
        self._config = config
        self._stored: dict[str, deque[Trajectory]] = {}

    def rescue(self, groups: Sequence[Group], rng: Random, version: int) -> list[Group]:
        """The groups by index, those with too few successes with stored ones in place of failed episodes.

        A group's own successes are stored after it was looked at. `version` is the policy's now, from which a
        stored success's age is counted.
        """
        in_order = sorted(groups, key=lambda group: group.index)
        if not self._config.enabled:
            return in_order
        self._forget(version)
        rescued = []
        for group in in_order:
            rescued.append(self._rescue_one(group, rng, version))
            self._store(group.trajectories)
        return rescued

    def _rescue_one(self, group: Group, rng: Random, version: int) -> Group:
        """One failure at least always stays: what the stored successes are compared with."""
        trajectories = list(group.trajectories)
        stored = list(self._stored.get(group.task_id, ()))
        failed = [index for index, one in enumerate(trajectories) if not self._succeeded(one)]
        if len(failed) < 2 or (len(trajectories) - len(failed)) / len(trajectories) > self._config.rare:
            return group
        rescues: list[Rescue] = []
        while stored and len(failed) > 1 and len(rescues) < self._config.injections:
            index = self._victim(failed, trajectories, rng)
            success = self._pick(stored, rng)
            rescues.append(
                Rescue(
                    index=index,
                    replaced_episode=trajectories[index].episode_id,
                    stored_episode=success.episode_id,
                    age=version - success.policy_version,
                )
            )
            trajectories[index] = success
            failed.remove(index)
            stored = [other for other in stored if other.episode_id != success.episode_id]
        return replace(group, trajectories=tuple(trajectories), rescues=tuple(rescues))

    def _victim(self, failed: Sequence[int], trajectories: Sequence[Trajectory], rng: Random) -> int:
        """The place of the failed episode that gives way: by its number of turns, of equals the first."""
        match self._config.victim:
            case "random":
                return failed[rng.randrange(len(failed))]
            case "longest":
                return max(failed, key=lambda index: len(trajectories[index].turns))
            case "shortest":
                return min(failed, key=lambda index: len(trajectories[index].turns))

    def _pick(self, stored: Sequence[Trajectory], rng: Random) -> Trajectory:
        """The stored success that takes its place: by its number of turns, of equals the newest."""
        match self._config.pick:
            case "random":
                return stored[rng.randrange(len(stored))]
            case "newest":
                return stored[-1]
            case "shortest":
                return min(reversed(stored), key=lambda success: len(success.turns))

    def _succeeded(self, trajectory: Trajectory) -> bool:
        return trajectory.score >= self._config.threshold

    def _store(self, trajectories: Iterable[Trajectory]) -> None:
        for trajectory in trajectories:
            if is_example(trajectory.score, trajectory.malformed, self._config.threshold):
                empty: deque[Trajectory] = deque(maxlen=self._config.capacity)
                self._stored.setdefault(trajectory.task_id, empty).append(trajectory)

    def _forget(self, version: int) -> None:
        """Let go of what is more than max_age versions old."""
        if not self._config.max_age:
            return
        for task, stored in list(self._stored.items()):
            young = [held for held in stored if version - held.policy_version <= self._config.max_age]
            self._stored[task] = deque(young, maxlen=self._config.capacity)
            if not young:
                del self._stored[task]

    def state(self) -> dict[str, list[str]]:
        """For each task the episode ids that it holds, oldest first: all that a checkpoint needs to name."""
        return {task: [held.episode_id for held in stored] for task, stored in self._stored.items()}

    def restore(self, trajectories: Iterable[Trajectory]) -> None:
        """Hold these and nothing else, each task's oldest first, as `state` listed them."""
        self._stored.clear()
        self._store(trajectories)
