"""The screen: its picture as PNG, and the moment at which it has come to rest.

The X server keeps its picture, with the cursor in it, in a file that is mapped here: a picture costs no round
trip. After input, a picture is taken when nothing has changed for a moment and no program is at work, so that
nobody has to guess how long to sleep; a screen that never rests is not waited for longer than a touch allows.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from Xlib import display
from Xlib.ext import damage

from arpo.envs.osworld.guest.png import PngEncoder

QUIET_SECONDS = 0.05  # without change: the screen has come to rest
REST_SECONDS = 1.0  # after input, the longest wait for that
START_SECONDS = 5.0  # where the input has started a program
_POLL_SECONDS = 0.012
_OWN = str(os.getpid())
_BUSY_TICKS = 2  # of processor time within the quiet span: somebody is at work


class Screen:
    def __init__(self, framebuffer: Path) -> None:
        with framebuffer.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        header = struct.unpack(">25I", self._map[:100])  # of an X window dump
        self.width, self.height, stride, colors = header[4], header[5], header[12], header[19]
        assert stride == self.width * 4, "four bytes a pixel, rows without a gap"
        start = header[0] + colors * 12
        self._pixels = memoryview(self._map)[start : start + stride * self.height]
        self._changes = _Changes()
        self._deadline = 0.0
        self._processes: frozenset[str] = frozenset()  # at the last rest
        self._lock = threading.RLock()
        self._encoder = PngEncoder(self.width, self.height)

    def touch(self, seconds: float = REST_SECONDS) -> None:
        """Something was done to the desktop: the next picture waits for its answer, at most so long."""
        self._deadline = time.monotonic() + seconds

    def png(self) -> bytes:
        """The picture at rest; the same bytes as the last time where nothing has changed."""
        with self._lock:
            self.rest()
            return self._encoder.encode(bytes(self._pixels))

    def rest(self) -> None:
        """Wait until the screen has come to rest after the last touch, as long as that allows.

        Where a program has been started meanwhile, there is more time: it may be about to show a window.
        """
        with self._lock:
            deadline, self._deadline = self._deadline, 0.0
            quiet_since = touched = time.monotonic()
            if touched >= deadline:
                return
            self._changes.any()
            before = _work()
            while time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                changed = self._changes.any()
                if not changed and time.monotonic() - quiet_since < QUIET_SECONDS:
                    continue
                now = _work()
                if not changed and now.ticks - before.ticks < _BUSY_TICKS and not now.running:
                    break
                if now.processes - self._processes:
                    deadline = max(deadline, touched + START_SECONDS)
                before, quiet_since = now, time.monotonic()
            self._processes = before.processes


class _Changes:
    """Asks the X server whether anything was drawn; it says so once, until it is asked again."""

    def __init__(self) -> None:
        self._display = display.Display()
        self._display.damage_query_version()
        self._damage = self._display.screen().root.damage_create(damage.DamageReportNonEmpty)

    def any(self) -> bool:
        """Whether anything was drawn since the last call."""
        drawn = False
        while self._display.pending_events():
            self._display.next_event()
            drawn = True
        if drawn:
            self._display.damage_subtract(self._damage)
            self._display.flush()
        return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What all other processes of the guest are at."""

    processes: frozenset[str]
    ticks: int  # of processor time, together
    running: bool  # one of them wants to run now


def _work() -> _Work:
    processes, ticks, running = set(), 0, False
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == _OWN:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        processes.add(name)
        ticks += int(fields[11]) + int(fields[12])
        running = running or fields[0] == b"R"
    return _Work(processes=frozenset(processes), ticks=ticks, running=running)
