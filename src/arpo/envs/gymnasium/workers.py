"""Worker processes of Gymnasium environments, reused from episode to episode.

A worker that crashes, hangs or reports an error ends with its episode. All processes that it has started,
such as browsers, end with it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory
from typing import Any

from arpo.envs.gymnasium import worker
from arpo.envs.osworld import messages
from arpo.errors import EnvError
from arpo.processes.child import Child
from arpo.processes.environment import without_secrets

GRACE_SECONDS = 3.0  # for closing the environment
EXIT_SECONDS = 10.0  # between the end of a worker's connection and its exit code


class Worker:
    """One process. A call that is cancelled leaves it busy: it cannot be used again."""

    def __init__(self, python: str, temporary: str) -> None:
        self._connection, other = socket.socketpair()
        with other:
            self._child = Child(
                [python, worker.__file__, str(other.fileno())],
                env={**without_secrets(), "TMPDIR": temporary},
                guarded=True,
                grace_seconds=GRACE_SECONDS,
                pass_fds=[other.fileno()],
            )
        self._connection.setblocking(False)
        self.usable = True

    async def call(self, name: str, **values: Any) -> tuple[Mapping[str, Any], bytes]:
        """Answer and PNG. Raises EnvError if the environment reports an error or the process has died."""
        self.usable = False
        try:
            answer, png = await messages.call_socket(self._connection, {"call": name, **values})
        except (OSError, EOFError, messages.InvalidMessage) as error:
            raise EnvError(name, await asyncio.to_thread(self._describe_end)) from error
        self._accept(name, answer)
        return answer, png

    def check(self, seconds: float, **values: Any) -> None:
        """The call "check", for callers without an event loop."""
        self.usable = False
        self._connection.settimeout(seconds)
        try:
            messages.send(self._connection, {"call": "check", **values})
            answer, _ = messages.receive(self._connection)
        except TimeoutError:
            raise EnvError("check", f"no answer within {seconds:g} s (env.start_seconds)") from None
        except (OSError, EOFError, messages.InvalidMessage) as error:
            raise EnvError("check", self._describe_end()) from error
        self._accept("check", answer)
        self._connection.setblocking(False)

    def _accept(self, name: str, answer: Mapping[str, Any]) -> None:
        if fault := answer.get("error"):
            raise EnvError(name, fault["message"], fault["place"])
        self.usable = True

    def end(self) -> None:
        """Close the environment and end the process, within some seconds. A second call does nothing."""
        self.usable = False
        self._connection.close()
        self._child.end()

    def _describe_end(self) -> str:
        self._child.wait(EXIT_SECONDS)
        return f"the worker died: {self._child.exit_reason}; its last output: {self._child.last_output}"


class Workers:
    """Makes workers, and keeps those that an episode has left usable.

    They have a folder for temporary files: a browser that is killed leaves its profile there.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        self._temporary = TemporaryDirectory(prefix="arpo-gymnasium-", ignore_cleanup_errors=True)
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()

    def take(self) -> Worker:
        found = self._idle.pop() if self._idle else Worker(self._python, self._temporary.name)
        self._all.add(found)
        return found

    def give_back(self, one: Worker) -> bool:
        """Whether the worker is kept. Otherwise the caller ends it."""
        if one.usable and one in self._all:
            self._idle.append(one)
            return True
        self._all.discard(one)
        return False

    def close(self) -> None:
        ended, self._all, self._idle = self._all, set(), []
        with ThreadPoolExecutor(max(1, len(ended))) as threads:
            list(threads.map(Worker.end, ended))
        self._temporary.cleanup()
