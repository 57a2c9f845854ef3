"""A clock that tests set, in place of the module `time`."""

from __future__ import annotations


class Clock:
    """`now` is the time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now
