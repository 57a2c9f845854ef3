"""desktop-env's DesktopEnv without its surprises.

Booting is a call of its own, so that what was started can be stopped when the rest fails. A program is sent
once, because typing twice is not typing. A setup step that desktop-env would only log as failed raises. Two
metrics would run what a guest says as code: one is given a reader of literals instead, the other is refused.
Nothing here decides what an episode does.
"""

from __future__ import annotations

import ast
import functools
import logging
import sys
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
from desktop_env.evaluators import getters, metrics
from desktop_env.evaluators.metrics import basic_os
from desktop_env.providers.base import Provider

from arpo.envs.osworld.task_check import Vocabulary
from arpo.errors import EnvError, EnvTimeout

SETUP_LOG = "desktopenv.setup"
SAID_CHARACTERS = 300
CLEAN_AND_ANYWHERE = "docker"  # by this name a machine begins unused and its ports are asked for

# Steps that log each failed try and raise after the last; of `until` steps, so many failures are too many.
_TRY_AGAIN = frozenset({"download", "chrome_open_tabs", "chrome_close_tabs", "login"})
_UNTIL_FAILURES = 5


class Ear(logging.Handler):
    """Hears the errors that desktop-env logs, for messages of our own; keeps the latest and prints none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._heard: deque[tuple[str, str]] = deque(maxlen=50)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)
        self._heard.append((record.name, " ".join(text.split())[:SAID_CHARACTERS]))

    def forget(self) -> None:
        self._heard.clear()

    def heard(self, logger: str) -> list[str]:
        return [text for name, text in self._heard if name.startswith(logger)]

    def said(self) -> str:
        """The last thing, as the end of a message."""
        return f"; desktop-env said: {self._heard[-1][1]}" if self._heard else ""


class Controller(PythonController):
    """`answer` is what the guest answered to the latest program."""

    retry_times: int
    retry_interval: float

    def __init__(self, vm_ip: str, server_port: int) -> None:
        super().__init__(vm_ip=vm_ip, server_port=server_port)
        self.answer: Mapping[str, Any] = {}

    def execute_python_command(self, command: str) -> Mapping[str, Any]:
        with self._once():
            answer = super().execute_python_command(command)
        if answer is None:
            raise RuntimeError("the guest did not carry out a program")
        self.answer = answer
        return answer

    def alive(self) -> bool:
        """Whether the guest still shows its screen."""
        with self._once():
            return self.get_screenshot() is not None

    @contextmanager
    def _once(self) -> Iterator[None]:
        usual = self.retry_times, self.retry_interval
        self.retry_times, self.retry_interval = 1, 0
        try:
            yield
        finally:
            self.retry_times, self.retry_interval = usual


class Setup(SetupController):
    """`strict` until the task is set up. After the episode, what the model left may well make a step fail."""

    def __init__(self, ear: Ear, **known: Any) -> None:
        super().__init__(**known)
        self.strict = True
        self._ear = ear

    def setup(self, config: Sequence[Mapping[str, Any]], use_proxy: bool = False) -> bool:
        self.use_proxy = use_proxy
        where, key = ("start", "config") if self.strict else ("evaluate", "postconfig")
        for number, step in enumerate(config, 1):
            place = f"{key} step {number} of {len(config)} ({step['type']})"
            self._ear.forget()
            try:
                getattr(self, f"_{step['type']}_setup")(**step["parameters"])
            except Exception as error:
                raise EnvError(where, f"{place}: {error}") from error
            if self.strict and (failed := self._failed(step)):
                raise EnvError(where, f"{place}: {failed}")
        return True

    def _failed(self, step: Mapping[str, Any]) -> str:
        errors = self._ear.heard(SETUP_LOG)
        if not errors or step["type"] in _TRY_AGAIN:
            return ""
        if step["parameters"].get("until") and len(errors) < _UNTIL_FAILURES:
            return ""
        return errors[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What kind of machine to boot. `own` makes a provider that desktop-env does not have."""

    provider: str
    own: Callable[[], Provider] | None
    path: str
    region: str
    cache: Path
    screen: tuple[int, int]
    ready_seconds: float
    retry_interval: float | None  # between tries to read something; None: as desktop-env has it


