"""The replay buffer: stores the successes of each task, and puts one into a group of its failures.

The buffer holds trajectories as sampled, with the engine's log-probabilities. Seeds, which another model
sampled, have none; new successes of a task push them out. A checkpoint stores episode ids. Screenshots need
much memory, so the caller may pass a function that loads a trajectory when it is replayed. The caller also
passes the random generator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
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
    policy_version: int
    load: Callable[[], Trajectory]


class ReplayBuffer:
    """At most `capacity` successes per task, first in, first out. If disabled, it changes nothing.

    `load(episode_id)` returns a stored trajectory. Without it, the buffer keeps the trajectories.
    """

    def __init__(self, config: ReplayConfig, load: Callable[[str], Trajectory] | None = None) -> None:
        self._config = config
        self._load = load
        self._stored: dict[str, deque[_Success]] = {}

    def rescue(
        self, groups: Sequence[Group], rng: Random, version: int, doubtful: Container[str] = ()
    ) -> list[Group]:
        """Return the groups by index. In groups with few successes, a stored one replaces a failed episode.

        It is one per group. So the share of stored episodes in a group of n is at most 1/n.
        A group's own successes are stored after its rescue. The age of a stored success is `version`, the
        current policy version, minus the version that sampled it. `doubtful`: ids of episodes that are not
        stored.
        """
        in_order = sorted(groups, key=lambda group: group.index)
        if not self._config.enabled:
            return in_order
        rescued = []
        for group in in_order:
            rescued.append(self._rescue_one(group, rng, version))
            for trajectory in group.trajectories:
                if trajectory.episode_id not in doubtful:
                    self._store(trajectory)
        return rescued

    def _rescue_one(self, group: Group, rng: Random, version: int) -> Group:
        """At least one failure stays in the group, to compare the stored success with."""
        trajectories = list(group.trajectories)
        stored = self._stored.get(group.task_id)
        failed = [index for index, one in enumerate(trajectories) if not self._succeeded(one)]
        if (
            not stored
            or len(failed) < 2
            or (len(trajectories) - len(failed)) / len(trajectories) > self._config.rare
        ):
            return group
        index = failed[rng.randrange(len(failed))]
        success = stored[rng.randrange(len(stored))]
        rescue = Rescue(
            index=index,
            replaced_episode=trajectories[index].episode_id,
            stored_episode=success.episode_id,
            age=version - success.policy_version,
        )
        trajectories[index] = success.load()
        return replace(group, trajectories=tuple(trajectories), rescues=(rescue,))

    def _succeeded(self, trajectory: Trajectory) -> bool:
        return trajectory.score >= self._config.threshold

    def _store(self, trajectory: Trajectory) -> None:
        if self._config.enabled and is_example(
            trajectory.score, trajectory.malformed, self._config.threshold
        ):
            success = _Success(
                episode_id=trajectory.episode_id,
                policy_version=trajectory.policy_version,
                load=partial(self._load, trajectory.episode_id) if self._load else lambda: trajectory,
            )
            empty: deque[_Success] = deque(maxlen=self._config.capacity)
            self._stored.setdefault(trajectory.task_id, empty).append(success)

    def state(self) -> dict[str, list[str]]:
        """Stored episode ids by task, oldest first, for a checkpoint."""
        return {task: [held.episode_id for held in stored] for task, stored in self._stored.items()}

    def restore(self, outlines: Iterable[Trajectory]) -> None:
        """Replace the content by these trajectories, in the order of `state`, or by seeds.

        With `load` they are not kept and need no pixels.
        """
        self._stored.clear()
        for outline in outlines:
            self._store(outline)
