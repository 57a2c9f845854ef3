"""Environment hosts for tests: in this process, and as the command `arpo env-host`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

from arpo.config import EnvConfig
from arpo.envs.base import EnvFactory
from arpo.envs.host import hosting
from arpo.envs.listen import Listen
from arpo.envs.remote import Hosts, parse_hosts

FAKE = "arpo.testing:FakeEnv"
ANY_PORT = Listen(host="127.0.0.1", port=0)


@asynccontextmanager
async def hosted(
    factory: EnvFactory, settings: EnvConfig, token: str | None = None, *, lease_seconds: float = 60.0
) -> AsyncIterator[str]:
    async with hosting(
        factory, settings, token=token, listen=ANY_PORT, lease_seconds=lease_seconds
    ) as address:
        yield address


def hosts_at(settings: EnvConfig, *addresses: str) -> Hosts:
    return parse_hosts(replace(settings, hosts=",".join(addresses)))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition was not met in time")


class HostCommand:
    """An `arpo env-host …` process; it is listening when the constructor returns.

    `descriptors` is its limit of open files, soft and hard (None: as in this process).
    """

    def __init__(
        self, folder: Path, *words: str, stdin: int = subprocess.DEVNULL, descriptors: int | None = None
    ) -> None:
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "arpo", "env-host", *words, "--ready-file", str(ready)]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *command]
        with NamedTemporaryFile(dir=folder, delete=False) as stderr:  # a full pipe would block the host
            self.process = subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self._stderr_file = Path(stderr.name)
        while not ready.exists():
            assert self.process.poll() is None, self.end()
            time.sleep(0.02)
        self.address: str = json.loads(ready.read_text("utf-8"))["address"]

    @property
    def port(self) -> str:
        return self.address.rpartition(":")[2]

    @property
    def stderr(self) -> str:
        return self._stderr_file.read_text("utf-8")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> tuple[int, str, str]:
        """Send a signal and return exit code, stdout and stderr."""
        if self.process.poll() is None:
            self.send(number)
        stdout, _ = self.process.communicate(timeout=60)
        return self.process.returncode, stdout, self.stderr
