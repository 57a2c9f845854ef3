"""An environment host as a child process, for environments with their own Python interpreter.

The host listens on a free port, on loopback by default, and requires a token. It is restarted when it dies:
at once, or after a growing pause if it dies before it listens. It exits when its stdin closes, which also
happens when this process is killed.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from arpo.config import Config
from arpo.config.recipe import find_program, to_toml
from arpo.envs import wire
from arpo.envs.osworld.fork_server import PROVIDER_VARIABLES
from arpo.envs.remote import HostLost, Hosts, RemoteHost
from arpo.errors import UserError
from arpo.processes.environment import clean_environment

RECIPE, READY = "recipe.toml", "ready.json"
STDERR_LINES = 20
_POLL_SECONDS = 0.05
_PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)  # seconds before a restart, by failed starts in a row
_NAME = "the environment host of this run"


def start_child_host(config: Config) -> Hosts:
    """Start a host for the recipe's environments and wait until it listens.

    Raises UserError with the end of its stderr if it does not within `env.start_seconds`.
    """
    child = ChildHost(config)
    child.wait(config.env.start_seconds)
    return Hosts([RemoteHost(_NAME, child.address, child.token)], config.env, child.close)


class ChildHost:
    """Runs the host process and restarts it when it has died. Without a `token` it makes a random one.

    `failed_starts` counts the starts in a row without a host that listens.
    """

    def __init__(self, config: Config, listen: str = "127.0.0.1", token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(24)
        self._python = _interpreter(config)
        env = replace(config.env, hosts="", listen=f"{listen}:0")
        self._recipe = to_toml(replace(config, env=env))
        self._grace_seconds = config.env.step_seconds
        self._variables = PROVIDER_VARIABLES.get(config.osworld.provider, ())
        self.failed_starts = 0
        self._next: float | None = None  # time of the next restart, if the host has died
        self._is_closed = False
        try:
            self._process = self._spawn()
        except OSError as error:
            raise UserError(f"{self._python}: cannot be run: {error.strerror}") from error

    def wait(self, seconds: float) -> None:
        """Wait until the host listens. Raises UserError with the end of its stderr if it does not."""
        end = time.monotonic() + seconds
        while not self._process.is_ready:
            if not self._process.is_alive or time.monotonic() > end:
                self._process.close()
                raise UserError(
                    f"env.name: {_NAME} did not start with {self._python}: its output: {self._process.output}"
                )
            time.sleep(_POLL_SECONDS)

    def address(self) -> str:
        """Return the URL of the host. Raises HostLost while it has none. Restarts a dead host in time."""
        if self._is_closed:
            raise HostLost("start", f"{_NAME} has ended")
        if not self._process.is_alive:
            output = self._process.output
            raise HostLost("start", f"{_NAME} {self._restart()}; its output: {output}")
        if not self._process.is_ready:
            raise HostLost("start", f"{_NAME} does not listen yet")
        self.failed_starts = 0
        return self._process.address

    def close(self) -> None:
        """Stop the host and its environments. Garbage collection and the end of this process do the same."""
        self._is_closed = True
        self._process.close()

    def _restart(self) -> str:
        """Restart the dead host if its pause is over. Returns its state, for people."""
        at = self._plan_restart(failed=not self._process.is_ready) if self._next is None else self._next
        if (left := at - time.monotonic()) > 0:
            return f"died while it started, {self.failed_starts}x in a row; next start in {left:.0f} s"
        try:
            self._process, self._next = self._spawn(), None
        except OSError as error:
            self._plan_restart(failed=True)
            return f"cannot be restarted: {error.strerror}"
        return "died and is being restarted"

    def _plan_restart(self, *, failed: bool) -> float:
        """Count the end of a process. Returns the time of the next start."""
        self.failed_starts = self.failed_starts + 1 if failed else 0
        self._next = time.monotonic() + _PAUSES[min(self.failed_starts, len(_PAUSES) - 1)]
        return self._next

    def _spawn(self) -> HostProcess:
        return HostProcess(self._python, self._recipe, self.token, self._grace_seconds, self._variables)


class HostProcess:
    """One `arpo env-host` process. It exits when `close` closes its stdin.

    It gets only the environment variables that `clean_environment` allows, and those in `variables`.
    """

    def __init__(
        self, python: str, recipe: str, token: str, grace_seconds: float, variables: Sequence[str]
    ) -> None:
        self.address = ""
        self._tail: deque[str] = deque(maxlen=STDERR_LINES)
        self._folder = TemporaryDirectory(prefix="arpo-host-")
        folder = Path(self._folder.name)
        (folder / RECIPE).write_text(recipe, "utf-8")
        self._ready = folder / READY
        command = [python, "-m", "arpo", "env-host", str(folder / RECIPE)]
        self._process = subprocess.Popen(
            [*command, "--ready-file", str(self._ready), "--with-parent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**clean_environment(*variables), wire.TOKEN_VARIABLE: token},
            start_new_session=True,  # no Ctrl-C: a graceful stop still needs its desktops
        )
        self._reader = threading.Thread(target=_keep_tail, args=(self._process, self._tail), daemon=True)
        self._reader.start()
        self.close = weakref.finalize(self, _stop, self._process, grace_seconds)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        if not self.address:
            with suppress(FileNotFoundError):
                self.address = json.loads(self._ready.read_text("utf-8"))["address"]
                self._folder.cleanup()
        return bool(self.address)

    @property
    def output(self) -> str:
        """The last lines of stderr, joined into one."""
        if not self.is_alive:
            self._reader.join(1.0)
        return " | ".join(self._tail) or "none"


def _keep_tail(process: subprocess.Popen[bytes], tail: deque[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text := line.decode("utf-8", "replace").rstrip()[:500]:
            tail.append(text)


def _stop(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """Let the host close its environments; kill it if it has not exited after the grace period."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _interpreter(config: Config) -> str:
    """The Python to run: OSWorld has its own, all other environments use the current one."""
    if config.env.name != "osworld":
        return sys.executable
    python = find_program(config.osworld.python)
    if python is None:
        raise UserError(
            f"osworld.python = {config.osworld.python!r}: no such program: run `arpo osworld install`"
        )
    return python
