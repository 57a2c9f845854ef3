"""A program that is kept running. tests/serving and tests/envs supervise real servers and hosts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from arpo.errors import UserError
from arpo.processes.backoff import pause_after
from arpo.processes.child import Child
from arpo.processes.supervisor import Supervised, Supervision, responds, wait_until_ready
from processes import wait_until

SETTINGS = Supervision(start_seconds=30.0, check_seconds=0.05, failed_checks=2, poll_seconds=0.01)


class Scripted:
    """Each start takes the next of `codes`: a program, or an error."""

    name = "the program"

    def __init__(self, *codes: str | Exception) -> None:
        self.codes, self.healthy = list(codes), True
        self.started: list[float] = []
        self._last: str | Exception = ""

    def start(self) -> Child:
        self.started.append(time.monotonic())
        code = self._last = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        if isinstance(code, Exception):
            raise code
        return Child([sys.executable, "-I", "-c", code], env={})

    def is_ready(self) -> bool:
        return self._last == STAYS

    def is_healthy(self) -> bool:
        return self.healthy


STAYS = "import time; time.sleep(600)"
FAILS = "raise SystemExit('no such screen')"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("arpo.processes.backoff.FIRST_SECONDS", 0.01)
    yield


def test_pauses_double_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a day: 2.0 ** 1999 is no float."""
    monkeypatch.undo()
    assert [pause_after(n) for n in (0, 1, 2, 3, 6, 7, 2000)] == [0.0, 1.0, 2.0, 4.0, 32.0, 60.0, 60.0]


def test_a_program_that_does_not_start_is_tried_again_and_its_reason_is_known() -> None:
    notes: list[str] = []
    program = Scripted(FAILS, OSError(28, "No space left on device"), FAILS, FAILS, STAYS)
    watch = Supervised(program, Supervision(start_seconds=30.0, attempts=2, poll_seconds=0.01), notes.append)
    with pytest.raises(UserError, match=r"the program did not start: .*No space left on device"):
        wait_until_ready([watch])
    assert wait_until(lambda: watch.was_ready)
    assert (watch.state, watch.fault, watch.restarts) == ("healthy", "", 4)
    assert notes[0].startswith("the program: exit code 1; its last output: no such screen; restart in ")
    watch.close()
    assert watch.child is not None and watch.child.exit_reason == "killed by SIGKILL"


def test_a_program_that_hangs_or_dies_is_restarted() -> None:
    program = Scripted(STAYS)
    watch = Supervised(program, SETTINGS)
    wait_until_ready([watch])
    program.healthy = False
    assert wait_until(lambda: watch.restarts == 1)
    program.healthy = True
    assert wait_until(lambda: watch.state == "healthy" and watch.child is not None)
    assert watch.child is not None
    watch.child.process.kill()
    assert wait_until(lambda: watch.restarts == 2 and watch.state == "healthy")
    watch.restart()
    assert wait_until(lambda: watch.restarts == 3 and watch.state == "healthy")
    watch.close()


def test_waiting_ends_when_a_program_is_closed() -> None:
    program = Scripted("import time; time.sleep(601)")
    watch = Supervised(program, SETTINGS)
    watch.close()
    wait_until_ready([watch])
    with pytest.raises(ConnectionError):
        raise ConnectionError if not responds("http://127.0.0.1:1/health", {}, 1.0) else AssertionError
