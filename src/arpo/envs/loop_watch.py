"""Finds calls that block the event loop, such as time.sleep() in an async method."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from arpo.errors import code_place

TICK_SECONDS = 0.1
MIN_TICKS = 3


class LoopWatch:
    """A thread that notices when the event loop does not run for `limit` seconds during a call.

        async with LoopWatch() as watch:
            with watch.during("step"):
                await env.step(actions)  # calls time.sleep(2) in line 14
        watch.blocked  # [("step", "my_env.py:14")]

    The thread must have run several times meanwhile: if the machine stalls, neither the loop nor the thread
    runs, and nothing is reported. A block outside the user's code is not reported either.
    """

    def __init__(self, limit: float = 1.0) -> None:
        self.blocked: list[tuple[str, str]] = []
        self._limit = limit
        self._call = ""
        self._last_beat = 0.0
        self._ticks = 0  # of the thread, since the last beat of the loop
        self._reported = False
        self._ended = threading.Event()

    async def __aenter__(self) -> LoopWatch:
        self._loop_thread = threading.get_ident()
        self._beats = asyncio.create_task(self._keep_beating())
        self._thread = threading.Thread(target=self._observe, daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._beats.cancel()
        await asyncio.gather(self._beats, return_exceptions=True)
        self._thread.join()

    @contextmanager
    def during(self, call: str) -> Iterator[None]:
        self._beat()
        self._call = call
        try:
            yield
        finally:
            self._call = ""

    def _beat(self) -> None:
        self._last_beat, self._ticks, self._reported = time.monotonic(), 0, False

    async def _keep_beating(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(TICK_SECONDS)

    def _observe(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            self._ticks += 1
            silent = time.monotonic() - self._last_beat
            if silent < self._limit or self._ticks < MIN_TICKS or self._reported or not self._call:
                continue
            self._reported = True
            if place := _innermost(sys._current_frames().get(self._loop_thread)):
                self.blocked.append((self._call, place))


def _innermost(frame: FrameType | None) -> str:
    """The user's line that the event loop is executing; "" if there is none."""
    while frame is not None and frame.f_code.co_filename != asyncio.base_events.__file__:
        if place := code_place(frame.f_code.co_filename, frame.f_lineno):
            return place
        frame = frame.f_back
    return ""
