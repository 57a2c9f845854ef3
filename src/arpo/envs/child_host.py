"""An environment host as a child process, for environments with their own Python interpreter.

The host listens on a free port, on loopback by default, and requires a token. It is restarted when it dies or
hangs. It exits when its stdin closes, which also happens when this process is killed.
"""

from __future__ import annotations

import json
import secrets
import sys
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from arpo.config import Config, EnvConfig
from arpo.config.recipe import find_program, to_toml
from arpo.envs import wire
from arpo.envs.osworld.fork_server import PROVIDER_VARIABLES
from arpo.envs.remote import HostLost, Hosts, RemoteHost
from arpo.errors import UserError
from arpo.processes.child import Child, python_command
from arpo.processes.environment import clean_environment
from arpo.processes.supervisor import Supervised, Supervision, responds, wait_until_ready

RECIPE, READY = "recipe.toml", "ready.json"
CHECK_SECONDS = 10.0  # between two checks, and timeout of a check


def start_child_host(config: Config) -> Hosts:
    """Start a host for the recipe's environments and wait until it listens.

    Raises UserError with the end of its stderr if it does not within `env.start_seconds`.
    """
    child = ChildHost(config)
    child.wait()
    return Hosts([RemoteHost(child.name, child.address, child.token)], config.env, child.close)


def watch_of(config: EnvConfig) -> Supervision:
    return Supervision(start_seconds=config.start_seconds, check_seconds=CHECK_SECONDS)


class ChildHost:
    """Runs a host process and restarts it when it has died or hangs.

    `close` ends it with its environments. Garbage collection and the end of this process do the same.
    """

    def __init__(self, config: Config) -> None:
        self.token = secrets.token_urlsafe(24)
        self._program = HostProgram(config, "127.0.0.1", self.token)
        self.name = self._program.name
        self.watch = Supervised(self._program, watch_of(config.env))
        self.close = weakref.finalize(self, self.watch.close)

    def wait(self) -> None:
        """Wait until the host listens. Raises UserError with the end of its stderr if it does not."""
        try:
            wait_until_ready([self.watch])
        except BaseException:
            self.close()
            raise

    def address(self) -> str:
        """The URL of the host. Raises HostLost while it has none."""
        if self.watch.is_closed:
            raise HostLost("start", f"{self.name} has ended")
        if self.watch.state != "healthy":
            fault = f": {self.watch.fault}" if self.watch.fault else ""
            raise HostLost("start", f"{self.name} is starting{fault}")
        return self._program.url


class HostProgram:
    """`arpo env-host`, with the slots of env.parallel.

    It gets only the environment variables that `clean_environment` allows, and those of its provider.
    """

    name = "the environment host of this run"

    def __init__(self, config: Config, listen: str, token: str) -> None:
        self.url = ""
        self._config = config
        self._address = f"{listen}:0"
        self._recipe = to_toml(replace(config, env=replace(config.env, hosts="")))
        self._grace_seconds = config.env.step_seconds
        variables = PROVIDER_VARIABLES.get(config.osworld.provider, ())
        self._variables = {**clean_environment(*variables), wire.TOKEN_VARIABLE: token}
        self._headers = {"Authorization": f"Bearer {token}"}

    def start(self) -> Child:
        self.url = ""
        self._folder = TemporaryDirectory(prefix="arpo-host-")
        recipe, self._ready = (Path(self._folder.name, name) for name in (RECIPE, READY))
        recipe.write_text(self._recipe, "utf-8")
        words = ("env-host", str(recipe), "--listen", self._address, "--ready-file", str(self._ready))
        return Child(
            python_command("arpo", *words, "--with-parent", python=_interpreter(self._config)),
            env=self._variables,
            grace_seconds=self._grace_seconds,
        )

    def is_ready(self) -> bool:
        with suppress(FileNotFoundError):
            self.url = json.loads(self._ready.read_text("utf-8"))["address"]
            self._folder.cleanup()
        return bool(self.url)

    def is_healthy(self) -> bool:
        return responds(f"{self.url}/health", self._headers, CHECK_SECONDS)


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
