"""Durations of the stages of a batch: for timing.jsonl, and to estimate how long a stage will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from arpo.reporting.display import format_seconds
from arpo.rollout.activity import Call
from arpo.storage.run_folder import TIMING, RunFolderReader


def last_durations(store: RunFolderReader) -> dict[str, float]:
    """Seconds by stage of the last batch of a run; {} if there is none."""
    *_, last = ({}, *store.read_log(TIMING))
    return {name: seconds for name, seconds in last.items() if seconds is not None}


class Timing:
    """Seconds spent in each stage since the last `take`. `known` has durations of an earlier batch."""

    def __init__(
        self, known: Mapping[str, float] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.current = ""  # the latest stage
        self._clock = clock
        self._began = clock()
        self._last = dict(known or {})
        self._seconds: dict[str, float] = {}
        self._stages: list[Call] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.current, self._began = name, self._clock()
        try:
            yield
        finally:
            self._last[name] = self._clock() - self._began
            self._stages.append((name, self._began, self._last[name]))
            self.add({name: self._last[name]})

    def add(self, seconds: Mapping[str, float]) -> None:
        for name, duration in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + duration

    def take(self, played: int) -> dict[str, float]:
        """Seconds by stage, with episodes per second if any were played. Resets the counters.

        In lock step, episodes are played in the stage "rollout". In asynchronous training they are played
        all the time, also in "wait" (for groups) and "learn".
        """
        seconds = self.pause()
        stages = ("rollout",) if "rollout" in seconds else ("wait", "learn") if "wait" in seconds else ()
        spent = sum(seconds.get(name, 0.0) for name in stages)
        return seconds | ({"episodes_per_second": played / spent} if spent else {})

    def pause(self) -> dict[str, float]:
        """Seconds by stage, for `add` after a resume. Resets the counters."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def take_stages(self) -> list[Call]:
        """The stages since the last call, in seconds of the clock."""
        stages, self._stages = self._stages, []
        return stages

    def about(self, stages: Sequence[str]) -> str:
        """The remaining time as text: "about 20 s" or "duration unknown"."""
        seconds = self.remaining(stages)
        return "duration unknown" if seconds is None else f"about {format_seconds(seconds)}"

    def remaining(self, stages: Sequence[str]) -> float | None:
        """Seconds until the last of these consecutive stages ends, if all take as long as the last time.

        None if one of them has never been measured.

        >>> timing = Timing({"rollout": 30.0, "learn": 10.0})
        >>> with timing.stage("rollout"):
        ...     timing.remaining(("rollout", "learn"))
        40.0
        """
        left = stages[stages.index(self.current) :] if self.current in stages else stages
        if any(name not in self._last for name in left):
            return None
        elapsed = self._clock() - self._began if left[:1] == (self.current,) else 0.0
        running = max(0.0, self._last[left[0]] - elapsed) if left else 0.0
        return running + sum(self._last[name] for name in left[1:])
