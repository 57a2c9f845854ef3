"""An environment host of our own: a child process that lives as long as the run does.

For environments that cannot share the trainer's interpreter. Loopback, a free port, a token made for it;
started again when it dies. It ends when its stdin does: with this process, however that ends.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from arpo.config import Config
from arpo.envs import wire
from arpo.envs.remote import HostLost, Hosts, RemoteHost
from arpo.errors import UserError
from arpo.recipe import to_toml

RECIPE, READY = "recipe.toml", "ready.json"
LINES_KEPT = 20
_LOOK_AGAIN = 0.05
_SECRETS = ("OPENAI_API_KEY", "WANDB_API_KEY", "HF_TOKEN")  # no business of a desktop's host
_NAME = "the environment host of this run"


def start_child_host(config: Config) -> Hosts:
    """Start a host for the recipe's environments and wait until it listens."""
    child = ChildHost(config)
    child.wait(config.env.start_seconds)
    return Hosts([RemoteHost(_NAME, child.address, child.token)], config.env)


class ChildHost:
    """The process, and the one that follows it if it dies."""

    def __init__(self, config: Config) -> None:
        self.token = secrets.token_urlsafe(24)
        self._python = _interpreter(config)
        env = replace(config.env, hosts="", listen="127.0.0.1:0")
        self._recipe = to_toml(replace(config, env=env))
        self._patience = config.env.step_seconds
        try:
            self._process = self._begin()
        except OSError as error:
            raise UserError(f"{self._python}: cannot be run: {error.strerror}") from error

    def wait(self, seconds: float) -> None:
        """Return when it listens; where it does not come up, say what it said."""
        end = time.monotonic() + seconds
        while not self._process.is_ready:
            if not self._process.is_alive or time.monotonic() > end:
                self._process.close()
                raise UserError(
                    f"env.name: {_NAME} did not come up with {self._python}: {self._process.said}"
                )
            time.sleep(_LOOK_AGAIN)

    def address(self) -> str:
        """Where it listens; HostLost where it does not yet, or has to be started again."""
        if not self._process.is_alive:
            said = self._process.said
            try:
                self._process = self._begin()
            except OSError as error:
                raise HostLost("start", f"{_NAME} cannot be started again: {error.strerror}") from error
            raise HostLost("start", f"{_NAME} ended and is started again; it said: {said}")
        if not self._process.is_ready:
            raise HostLost("start", f"{_NAME} does not listen yet")
        return self._process.address

    def close(self) -> None:
        """End it, and with it every environment; without this call it ends with this object or process."""
        self._process.close()

    def _begin(self) -> HostProcess:
        return HostProcess(self._python, self._recipe, self.token, self._patience)


class HostProcess:
    """One `arpo env-host` with our hand on its stdin."""

    def __init__(self, python: str, recipe: str, token: str, patience: float) -> None:
        self.address = ""
        self._tail: deque[str] = deque(maxlen=LINES_KEPT)
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
            env={
                **{name: value for name, value in os.environ.items() if name not in _SECRETS},
                wire.TOKEN: token,
            },
            start_new_session=True,  # Ctrl-C is for us: a run that stops gently still needs its desktops
        )
        self._reader = threading.Thread(target=_keep_tail, args=(self._process, self._tail), daemon=True)
        self._reader.start()
        self.close = weakref.finalize(self, _end, self._process, patience)

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
    def said(self) -> str:
        """The end of its stderr, on one line."""
        if not self.is_alive:
            self._reader.join(1.0)
        return " | ".join(self._tail) or "nothing"


def _keep_tail(process: subprocess.Popen[bytes], tail: deque[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text := line.decode("utf-8", "replace").rstrip()[:500]:
            tail.append(text)


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """Let it close its environments; one that does not end is killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _interpreter(config: Config) -> str:
    """Real desktops have one of their own; everything else runs in ours."""
    if config.env.name != "osworld":
        return sys.executable
    python = config.osworld.python
    if which(python) is None:
        raise UserError(f"osworld.python = {python!r}: no such program: `make osworld` installs it")
    return python
