"""desktop-env's DesktopEnv with four changes.

1. Booting is a separate call: if it fails halfway, the started machine can still be stopped.
2. A program is sent once. desktop-env would retry it, and text would be typed twice.
3. A failed setup step raises. desktop-env would only log it.
4. Two metrics would run the guest's output as code. One gets a parser for literals, the other is disabled.
"""

from __future__ import annotations

import ast
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from desktop_env import desktop_env as upstream
from desktop_env.controllers.python import PythonController
from desktop_env.controllers.setup import SetupController
from desktop_env.desktop_env import DesktopEnv
from desktop_env.evaluators.metrics import basic_os
from desktop_env.providers.base import Provider

from arpo.envs.osworld.sandbox import Sandbox, SandboxSettings
from arpo.errors import EnvError, EnvTimeout, UserError

SETUP_LOG = "desktopenv.setup"
MAX_MESSAGE_CHARACTERS = 300
# For a provider of this name, desktop-env takes a new machine as unused and asks the provider for its ports.
FRESH_PROVIDER = "docker"
NO_VNC_PORT = 0  # desktop-env expects a VNC port and never uses it

# These steps log each failed attempt and raise after the last one.
_RETRYING_STEPS = frozenset({"download", "chrome_open_tabs", "chrome_close_tabs", "login"})
_MAX_UNTIL_FAILURES = 5  # with so many failed attempts, a step with `until` has failed


class ErrorRecorder(logging.Handler):
    """Keeps the latest errors in desktop-env's logs, for our own error messages. Prints nothing."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._errors: deque[tuple[str, str]] = deque(maxlen=50)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)
        self._errors.append((record.name, " ".join(text.split())[:MAX_MESSAGE_CHARACTERS]))

    def clear(self) -> None:
        self._errors.clear()

    def errors(self, logger: str) -> list[str]:
        """Messages of this logger and its children, oldest first."""
        return [text for name, text in self._errors if name.startswith(logger)]

    def suffix(self) -> str:
        """The latest error, to append to a message; "" if there is none."""
        return f"; last error of desktop-env: {self._errors[-1][1]}" if self._errors else ""


class GuestController(PythonController):
    """`answer` is the guest's response to the latest program."""

    retry_times: int
    retry_interval: float

    def __init__(self, vm_ip: str, server_port: int) -> None:
        super().__init__(vm_ip=vm_ip, server_port=server_port)
        self.answer: Mapping[str, Any] = {}

    def execute_python_command(self, command: str) -> Mapping[str, Any]:
        with self._no_retries():
            answer = super().execute_python_command(command)
        if answer is None:
            raise RuntimeError("the guest did not run the program")
        self.answer = answer
        return answer

    def alive(self) -> bool:
        """Whether the guest answers with a screenshot."""
        with self._no_retries():
            return self.get_screenshot() is not None

    @contextmanager
    def _no_retries(self) -> Iterator[None]:
        saved = self.retry_times, self.retry_interval
        self.retry_times, self.retry_interval = 1, 0
        try:
            yield
        finally:
            self.retry_times, self.retry_interval = saved


class CheckedSetup(SetupController):
    """Raises EnvError if a setup step fails.

    Logged errors count as failures only while `strict`: after an episode, the model's changes may cause them.
    """

    def __init__(self, recorder: ErrorRecorder, **settings: Any) -> None:
        super().__init__(**settings)
        self.strict = True
        self._recorder = recorder

    def setup(self, config: Sequence[Mapping[str, Any]], use_proxy: bool = False) -> bool:
        self.use_proxy = use_proxy
        where, key = ("start", "config") if self.strict else ("evaluate", "postconfig")
        for number, step in enumerate(config, 1):
            location = f"{key} step {number} of {len(config)} ({step['type']})"
            self._recorder.clear()
            try:
                getattr(self, f"_{step['type']}_setup")(**step["parameters"])
            except Exception as error:
                raise EnvError(where, f"{location}: {error}") from error
            if self.strict and (failure := self._failure(step)):
                raise EnvError(where, f"{location}: {failure}")
        return True

    def _failure(self, step: Mapping[str, Any]) -> str:
        errors = self._recorder.errors(SETUP_LOG)
        if not errors or step["type"] in _RETRYING_STEPS:
            return ""
        if step["parameters"].get("until") and len(errors) < _MAX_UNTIL_FAILURES:
            return ""
        return errors[-1]


