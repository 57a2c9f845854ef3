"""One episode on a real desktop: boot it, set the task up, act, judge, stop. Every failure is typed.

A verdict is a number that upstream's evaluators gave while the guest was alive; anything else is an EnvError.
It stands until something is done, because judging may close applications. Where a provider can pause its
machine, it rests while the model thinks. Single use; one call at a time, from one thread.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arpo.actions import TERMINAL, Action, Finished, Wait, up_to_terminal
from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.osworld.local_provider import LocalProvider
from arpo.envs.osworld.machine import Ear, Machine, Plan, stop_by_name, vocabulary
from arpo.envs.osworld.needs import LOCAL, stage
from arpo.envs.osworld.sandbox import SandboxSettings
from arpo.envs.osworld.task_check import vet
from arpo.envs.osworld.worker import MACHINE_FILE
from arpo.envs.pyautogui_program import program
from arpo.errors import ArpoFault, EnvError, UserError
from arpo.types import Json, Task

PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
WAIT_SECONDS = 1.0  # of a Wait on a local desktop; elsewhere at least this
MISSING_FILE_SECONDS = 0.5  # a local guest answers at once; its file may still be on its way

# What pip calls the packages that desktop-env's providers import.
_PIP = {
    "alibabacloud_ecs20140526": "alibabacloud_ecs20140526",
    "alibabacloud_tea_openapi": "alibabacloud_tea_openapi",
    "alibabacloud_tea_util": "alibabacloud_tea_util",
    "azure": "azure-identity azure-mgmt-compute azure-mgmt-network",
    "boto3": "boto3",
    "botocore": "boto3",
    "docker": "docker",
    "volcenginesdkautoscaling": "volcengine-python-sdk",
    "volcenginesdkcore": "volcengine-python-sdk",
    "volcenginesdkecs": "volcengine-python-sdk",
}


class Desktop:
    """`folder` is this episode's own; `home` is where virtual machines and their registers are looked for."""

    def __init__(
        self, *, config: OSWorldConfig, env: EnvConfig, network: bool, folder: Path, home: Path
    ) -> None:
        self._config = config
        self._env = env
        self._network = network
        self._folder = folder
        self._home = home
        self._local = config.provider == LOCAL
        self._machine: Machine | None = None
        self._rest = Rest()
        self._func: Any = None
        self._verdict: float | None = None
        self._ear = Ear()
        logging.getLogger().addHandler(self._ear)

    def start(self, task: Task) -> bytes:
        """The first picture, when the task is set up."""
        with self._call("start"):
            vet(task, vocabulary())
            stage(task, Path(self._config.cache), self._folder / "cache")
            self._func = task.evaluator["func"]
            if not self._local:
                os.chdir(self._home)
            self._machine = Machine(self._plan(), self._ear)
            self._machine.boot()
            if not self._local:
                (self._folder / MACHINE_FILE).write_text(json.dumps(self._machine.name()))
        with self._call("start"), self._awake() as machine:
            picture = machine.reset(asdict(task))["screenshot"]
            if not self._local:
                time.sleep(self._config.pause)
                picture = machine.controller.get_screenshot()
            return self._png("start", picture)

    def step(self, actions: tuple[Action, ...]) -> bytes:
        """Carry the actions out, up to the first terminal one, which is noted as upstream notes it."""
        counted = up_to_terminal(actions)
        if not all(isinstance(action, Wait) for action in counted):
            self._verdict = None
        ends = bool(counted) and isinstance(counted[-1], TERMINAL)
        acts = counted[:-1] if ends else counted
        with self._call("step"), self._awake() as machine:
            if acts or not ends:
                picture = self._act(machine, acts)
            if ends:
                word = "DONE" if isinstance(counted[-1], Finished) else "FAIL"
                picture = machine.step(word, 0)[0]["screenshot"]
            return self._png("step", picture)

    def _act(self, machine: Machine, actions: tuple[Action, ...]) -> Any:
        pause = 0 if self._local else self._config.pause
        if actions == (Wait(),):
            # upstream pauses once for the action and once more before the picture
            return machine.step("WAIT", max(pause, WAIT_SECONDS) / 2)[0]["screenshot"]
        machine.controller.answer = {}
        picture = machine.step(unmistakable(program(actions)), pause)[0]["screenshot"]
        if machine.controller.answer.get("returncode", 0) != 0:
            error = str(machine.controller.answer.get("error", "")).strip().splitlines()
            raise EnvError("step", f"the guest could not act: {error[-1] if error else 'no reason given'}")
        return picture

    def evaluate(self) -> float:
        if self._verdict is None:
            with self._call("evaluate"), self._awake() as machine:
                self._verdict = self._judged(machine)
        return self._verdict

    def _judged(self, machine: Machine) -> float:
        self._ear.forget()
        try:
            value = machine.evaluate()
        except Exception as error:
            said = self._ear.said()
            self._expect_alive(machine)
            if isinstance(error, ArpoFault):
                raise
            raise EnvError("evaluate", f"{self._func}: {type(error).__name__}: {error}{said}") from error
        self._expect_alive(machine)
        if not hasattr(type(value), "__float__") or not 0.0 <= float(value) <= 1.0:
            raise EnvError("evaluate", f"{self._func}: gave {value!r}, not a number in [0, 1]")
        return float(value)

    def _expect_alive(self, machine: Machine) -> None:
        """What a dead guest cannot tell, evaluators take for a task that was not done."""
        if not machine.controller.alive():
            raise EnvError("evaluate", f"the desktop has died{self._ear.said()}{self._rest.said()}")

    def close(self) -> None:
        machine, self._machine = self._machine, None
        if machine is None:
            return
        self._ear.forget()
        with suppress(Exception):
            self._rest.end()
        with self._call("close"):
            machine.stop()
            self._expect_stopped()
            (self._folder / MACHINE_FILE).unlink(missing_ok=True)
        logging.getLogger().removeHandler(self._ear)

    def stop_left_behind(self, name: Json) -> None:
        """Stop the machine of a worker that died, by the note that it left."""
        with self._call("close"):
            os.chdir(self._home)
            stop_by_name(self._plan(), name)
            self._expect_stopped()

    def _expect_stopped(self) -> None:
        """A provider only logs that it could not stop its machine."""
        if errors := self._ear.heard("desktopenv.providers"):
            raise EnvError("close", errors[-1])

    @contextmanager
    def _call(self, where: str) -> Iterator[None]:
        """Whatever escapes is attributed to the call."""
        try:
            yield
        except ArpoFault:
            raise
        except UserError as error:
            raise EnvError(where, str(error)) from error
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            remedy = f": pip install {_PIP[package]}" if package in _PIP else ""
            raise EnvError(where, f"provider {self._config.provider!r}: {error}{remedy}") from error
        except Exception as error:
            said = f"{self._ear.said()}{self._rest.said()}"
            raise EnvError(where, f"{type(error).__name__}: {error}{said}") from error

    @contextmanager
    def _awake(self) -> Iterator[Machine]:
        if self._machine is None:
            raise RuntimeError("the desktop is not running")
        self._ear.forget()
        self._rest.end()
        yield self._machine
        self._rest.begin(self._machine.provider)

    def _plan(self) -> Plan:
        return Plan(
            provider=self._config.provider,
            own=self._sandboxed if self._local else None,
            path=LOCAL if self._local else self._config.machine,
            region=self._config.region,
            cache=self._folder / "cache",
            screen=(self._env.width, self._env.height),
            ready_seconds=self._env.start_seconds / 2,
            retry_interval=MISSING_FILE_SECONDS if self._local else None,
        )

    def _sandboxed(self) -> LocalProvider:
        settings = SandboxSettings(
            width=self._env.width,
            height=self._env.height,
            home_megabytes=self._config.home_megabytes,
            network=self._network,
        )
        return LocalProvider(settings, self._env.start_seconds / 2, self._folder / "netrc")

    def _png(self, where: str, picture: Any) -> bytes:
        if isinstance(picture, bytes) and picture.startswith(PNG_START) and picture.endswith(PNG_END):
            return picture
        what = "no screenshot" if picture is None else "a screenshot that is no whole PNG"
        raise EnvError(where, f"the guest gave {what}{self._ear.said()}")


