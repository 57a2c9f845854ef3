"""Bookkeeping of asynchronous training: which groups may start, which are too old, which form a batch.

A token's staleness is the version of the learner that trains on it minus the version that sampled it. At most
`max_staleness` is allowed. Groups are known by their numbers. Pure: no clock, no tasks, no episodes.
"""

from __future__ import annotations


class Admission:
    """Counts the groups that are playing, finished, and in training.

    Example with batches of 2 groups and max_staleness 1: at most (1 + 1) * 2 = 4 untrained groups.

    >>> admission = Admission(batch_size=2, max_staleness=1, version=0)
    >>> for number in range(4):
    ...     admission.start(number)
    >>> admission.may_start
    False
    """

    def __init__(self, *, batch_size: int, max_staleness: int, version: int) -> None:
        self.version = version  # of the learner that trains on the next batch
        self._batch_size, self._max_staleness = batch_size, max_staleness
        # By group number: the oldest version of its tokens, None as long as it has none.
        self._playing: dict[int, int | None] = {}
        self._finished: dict[int, int | None] = {}  # in the order of completion
        self._training = 0

    @property
    def may_start(self) -> bool:
        """Whether one more group keeps the number of untrained groups within max_staleness + 1 batches."""
        untrained = len(self._playing) + len(self._finished) + self._training
        return untrained < (self._max_staleness + 1) * self._batch_size

    @property
    def finished(self) -> int:
        """Number of groups waiting for a batch."""
        return len(self._finished)

    def start(self, number: int) -> None:
        self._playing[number] = None

    def sampled(self, number: int, version: int) -> bool:
        """The policy of this version has sampled a token of the group. Returns whether it is the oldest."""
        oldest = self._playing[number]
        if oldest is not None and oldest <= version:
            return False
        self._playing[number] = version
        return True

    def finish(self, number: int, oldest: int | None) -> None:
        """The group is complete. `oldest`: version of its oldest token; None if it has no episodes."""
        del self._playing[number]
        self._finished[number] = oldest

    def forget(self, number: int) -> None:
        """The group was dropped."""
        self._playing.pop(number, None)
        self._finished.pop(number, None)

    def stale(self) -> list[int]:
        """Groups that every possible batch would find too old.

        A finished group enters the batch that its position in the queue leads to. A playing group cannot
        enter an earlier batch than the one after all finished groups.
        """
        stale, ahead = [], 0
        for number, oldest in self._finished.items():
            if self._too_old(oldest, ahead):
                stale.append(number)
            else:
                ahead += 1
        return stale + [number for number, oldest in self._playing.items() if self._too_old(oldest, ahead)]

    def _too_old(self, oldest: int | None, ahead: int) -> bool:
        """Whether a group with this oldest token is too old for its batch, with `ahead` groups before it."""
        return oldest is not None and self.version + ahead // self._batch_size - oldest > self._max_staleness

    def take(self, count: int) -> list[int]:
        """The groups of the next batch, in the order of completion. They are in training until `trained`."""
        taken = list(self._finished)[:count]
        for number in taken:
            del self._finished[number]
        self._training = len(taken)
        self.version += 1
        return taken

    def trained(self) -> None:
        """The engine has the weights after the last batch."""
        self._training = 0
