"""One server process under its guard, with its log."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from arpo.processes import guard

_KILL_SECONDS = 20.0  # for the guard to end all processes after the grace period
_TAIL_BYTES = 65536
_TAIL_LINES = 5
# "(EngineCore pid=7) ERROR 11-16 09:53:43 [core.py:12] ValueError: too small"
_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) )?((ERROR|WARNING|INFO) [\d-]+ [\d:]+ \[[^\]]*\] )?")
_ERROR = re.compile(r"^[\w.]*(Error|Exception|error)\b:? ")


class ServerProcess:
    """A running server. `stop` ends it with all of its processes; so does the end of this process."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, grace_seconds: float
    ) -> None:
        self.log, self._grace_seconds = log, grace_seconds
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._log_start = output.tell()
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(grace_seconds), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # no Ctrl-C: the supervisor stops its servers in order
            )

    @property
    def exit_reason(self) -> str | None:
        """None while the server runs. Examples: "exit code 1", "killed by SIGKILL"."""
        code = self._guard.poll()
        if code is None:
            return None
        if code < 0:
            self._end_group()
        number = -code if code < 0 else code - 128
        with suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
        return f"exit code {code}"

    async def stop(self) -> None:
        """End the server with all of its processes. It has `grace_seconds` for a clean exit."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            await asyncio.to_thread(self._guard.wait, self._grace_seconds + _KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            await asyncio.to_thread(self._guard.wait)
            self._end_group()

    def last_errors(self) -> str:
        """The last error messages in the log since this start, or its last lines, joined into one line."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        lines = [_PREFIX.sub("", line).strip() for line in text.splitlines()]
        errors = list(dict.fromkeys(line for line in lines if _ERROR.match(line)))
        shown = errors or list(filter(None, lines))
        return " | ".join(line[:500] for line in shown[-_TAIL_LINES:]) or "none"

    def _end_group(self) -> None:
        """Without its guard, kill what is left of the server. All processes are in the guard's group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guard.pid, signal.SIGKILL)
