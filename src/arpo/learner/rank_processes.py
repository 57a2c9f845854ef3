"""The processes of ranks 1, 2, … as seen from rank 0: how they start, receive commands, and exit.

`LocalRanks` starts them on this machine. `cluster/ranks.py` starts them on the nodes of a cluster. In both
cases a rank reads commands from its stdin and exits when it closes, and so with rank 0 in any case.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from arpo.processes.child import Child, describe_exit, python_command

LOOPBACK = "127.0.0.1"
RANK_MODULE = "arpo.learner.sharded"  # `python -m RANK_MODULE NUMBER STORE [WITH_PARENT]` is a rank
WITH_PARENT = "with-parent"  # it ends with the process that started it, not only with rank 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How a rank ended. Example of a reason: "ended: killed by SIGKILL"."""

    reason: str
    at: float  # time.monotonic()
    external: bool  # the cause is outside: a rank without its peers exits with code 1

    @classmethod
    def of(cls, code: int) -> RankExit:
        """From the return code of a process that has just ended, as in `subprocess`."""
        reason = f"ended: {describe_exit(code)}"
        return cls(reason=reason, at=time.monotonic(), external=code == -signal.SIGKILL)


class Rank(Protocol):
    """A started rank."""

    number: int
    exited: threading.Event  # set after `exit`

    @property
    def exit(self) -> RankExit | None:
        """None while the rank runs."""
        ...

    @property
    def output(self) -> Sequence[str]:
        """The last lines of stderr, if known."""
        ...

    def write(self, data: bytes, seconds: float) -> None:
        """Send bytes of a command. Raises `TimeoutError` if the rank accepts none for `seconds`."""
        ...

    def stop(self, seconds: float) -> None:
        """Wait for the exit after a `StopCommand`; kill the process after `seconds`."""
        ...


class RankLauncher(Protocol):
    """Starts ranks."""

    @property
    def address(self) -> str:
        """The IP address of this machine at which the other ranks reach rank 0."""
        ...

    def start(self, numbers: Iterable[int], store: str) -> list[Rank]:
        """Start the ranks of these numbers. They meet at the store, for example "10.0.0.1:4711"."""
        ...

    def close(self) -> None:
        """Release what was reserved for ranks."""
        ...


class LocalRanks:
    """Ranks on this machine. All connections are on loopback."""

    address = LOOPBACK

    def start(self, numbers: Iterable[int], store: str) -> list[Rank]:
        return [_RankProcess(number, store) for number in numbers]

    def close(self) -> None:
        """Nothing is reserved."""


class _RankProcess:
    def __init__(self, number: int, store: str) -> None:
        self.number = number
        self.exit: RankExit | None = None
        self.exited = threading.Event()
        self._child = Child(python_command(RANK_MODULE, str(number), store), env=os.environ)
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def output(self) -> Sequence[str]:
        return self._child.last_lines

    def write(self, data: bytes, seconds: float) -> None:
        assert self._child.process.stdin is not None
        write_all(self._child.process.stdin.fileno(), data, seconds)

    def stop(self, seconds: float) -> None:
        self._child.wait(seconds)
        self._child.end()

    def _watch(self) -> None:
        self._child.wait()
        self.exit = RankExit.of(self._child.process.returncode)
        self.exited.set()


def write_all(descriptor: int, data: bytes, seconds: float) -> None:
    """Write to a pipe or socket. Raises `TimeoutError` if the reader accepts nothing for `seconds`."""
    os.set_blocking(descriptor, False)
    remaining = memoryview(data)
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    while remaining:
        if not poller.poll(seconds * 1000):
            raise TimeoutError("a rank reads no commands")
        remaining = remaining[os.write(descriptor, remaining) :]
