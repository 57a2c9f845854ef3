"""The replay buffer: stores successes by key, and puts one into a group of failures with the same key.

The key of a task is its id (the published rule), or another notion of likeness, such as its goal families.

The buffer holds trajectories as sampled, with the engine's log-probabilities. A checkpoint stores their
episode ids. Screenshots need much memory, so the caller may pass a function that loads a trajectory when it
is replayed. The caller also passes the random generator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from arpo.algorithms.rewards import is_example
from arpo.config import ReplayConfig
from arpo.types import Group, Rescue, Trajectory


def replay_rng(seed: int, batch: int) -> Random:
    """The random generator for the replay of one batch, counted from 0, in a run with this seed."""
    return Random(f"replay/{seed}/{batch}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Success:
    episode_id: str
    task_id: str
    turns: int
    policy_version: int
    load: Callable[[], Trajectory]


def task_key(task_id: str) -> str:
    """The key of the published rule: no two tasks share a success."""
    return task_id


class ReplayBuffer:
    """At most `capacity` successes per key, first in, first out. If disabled, it changes nothing.

    `load(episode_id)` returns a stored trajectory. Without it, the buffer keeps the trajectories.
    `key(task_id)` is equal for tasks with shared successes.
    """

    def __init__(
        self,
        config: ReplayConfig,
        load: Callable[[str], Trajectory] | None = None,
        key: Callable[[str], str] = task_key,
    ) -> None:
        self._config = config
        self._load = load
        self._key = key
        self._stored: dict[str, deque[_Success]] = {}

    def rescue(self, groups: Sequence[Group], rng: Random, version: int) -> list[Group]:
        """Return the groups by index. In groups with too few successes, stored ones replace failed episodes.

        A group's own successes are stored after its rescue. The age of a stored success is `version`, the
        current policy version, minus the version that sampled it.
        """
        in_order = sorted(groups, key=lambda group: group.index)
        if not self._config.enabled:
            return in_order
        self._forget(version)
        rescued = []
        for group in in_order:
            rescued.append(self._rescue_one(group, rng, version))
            for trajectory in group.trajectories:
                self._store(trajectory)
        return rescued

    def _rescue_one(self, group: Group, rng: Random, version: int) -> Group:
        """At least one failure stays in the group, to compare the stored successes with."""
        trajectories = list(group.trajectories)
        stored = list(self._stored.get(self._key(group.task_id), ()))
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
                    stored_task=success.task_id,
                    age=version - success.policy_version,
                )
            )
            trajectories[index] = success.load()
            failed.remove(index)
            stored = [other for other in stored if other.episode_id != success.episode_id]
        return replace(group, trajectories=tuple(trajectories), rescues=tuple(rescues))

    def _victim(self, failed: Sequence[int], trajectories: Sequence[Trajectory], rng: Random) -> int:
        """Index of the failed episode to replace. Ties in the number of turns go to the first."""
        match self._config.victim:
            case "random":
                return failed[rng.randrange(len(failed))]
            case "longest":
                return max(failed, key=lambda index: len(trajectories[index].turns))
            case "shortest":
                return min(failed, key=lambda index: len(trajectories[index].turns))

    def _pick(self, stored: Sequence[_Success], rng: Random) -> _Success:
        """The stored success to insert. Ties in the number of turns go to the newest."""
        match self._config.pick:
            case "random":
                return stored[rng.randrange(len(stored))]
            case "newest":
                return stored[-1]
            case "shortest":
                return min(reversed(stored), key=lambda success: success.turns)

    def _succeeded(self, trajectory: Trajectory) -> bool:
        return trajectory.score >= self._config.threshold

    def _store(self, trajectory: Trajectory) -> None:
        if is_example(trajectory.score, trajectory.malformed, self._config.threshold):
            success = _Success(
                episode_id=trajectory.episode_id,
                task_id=trajectory.task_id,
                turns=len(trajectory.turns),
                policy_version=trajectory.policy_version,
                load=partial(self._load, trajectory.episode_id) if self._load else lambda: trajectory,
            )
            empty: deque[_Success] = deque(maxlen=self._config.capacity)
            self._stored.setdefault(self._key(trajectory.task_id), empty).append(success)

    def _forget(self, version: int) -> None:
        """Drop successes more than `max_age` versions old."""
        if not self._config.max_age:
            return
        for key, stored in list(self._stored.items()):
            young = [held for held in stored if version - held.policy_version <= self._config.max_age]
            self._stored[key] = deque(young, maxlen=self._config.capacity)
            if not young:
                del self._stored[key]

    def state(self) -> dict[str, list[str]]:
        """Stored episode ids by key, oldest first, for a checkpoint."""
        return {key: [held.episode_id for held in stored] for key, stored in self._stored.items()}

    def restore(self, outlines: Iterable[Trajectory]) -> None:
        """Replace the content by these trajectories, in the order of `state`.

        With `load` they are not kept and need no pixels.
        """
        self._stored.clear()
        for outline in outlines:
            self._store(outline)