def unmistakable(text: str) -> str:
    r"""The same program, in a spelling that desktop-env leaves alone.

    It rewrites what looks like pyautogui.press('<') or pyautogui.typewrite('…'), also inside of text that is
    to be typed. Programs of ours have neither outside of text, where one letter can be written by its number.
    """
    text = text.replace("pyautogui.typewrite(", r"pyautogui.type\x77rite(")
    for quote in "'\"":
        text = text.replace(f"pyautogui.press({quote}<", rf"pyautogui.pres\x73({quote}<")
    return text


class Rest:
    """Pauses the machine of a provider that can, or whose container can, as Docker's; else does nothing."""

    def __init__(self) -> None:
        self._resume: Callable[[], object] | None = None
        self._refusal = ""

    def begin(self, provider: Any) -> None:
        """A machine that cannot be paused runs on. Should it be broken, the next call fails and says both."""
        if self._refusal:
            return
        for holder in (provider, getattr(provider, "container", None)):
            pause = getattr(holder, "pause", None)
            resume = getattr(holder, "unpause", None) or getattr(holder, "resume", None)
            if callable(pause) and callable(resume):
                try:
                    pause()
                except Exception as error:
                    self._refusal = f"; earlier it could not be paused: {type(error).__name__}: {error}"
                else:
                    self._resume = resume
                return

    def said(self) -> str:
        """Why the machine never rested, as the end of a message."""
        return self._refusal

    def end(self) -> None:
        if self._resume is not None:
            resume, self._resume = self._resume, None
            resume()
