"""Where the time of environments goes: the calls of each episode, and seconds summed over episodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, cast, get_args

Name = Literal["start", "step", "evaluate", "engine"]
NAMES: tuple[Name, ...] = get_args(Name)
Call = tuple[str, float, float]  # name, begin, duration: in seconds of the clock
Measure = Callable[[Name], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeCalls:
    """All calls of one attempt at an episode, in order.

    `host` is that of the environment. `fault` is the class of the error that ended the attempt, "" if it was
    played to its end.
    """

    episode_id: str
    host: str
    fault: str
    calls: tuple[Call, ...]


class Activity:
    """Integrates the number of episodes in each activity over time.

    Two environments, one starting for 4 s and one stepping for 1 s, in 4 s: {"start": 4.0, "step": 1.0, …},
    "wall": 4.0. Costs a few additions per call of an environment or of the engine.

    >>> activity = Activity()
    >>> with activity("engine"):
    ...     completion = await engine.generate(prompt, sampling)

    `report` receives the calls of each attempt at an episode when it ends.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.report: Callable[[EpisodeCalls], None] = lambda calls: None
        self._clock = clock
        self._now: dict[Name, int] = dict.fromkeys(NAMES, 0)
        self._seconds: dict[Name, float] = dict.fromkeys(NAMES, 0.0)
        self._engine_busy = self._lost = 0.0
        self._began = self._last = clock()

    @contextmanager
    def __call__(self, name: Name) -> Iterator[None]:
        self._advance()
        self._now[name] += 1
        try:
            yield
        finally:
            self._advance()
            self._now[name] -= 1

    @contextmanager
    def episode(self, episode_id: str, host: str) -> Iterator[Measure]:
        """Yields a function like this object, for the calls of one attempt at an episode."""
        calls: list[Call] = []
        fault = ""

        @contextmanager
        def measure(name: Name) -> Iterator[None]:
            began = self._clock()
            try:
                with self(name):
                    yield
            finally:
                calls.append((name, began, self._clock() - began))

        try:
            yield measure
        except BaseException as error:
            fault = type(error).__name__
            raise
        finally:
            self._end(EpisodeCalls(episode_id=episode_id, host=host, fault=fault, calls=tuple(calls)))

    def add(self, episode: EpisodeCalls) -> None:
        """Count an attempt of another process."""
        for name, _, seconds in episode.calls:
            self._seconds[cast(Name, name)] += seconds
        self._end(episode)

    def _end(self, episode: EpisodeCalls) -> None:
        self._lost += sum(seconds for _, _, seconds in episode.calls) if episode.fault else 0.0
        self.report(episode)

    def shares(self, environments: int) -> dict[str, float]:
        """Shares since the last call, and resets the counters.

        env_start, env_step, env_evaluate, env_engine: shares of the time of all `environments` in that
        activity (env_engine: waiting for an answer). env_idle: the rest. env_lost: share of all this in
        attempts that a fault has ended. engine_busy: share of the time with at least one request.
        0 environments or no time: {}.
        """
        self._advance()
        wall = self._last - self._began
        seconds, busy, lost = self._seconds, self._engine_busy, self._lost
        self._seconds, self._began = dict.fromkeys(NAMES, 0.0), self._last
        self._engine_busy = self._lost = 0.0
        if not environments or wall <= 0:
            return {}
        used = {f"env_{name}": value / (wall * environments) for name, value in seconds.items()}
        return used | {
            "env_idle": max(0.0, 1 - sum(used.values())),
            "env_lost": lost / (wall * environments),
            "engine_busy": busy / wall,
        }

    def _advance(self) -> None:
        now = self._clock()
        passed, self._last = now - self._last, now
        for name, episodes in self._now.items():
            self._seconds[name] += episodes * passed
        if self._now["engine"]:
            self._engine_busy += passed
