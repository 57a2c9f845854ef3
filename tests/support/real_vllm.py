"""Real vLLM servers on the CPU, for tests. They can be killed, stopped and started again."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from arpo.config import Config
from arpo.serving.vllm_server import find_server, link_package

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
_START_SECONDS, _STOP_SECONDS = 900.0, 20.0


class RealServer:
    """One server for the model of a recipe, on a free port."""

    def __init__(self, config: Config, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"server-{port}.log"
        server = find_server(config)
        self._command = server.command("127.0.0.1", port)
        self._environment = server.environment(link_package(folder), "", "")
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until the server is healthy."""
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            time.sleep(0.2)
        pytest.fail(f"the server did not start: {self.log.read_text('utf-8', 'replace')[-4000:]}")

    def sampled(self) -> float:
        """Number of tokens sampled since the start."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            found = re.search(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)$", answer.read().decode(), re.M)
        return float(found[1]) if found else 0.0

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the server."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End the server in order: a killed one leaves its shared memory behind."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self.kill()


@contextmanager
def real_servers(configs: Sequence[Config], folder: Path) -> Iterator[list[RealServer]]:
    if not PYTHON.exists():
        pytest.fail("vLLM is not installed: make vllm")
    servers: list[RealServer] = []
    try:
        for config in configs:
            servers.append(RealServer(config, folder))
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.stop()
