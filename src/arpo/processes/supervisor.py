"""Keeps a program running: starts it again when it ends or hangs, after a pause that grows.

server = Supervised(program, Supervision(start_seconds=60.0), report=print)
wait_until_ready([server])   # raises UserError if it does not start
server.close()
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import urlsplit

from arpo.errors import UserError, printable
from arpo.processes.backoff import pause_after
from arpo.processes.child import Child

STABLE_SECONDS = 60.0  # a program that ran this long is restarted after the shortest pause
_WAIT_SECONDS = 0.02


class Program(Protocol):
    """A kind of program. `name` begins each message about it."""

    @property
    def name(self) -> str: ...

    def start(self) -> Child:
        """Raises OSError or UserError if that is not possible now."""
        ...

    def is_ready(self) -> bool:
        """Whether a started program works. Asked many times a second."""
        ...

    def is_healthy(self) -> bool:
        """Whether a program that was ready still works. May take `check_seconds`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How a program is watched. Times in seconds."""

    start_seconds: float  # until it is ready
    attempts: int = 1  # failed starts in a row, until `fault` tells the reason
    hopeless: str = ""  # pattern of a line of output: after such a failed start, no other one can succeed
    check_seconds: float = 10.0  # between two checks
    failed_checks: int = 6  # in a row, until it counts as hanging
    poll_seconds: float = 0.05


class Supervised:
    """A program that a thread keeps running until `close`.

    `restarts` counts its starts after the first one. `fault`: why it does not start, "" if it does.
    `report` receives notes for the user, in the thread.
    """

    def __init__(
        self, program: Program, settings: Supervision, report: Callable[[str], None] = lambda text: None
    ) -> None:
        self.state: Literal["starting", "healthy", "down"] = "starting"
        self.restarts = 0
        self.fault = ""
        self.was_ready = False
        self.child: Child | None = None  # the last one
        self._program, self._settings, self._report = program, settings, report
        self._is_hopeless = False
        self._closing = threading.Event()
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name=f"keeps {program.name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self._program.name

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    def close(self) -> None:
        """End the program and its thread."""
        self._closing.set()
        with self._starting:
            child = self.child
        if child is not None:
            child.end()
        if self._thread is not threading.current_thread():  # garbage collection may run in any thread
            self._thread.join()

    def restart(self) -> None:
        """End the program. Its thread starts it again."""
        with self._starting:
            child = self.child
        if child is not None:
            child.end()

    def _keep(self) -> None:
        failures = failed_starts = 0
        while not self.is_closed:
            began = time.monotonic()
            reason, was_ready = self._run_once()
            if self.is_closed:
                return
            is_stable = was_ready and time.monotonic() - began > STABLE_SECONDS
            failures = 1 if is_stable else failures + 1
            failed_starts = 0 if was_ready else failed_starts + 1
            pause = pause_after(failures)
            if failed_starts >= self._settings.attempts or (not was_ready and self._is_hopeless):
                self.fault = reason
            if self.was_ready or not self.fault:
                self._report(f"{self.name}: {reason}; restart in {pause:g} s")
            self._closing.wait(pause)
            self.restarts += 1
            self.state = "starting"

    def _run_once(self) -> tuple[str, bool]:
        """Run the program until it is down. Returns the reason, and whether it was ready."""
        was_ready = False
        try:
            with self._starting:
                if self.is_closed:
                    return "", False
                self.child = child = self._program.start()
        except (OSError, UserError) as error:
            self.state = "down"
            return printable(str(error)), False
        try:
            reason = self._until_ready(child)
            if reason is None:
                was_ready = self.was_ready = True
                self.state, self.fault = "healthy", ""
                self._report(f"{self.name}: ready")
                reason = self._until_down(child)
            pattern = self._settings.hopeless
            cause = child.find_line(pattern) if pattern and not was_ready else None
            self._is_hopeless = cause is not None
            log = "" if child.log is None else f"; log: {child.log}"
            return f"{reason}; its last output: {cause or child.last_output}{log}", was_ready
        finally:
            self.state = "down"
            child.end()

    def _until_ready(self, child: Child) -> str | None:
        """None once the program is ready; otherwise the reason why it is not."""
        end = time.monotonic() + self._settings.start_seconds
        while time.monotonic() < end and not self.is_closed:
            if reason := child.exit_reason:
                return reason
            if self._program.is_ready():
                return None
            self._closing.wait(self._settings.poll_seconds)
        return f"not ready after {self._settings.start_seconds:g} s"

    def _until_down(self, child: Child) -> str:
        """The reason why the program is down: it ended, or it hangs.

        One failed check proves nothing: a long step of this process delays it. A check that fails at once
        counts after `check_seconds`: a server that ends refuses connections first.
        """
        settings, failed = self._settings, 0
        while failed < settings.failed_checks and not self.is_closed:
            end = time.monotonic() + settings.check_seconds
            failed = 0 if self._program.is_healthy() else failed + 1
            while time.monotonic() < end and not self.is_closed:
                if reason := child.exit_reason:
                    return reason
                self._closing.wait(settings.poll_seconds)
        return f"no answer to {failed} health checks of {settings.check_seconds:g} s"


def wait_until_ready(programs: Sequence[Supervised]) -> None:
    """Wait until each was ready once, or one is closed. Raises UserError if one does not start."""
    while waiting := [one for one in programs if not one.was_ready]:
        for one in waiting:
            if one.fault:
                raise UserError(f"{one.name} did not start: {one.fault}")
            if one.is_closed:
                return
        time.sleep(_WAIT_SECONDS)


def responds(url: str, headers: Mapping[str, str], seconds: float) -> bool:
    """Whether a GET of the HTTP URL is answered with status 200. Uses no proxy, follows no redirect."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds)
    try:
        connection.request("GET", parts.path, headers=dict(headers))
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