class LocalProvider(Provider):
    """The light desktop as a desktop-env provider, without snapshots: every start begins with a fresh home.

    desktop-env's requests carry the guest's token because the `requests` library reads the file in the
    environment variable NETRC.
    """

    def __init__(self, settings: SandboxSettings, boot_seconds: float, netrc: Path) -> None:
        super().__init__()
        self._settings = settings
        self._boot_seconds = boot_seconds
        self._netrc = netrc
        self._sandbox: Sandbox | None = None

    def start_emulator(self, path_to_vm: str, headless: bool, os_type: str = "Ubuntu") -> None:
        self._sandbox = Sandbox(self._settings)
        self._sandbox.boot(self._boot_seconds)
        self._netrc.touch(mode=0o600)
        self._netrc.write_text(f"machine 127.0.0.1 login arpo password {self._sandbox.token}\n")
        os.environ["NETRC"] = str(self._netrc)

    def get_ip_address(self, path_to_vm: str) -> str:
        """address:server:chromium:vnc:vlc, the format of desktop-env's Docker provider."""
        assert self._sandbox is not None
        ports = self._sandbox.ports
        return f"127.0.0.1:{ports.server}:{ports.chromium}:{NO_VNC_PORT}:{ports.vlc}"

    def save_state(self, path_to_vm: str, snapshot_name: str) -> None:
        raise UserError("a light desktop has no snapshots: every start is fresh")

    def revert_to_snapshot(self, path_to_vm: str, snapshot_name: str) -> str:
        """Stops the desktop. desktop-env then calls `start_emulator`, which starts a fresh one."""
        self.stop_emulator(path_to_vm)
        return path_to_vm

    def stop_emulator(self, path_to_vm: str) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """`make_provider` creates a provider unknown to desktop-env; None selects `provider` by name."""

    provider: str
    make_provider: Callable[[], Provider] | None
    path: str
    region: str
    cache: Path
    screen: tuple[int, int]
    ready_seconds: float
    retry_interval: float | None  # seconds between attempts to read a file; None: desktop-env's default


class Machine(DesktopEnv):
    """One machine. The constructor starts nothing; `boot` does."""

    def __init__(self, settings: MachineSettings, recorder: ErrorRecorder) -> None:
        self._settings = settings
        self._recorder = recorder

    def boot(self) -> None:
        with _use_provider(self._settings.make_provider):
            super().__init__(
                provider_name=FRESH_PROVIDER if self._settings.make_provider else self._settings.provider,
                region=self._settings.region or None,
                path_to_vm=self._settings.path or None,
                action_space="pyautogui",
                cache_dir=str(self._settings.cache),
                screen_size=self._settings.screen,
                headless=True,
                require_a11y_tree=False,
            )

    def stop(self) -> None:
        """Also works after a failed `boot`."""
        if getattr(self, "provider", None) is not None:
            self.provider.stop_emulator(getattr(self, "path_to_vm", None))

    def identity(self) -> dict[str, Any]:
        """JSON from which another process can stop this machine: see `stop_machine`."""
        container = getattr(self.provider, "container", None)
        return {"path": self.path_to_vm, "container": getattr(container, "id", None)}

    def evaluate(self) -> Any:
        self.setup_controller.strict = False
        return super().evaluate()

    def _start_emulator(self) -> None:
        super()._start_emulator()
        self.controller = GuestController(self.vm_ip, self.server_port)
        if self._settings.retry_interval is not None:
            self.controller.retry_interval = self._settings.retry_interval
        self.setup_controller = CheckedSetup(
            self._recorder,
            vm_ip=self.vm_ip,
            server_port=self.server_port,
            chromium_port=self.chromium_port,
            vlc_port=self.vlc_port,
            cache_dir=self.cache_dir_base,
            client_password=self.client_password,
            screen_width=self.screen_width,
            screen_height=self.screen_height,
        )
        if self._settings.make_provider is None:
            self._wait_for_guest()

    def _wait_for_guest(self) -> None:
        deadline = time.monotonic() + self._settings.ready_seconds
        while not self.controller.alive():
            if time.monotonic() > deadline:
                raise EnvTimeout("start", f"the guest sends no screenshot{self._recorder.suffix()}")
            time.sleep(1.0)


def stop_machine(settings: MachineSettings, identity: Mapping[str, Any]) -> None:
    """Stops a machine of another process."""
    _, provider = upstream.create_vm_manager_and_provider(settings.provider, settings.region or None)
    if identity["container"]:
        provider.container = provider.client.containers.get(identity["container"])
        with suppress(Exception):  # it is not paused
            provider.container.unpause()
    provider.stop_emulator(identity["path"])


@contextmanager
def _use_provider(make_provider: Callable[[], Provider] | None) -> Iterator[None]:
    """Replaces desktop-env's provider factory, which only accepts the names of its own providers."""
    original = upstream.create_vm_manager_and_provider
    if make_provider is not None:
        upstream.create_vm_manager_and_provider = lambda *_, **__: (None, make_provider())
    try:
        yield
    finally:
        upstream.create_vm_manager_and_provider = original


# A metric calls eval() on a list from the guest. A parser for literals reads the list and runs no code.
basic_os.eval = ast.literal_eval
