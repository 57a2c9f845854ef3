"""How much each goal family teaches, from the groups of the run so far (train.curriculum = "adaptive").

A group teaches by the differences of its episodes. If an episode of its task succeeds with probability p,
s successes in G episodes estimate p(1 − p) without bias by s(G − s) / (G(G − 1)). The success rate of a whole
family would not do: it is also 1/2 if the policy solves half of its tasks always and the others never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from arpo.tasks.curriculum import Outcome

DECAY = 0.9  # weight of the previous groups of a family, at each new group
PRIOR = 0.25  # signal of one imagined group: the largest p(1 − p): every family is tried
FLOOR = 0.05  # no family disappears


class FamilySignal:
    """The signal of families, apart for each number of goals. Recent groups count more.

    `families(task_id)` are those of a played task. A score of at least `threshold` is a success.
    """

    def __init__(self, families: Callable[[str], Sequence[str]], threshold: float) -> None:
        self._families, self._threshold = families, threshold
        self._sums: dict[tuple[int, str], tuple[float, float]] = {}  # signal and number of groups, decayed

    def weight(self, families: Sequence[str]) -> float:
        """The mean signal of a combination's families, plus FLOOR.

        Example: a family with one group, 1 success of 2, has the signal (0.25 + 0.5) / 2 = 0.375.
        """
        return sum(map(self._signal, ((len(families), name) for name in families))) / len(families) + FLOOR

    def _signal(self, key: tuple[int, str]) -> float:
        signal, groups = self._sums.get(key, (0.0, 0.0))
        return (PRIOR + signal) / (1 + groups)

    def record(self, played: Iterable[Outcome]) -> None:
        """Add the episodes of one group. A group of fewer than two tells nothing."""
        episodes = list(played)
        size = len(episodes)
        if size < 2:
            return
        successes = sum(episode.score >= self._threshold for episode in episodes)
        found = successes * (size - successes) / (size * (size - 1))
        families = self._families(episodes[0].task_id)
        for key in ((len(families), name) for name in families):
            signal, groups = self._sums.get(key, (0.0, 0.0))
            self._sums[key] = DECAY * signal + found, DECAY * groups + 1

    def state(self) -> dict[str, Any]:
        return {"family_signal": [[*key, *sums] for key, sums in self._sums.items()]}

    def restore(self, state: Mapping[str, Any], played: Iterable[Outcome]) -> None:
        """`played` is not needed: the state has the sums."""
        self._sums = {
            (number, name): (signal, groups) for number, name, signal, groups in state["family_signal"]
        }
