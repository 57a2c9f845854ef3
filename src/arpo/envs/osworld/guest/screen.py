"""Screenshots as PNG, taken when the screen is stable.

The X server keeps its framebuffer, including the cursor, in a file. `Screen` maps this file: a screenshot
needs no round trip. After input, a screenshot waits until the screen has stopped changing and no process is
busy; callers need no fixed sleep. The argument of `expect_change` limits this wait.
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

STABLE_SECONDS = 0.05  # without change
INPUT_WAIT_SECONDS = 1.0  # maximum wait after input
PROGRAM_START_WAIT_SECONDS = 5.0  # maximum wait after input that started a program
_POLL_SECONDS = 0.012
_OWN_PID = str(os.getpid())
_BUSY_TICKS = 2  # of CPU time within STABLE_SECONDS, from which the guest counts as busy


class Screen:
    def __init__(self, framebuffer: Path) -> None:
        with framebuffer.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        header = struct.unpack(">25I", self._map[:100])  # X window dump
        self.width, self.height, stride, colors = header[4], header[5], header[12], header[19]
        assert stride == self.width * 4, "expected four bytes per pixel and no row padding"
        start = header[0] + colors * 12
        self._pixels = memoryview(self._map)[start : start + stride * self.height]
        self._damage = _DamageMonitor()
        self._deadline = 0.0
        self._processes: frozenset[str] = frozenset()  # when the screen was last stable
        self._lock = threading.RLock()
        self._encoder = PngEncoder(self.width, self.height)

    def expect_change(self, seconds: float = INPUT_WAIT_SECONDS) -> None:
        """Makes the next screenshot or input wait until the screen is stable, at most `seconds` from now."""
        self._deadline = time.monotonic() + seconds

    def screenshot(self) -> bytes:
        """The stable screen as PNG. Returns the same bytes object if nothing has changed."""
        with self._lock:
            self.wait_until_stable()
            return self._encoder.encode(bytes(self._pixels))

    def wait_until_stable(self) -> None:
        """Waits after `expect_change`, within its limit; otherwise returns at once.

        If a process has started, the limit rises to `PROGRAM_START_WAIT_SECONDS`: it may open a window soon.
        """
        with self._lock:
            deadline, self._deadline = self._deadline, 0.0
            stable_since = started = time.monotonic()
            if started >= deadline:
                return
            self._damage.has_changed()
            before = _process_activity()
            while time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                changed = self._damage.has_changed()
                if not changed and time.monotonic() - stable_since < STABLE_SECONDS:
                    continue
                now = _process_activity()
                if not changed and now.ticks - before.ticks < _BUSY_TICKS and not now.running:
                    break
                if now.processes - self._processes:
                    deadline = max(deadline, started + PROGRAM_START_WAIT_SECONDS)
                before, stable_since = now, time.monotonic()
            self._processes = before.processes


class _DamageMonitor:
    """Detects drawing through the X server's DAMAGE extension."""

    def __init__(self) -> None:
        self._display = display.Display()
        self._display.damage_query_version()
        self._damage = self._display.screen().root.damage_create(damage.DamageReportNonEmpty)

    def has_changed(self) -> bool:
        """True if a program has drawn anything since the last call."""
        drawn = False
        while self._display.pending_events():
            self._display.next_event()
            drawn = True
        if drawn:
            self._display.damage_subtract(self._damage)
            self._display.flush()
        return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProcessActivity:
    """All processes of the guest except this one."""

    processes: frozenset[str]
    ticks: int  # total CPU time
    running: bool  # at least one process is running or runnable


def _process_activity() -> _ProcessActivity:
    processes, ticks, running = set(), 0, False
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == _OWN_PID:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        processes.add(name)
        ticks += int(fields[11]) + int(fields[12])
        running = running or fields[0] == b"R"
    return _ProcessActivity(processes=frozenset(processes), ticks=ticks, running=running)
