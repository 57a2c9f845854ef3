"""Rewards with known noise: how often a judge is wrong, what follows for its verdicts, and when it changes.

A judge calls a failure a success with the rate a, and a success a failure with the rate b. Both are measured
on the training episodes of tasks that have an evaluator, too. docs/design.md has the mathematics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, lgamma

from arpo.types import Group, Trajectory

MIN_AUDITED = 10  # failures or successes by the evaluator, before their rate is used
WINDOW = 5  # batches, compared with all earlier ones
FALSE_ALARMS = 0.01  # probability of at least one in a whole run, for a judge with constant error rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Error rates of verdicts.

    >>> noise = Noise(false_positives=0.2, false_negatives=0.1)
    >>> round(noise.success(0.55), 3), round(noise.precision(0.55), 3)
    (0.5, 0.818)
    """

    false_positives: float  # a: failures that are judged a success
    false_negatives: float  # b: successes that are judged a failure

    def success(self, share: float) -> float:
        """The success rate of episodes of which this share is judged a success: (share - a) / (1 - a - b).

        In [0, 1]. It is 0 if verdicts say nothing (a + b >= 1).
        """
        slope = 1 - self.false_positives - self.false_negatives
        return min(1.0, max(0.0, (share - self.false_positives) / slope)) if slope > 0 else 0.0

    def precision(self, share: float) -> float:
        """The expected true score of an episode judged a success, if this share of its group is."""
        rate = self.success(share)
        right, wrong = rate * (1 - self.false_negatives), (1 - rate) * self.false_positives
        return right / (right + wrong) if right else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """Numbers of audited episodes: failures and successes by the evaluator, and wrong verdicts on them."""

    failures: int = 0
    false_positives: int = 0
    successes: int = 0
    false_negatives: int = 0

    def __add__(self, other: Confusion) -> Confusion:
        return Confusion(
            failures=self.failures + other.failures,
            false_positives=self.false_positives + other.false_positives,
            successes=self.successes + other.successes,
            false_negatives=self.false_negatives + other.false_negatives,
        )

    def noise(self) -> Noise | None:
        """The error rates; None if too few failures were audited, and b = 0 for too few successes.

        So false positives are found on hard tasks, too, where b has little effect.
        """
        if self.failures < MIN_AUDITED:
            return None
        known = self.successes >= MIN_AUDITED
        return Noise(
            false_positives=self.false_positives / self.failures,
            false_negatives=self.false_negatives / self.successes if known else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The audited episodes of a run, by batch. `earlier` is the sum of the batches before `recent`."""

    batches: int = 0
    earlier: Confusion = field(default_factory=Confusion)
    recent: tuple[Confusion, ...] = ()

    def add(self, batch: Confusion) -> Audit:
        """What is audited during a drift never becomes `earlier`: otherwise the drift would end by itself."""
        recent = (*self.recent, batch)
        old = self.earlier if self.drifts() else sum(recent[:-WINDOW], self.earlier)
        return Audit(batches=self.batches + 1, earlier=old, recent=recent[-WINDOW:])

    def noise(self) -> Noise | None:
        """The error rates of all counted batches; during a drift, of the recent ones if they are higher."""
        recent = sum(self.recent, Confusion())
        known = (self.earlier + recent).noise()
        if known is None or not self.drifts():
            return known
        return Noise(
            false_positives=max(known.false_positives, recent.false_positives / max(1, recent.failures)),
            false_negatives=max(known.false_negatives, recent.false_negatives / max(1, recent.successes)),
        )

    def drifts(self) -> list[str]:
        """The error rates that are higher in the recent batches than before; usually none.

        Fisher's exact test of each rate, with the level FALSE_ALARMS / 2 / (t (t + 1)) after batch t. The sum
        of all levels is FALSE_ALARMS, however long the run is. It assumes independent errors.
        """
        level = FALSE_ALARMS / 2 / (self.batches * (self.batches + 1)) if self.batches else 0.0
        new, old = sum(self.recent, Confusion()), self.earlier
        tests = {
            "failures judged a success": (
                new.false_positives,
                new.failures,
                old.false_positives,
                old.failures,
            ),
            "successes judged a failure": (
                *(new.false_negatives, new.successes),
                *(old.false_negatives, old.successes),
            ),
        }
        return [
            f"{wrong / count:.0%} of the {name}, {wrong_before / before:.0%} before"
            for name, (wrong, count, wrong_before, before) in tests.items()
            if count and before and fisher(wrong, count, wrong_before, before) <= level
        ]


def fisher(wrong: int, count: int, wrong_before: int, before: int) -> float:
    """P(at least `wrong` of `count`), if all errors are spread at random over both sets of episodes."""
    errors, total = wrong + wrong_before, count + before
    whole = _log_comb(total, count)
    return sum(
        exp(_log_comb(errors, number) + _log_comb(total - errors, count - number) - whole)
        for number in range(wrong, min(errors, count) + 1)
    )


def _log_comb(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def is_judged_success(episode: Trajectory, weight: float) -> bool:
    """The verdict in a score of (1 - w) evaluator + w verdict, or of the verdict alone."""
    if episode.evaluated is None:
        return episode.score > 0.5
    return episode.score > (1 - weight) * episode.evaluated + weight / 2


def confusion(episodes: Iterable[Trajectory], weight: float, threshold: float) -> Confusion:
    """The audited ones of these judged episodes. The evaluator's success is a score of `threshold`."""
    counts = {True: [0, 0], False: [0, 0]}
    for one in episodes:
        if one.evaluated is not None:
            success = one.evaluated >= threshold
            counts[success][0] += 1
            counts[success][1] += is_judged_success(one, weight) != success
    (successes, missed), (failures, wrong) = counts[True], counts[False]
    return Confusion(failures=failures, false_positives=wrong, successes=successes, false_negatives=missed)


def doubtful(groups: Sequence[Group], noise: Noise | None, threshold: float) -> set[str]:
    """Ids of judged episodes that must not be stored as successes.

    Either the evaluator says so, or the expected true score is below `threshold`: in a group of eight
    failures, a judge with a = 20% finds one or two successes.
    """
    found = set()
    for group in groups:
        unaudited = [one.score for one in group.trajectories if one.evaluated is None]
        share = sum(score > 0.5 for score in unaudited) / len(unaudited) if unaudited else 0.0
        trusted = noise is None or noise.precision(share) >= threshold
        for one in group.trajectories:
            if not trusted if one.evaluated is None else one.evaluated < threshold:
                found.add(one.episode_id)
    return found