class Machine(DesktopEnv):
    def __init__(self, plan: Plan, ear: Ear) -> None:
        self._plan = plan
        self._ear = ear

    def boot(self) -> None:
        with _provided_by(self._plan.own):
            super().__init__(
                provider_name=CLEAN_AND_ANYWHERE if self._plan.own else self._plan.provider,
                region=self._plan.region or None,
                path_to_vm=self._plan.path or None,
                action_space="pyautogui",
                cache_dir=str(self._plan.cache),
                screen_size=self._plan.screen,
                headless=True,
                require_a11y_tree=False,
            )

    def stop(self) -> None:
        """As far as it had come."""
        if getattr(self, "provider", None) is not None:
            self.provider.stop_emulator(getattr(self, "path_to_vm", None))

    def name(self) -> dict[str, Any]:
        """By which another process can stop it."""
        container = getattr(self.provider, "container", None)
        return {"path": self.path_to_vm, "container": getattr(container, "id", None)}

    def evaluate(self) -> Any:
        self.setup_controller.strict = False
        return super().evaluate()

    def _start_emulator(self) -> None:
        super()._start_emulator()
        self.controller = Controller(self.vm_ip, self.server_port)
        if self._plan.retry_interval is not None:
            self.controller.retry_interval = self._plan.retry_interval
        self.setup_controller = Setup(
            self._ear,
            vm_ip=self.vm_ip,
            server_port=self.server_port,
            chromium_port=self.chromium_port,
            vlc_port=self.vlc_port,
            cache_dir=self.cache_dir_base,
            client_password=self.client_password,
            screen_width=self.screen_width,
            screen_height=self.screen_height,
        )
        if self._plan.own is None:
            self._wait_for_guest()

    def _wait_for_guest(self) -> None:
        deadline = time.monotonic() + self._plan.ready_seconds
        while not self.controller.alive():
            if time.monotonic() > deadline:
                raise EnvTimeout("start", f"the guest shows no screen{self._ear.said()}")
            time.sleep(1.0)


def stop_by_name(plan: Plan, name: Mapping[str, Any]) -> None:
    _, provider = upstream.create_vm_manager_and_provider(plan.provider, plan.region or None)
    if name["container"]:
        provider.container = provider.client.containers.get(name["container"])
        with suppress(Exception):  # it runs
            provider.container.unpause()
    provider.stop_emulator(name["path"])


@contextmanager
def _provided_by(own: Callable[[], Provider] | None) -> Iterator[None]:
    """desktop-env asks one function for providers, by the names that it has."""
    usual = upstream.create_vm_manager_and_provider
    if own is not None:
        upstream.create_vm_manager_and_provider = lambda *_, **__: (None, own())
    try:
        yield
    finally:
        upstream.create_vm_manager_and_provider = usual


@functools.cache
def vocabulary() -> Vocabulary:
    methods = [name for name in dir(SetupController) if name.startswith("_") and name.endswith("_setup")]
    unusable = {"check_python_file_by_test_suite": "it runs files that the model wrote outside their sandbox"}
    if getattr(sys.modules.get("easyocr"), "__spec__", None) is None:  # something that stands in for it
        unusable["compare_image_text"] = "it needs easyocr, which is not installed: pip install easyocr"
    return Vocabulary(
        steps=frozenset(name.removeprefix("_").removesuffix("_setup") for name in methods),
        getters=frozenset(name.removeprefix("get_") for name in dir(getters) if name.startswith("get_")),
        metrics=frozenset(
            name for name in dir(metrics) if not name.startswith("_") and callable(getattr(metrics, name))
        ),
        unusable=unusable,
    )


# A metric reads a guest's list with Python's own evaluator; of all that, a list is a literal.
basic_os.eval = ast.literal_eval
