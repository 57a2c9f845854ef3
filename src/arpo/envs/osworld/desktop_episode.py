"""One episode on a real desktop: boot, set up the task, act, evaluate, stop. Every failure is an EnvError.

A score is a number in [0, 1] from desktop-env's evaluators; it counts only if the guest is still alive. It is
kept until the next action, because evaluation may close applications. Between calls the machine is paused, if
its provider supports pausing. Single use; one call at a time, from one thread.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from arpo.actions import TERMINAL, Action, Finished, Wait, up_to_terminal
from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.answers import ANSWER, answer_in, answer_score
from arpo.envs.osworld.desktop_env_names import check_task, installed_names
from arpo.envs.osworld.limits import HOME_MEGABYTES, Limits
from arpo.envs.osworld.machine import ErrorRecorder, LocalProvider, Machine, MachineSettings, stop_machine
from arpo.envs.osworld.messages import MACHINE_FILE
from arpo.envs.osworld.needs import LOCAL, stage_files
from arpo.envs.osworld.sandbox import SandboxSettings
from arpo.envs.pyautogui_program import program
from arpo.errors import ArpoFault, EnvError, UserError
from arpo.types import Json, Task

PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
WAIT_SECONDS = 1.0  # duration of a Wait on a local desktop; minimum elsewhere
MISSING_FILE_SECONDS = 0.5  # a local guest answers at once, but an application may still write the file


class DesktopEpisode:
    """`folder` is private to the episode. desktop-env looks for virtual machines in `home`."""

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
        self._pauser = Pauser()
        self._task: Task | None = None
        self._answer: str | None = None
        self._func: Any = None
        self._score: float | None = None
        self._recorder = ErrorRecorder()
        logging.getLogger().addHandler(self._recorder)

    def start(self, task: Task) -> bytes:
        """The first screenshot, as PNG bytes, once the task is set up."""
        with self._call("start"):
            check_task(task, installed_names())
            stage_files(task, Path(self._config.cache), self._folder / "cache")
            self._task, self._func = task, task.evaluator["func"]
            if not self._local:
                os.chdir(self._home)
            self._machine = Machine(self._machine_settings(), self._recorder)
            self._machine.boot()
            if not self._local:
                (self._folder / MACHINE_FILE).write_text(json.dumps(self._machine.identity()))
        with self._call("start"), self._running() as machine:
            screenshot = machine.reset(asdict(_for_desktop_env(task)))["screenshot"]
            if not self._local:
                time.sleep(self._config.pause)
                screenshot = machine.controller.get_screenshot()
            return self._png("start", screenshot)

    def step(self, actions: tuple[Action, ...]) -> bytes:
        """Runs the actions up to the first terminal one, which desktop-env records as DONE or FAIL."""
        played = up_to_terminal(actions)
        if not all(isinstance(action, Wait) for action in played):
            self._score = None
        for action in played:
            self._answer = answer_in(action, self._answer)
        ends = bool(played) and isinstance(played[-1], TERMINAL)
        inputs = played[:-1] if ends else played
        with self._call("step"), self._running() as machine:
            if inputs or not ends:
                screenshot = self._act(machine, inputs)
            if ends:
                outcome = "DONE" if isinstance(played[-1], Finished) else "FAIL"
                screenshot = machine.step(outcome, 0)[0]["screenshot"]
            return self._png("step", screenshot)

    def _act(self, machine: Machine, actions: tuple[Action, ...]) -> Any:
        pause = 0 if self._local else self._config.pause
        match actions:
            case (Wait(seconds=seconds),):
                # desktop-env pauses twice: for the action and before the screenshot
                duration = max(pause, WAIT_SECONDS if seconds is None else seconds)
                return machine.step("WAIT", duration / 2)[0]["screenshot"]
        machine.controller.answer = {}
        screenshot = machine.step(prevent_rewriting(program(actions)), pause)[0]["screenshot"]
        if machine.controller.answer.get("returncode", 0) != 0:
            error = str(machine.controller.answer.get("error", "")).strip().splitlines()
            raise EnvError("step", f"the guest's program failed: {error[-1] if error else 'no reason given'}")
        return screenshot

    def evaluate(self) -> float:
        if self._score is None:
            with self._call("evaluate"), self._running() as machine:
                self._score = self._evaluate(machine)
        return self._score

    def _evaluate(self, machine: Machine) -> float:
        self._recorder.clear()
        try:
            if self._func == ANSWER and self._task is not None:
                value: Any = answer_score(self._task, self._answer)
            else:
                value = machine.evaluate()
        except Exception as error:
            suffix = self._recorder.suffix()
            self._check_alive(machine)
            if isinstance(error, ArpoFault):
                raise
            raise EnvError("evaluate", f"{self._func}: {type(error).__name__}: {error}{suffix}") from error
        self._check_alive(machine)
        if not hasattr(type(value), "__float__") or not 0.0 <= float(value) <= 1.0:
            raise EnvError("evaluate", f"{self._func}: returned {value!r}, not a number in [0, 1]")
        return float(value)

    def _check_alive(self, machine: Machine) -> None:
        """Evaluators score a dead guest like an unsolved task."""
        if not machine.controller.alive():
            raise EnvError(
                "evaluate", f"the desktop has died{self._recorder.suffix()}{self._pauser.suffix()}"
            )

    def close(self) -> None:
        machine, self._machine = self._machine, None
        if machine is None:
            return
        self._recorder.clear()
        with suppress(Exception):
            self._pauser.resume()
        with self._call("close"):
            machine.stop()
            self._check_stopped()
            (self._folder / MACHINE_FILE).unlink(missing_ok=True)
        logging.getLogger().removeHandler(self._recorder)

    def stop_orphaned_machine(self, identity: Json) -> None:
        """Stops the machine of a crashed worker. `identity` is the content of its MACHINE_FILE."""
        with self._call("close"):
            os.chdir(self._home)
            stop_machine(self._machine_settings(), identity)
            self._check_stopped()

    def _check_stopped(self) -> None:
        """Providers only log an error if they cannot stop their machine."""
        if errors := self._recorder.errors("desktopenv.providers"):
            raise EnvError("close", errors[-1])

    @contextmanager
    def _call(self, where: str) -> Iterator[None]:
        """Turns every error of the block into an EnvError of the call `where`."""
        try:
            yield
        except ArpoFault:
            raise
        except UserError as error:
            raise EnvError(where, str(error)) from error
        except ModuleNotFoundError as error:
            remedy = f"install it with {sys.executable} -m pip"
            raise EnvError(where, f"provider {self._config.provider!r}: {error}; {remedy}") from error
        except Exception as error:
            suffix = f"{self._recorder.suffix()}{self._pauser.suffix()}"
            raise EnvError(where, f"{type(error).__name__}: {error}{suffix}") from error

    @contextmanager
    def _running(self) -> Iterator[Machine]:
        """Resumes the machine for the block and pauses it afterwards."""
        if self._machine is None:
            raise RuntimeError("the desktop is not running")
        self._recorder.clear()
        self._pauser.resume()
        yield self._machine
        self._pauser.pause(self._machine.provider)

    def _machine_settings(self) -> MachineSettings:
        return MachineSettings(
            provider=self._config.provider,
            make_provider=self._local_provider if self._local else None,
            path=LOCAL if self._local else self._config.machine,
            region=self._config.region,
            cache=self._folder / "cache",
            screen=(self._env.width, self._env.height),
            ready_seconds=self._env.start_seconds / 2,
            retry_interval=MISSING_FILE_SECONDS if self._local else None,
        )

    def _local_provider(self) -> LocalProvider:
        settings = SandboxSettings(
            width=self._env.width,
            height=self._env.height,
            home_megabytes=HOME_MEGABYTES,
            network=self._network,
            limits=Limits.of(self._config),
        )
        return LocalProvider(settings, self._env.start_seconds / 2, self._folder / "netrc")

    def _png(self, where: str, screenshot: Any) -> bytes:
        if (
            isinstance(screenshot, bytes)
            and screenshot.startswith(PNG_START)
            and screenshot.endswith(PNG_END)
        ):
            return screenshot
        problem = "no screenshot" if screenshot is None else "a screenshot that is not a complete PNG"
        raise EnvError(where, f"the guest sent {problem}{self._recorder.suffix()}")


def _for_desktop_env(task: Task) -> Task:
    """desktop-env looks the evaluator up at the start. It lacks "answer", checked here, and "none"."""
    own = task.evaluator["func"] == ANSWER or not task.has_evaluator
    return replace(task, evaluator={"func": "infeasible"}) if own else task


def prevent_rewriting(text: str) -> str:
    r"""An equivalent program, safe from desktop-env's rewriting.

    desktop-env rewrites pyautogui.press('<') and pyautogui.typewrite('…') everywhere, even inside text to be
    typed. Our programs contain them only inside string literals, so one letter can be escaped:
    "pyautogui.press('<" becomes "pyautogui.pres\x73('<".
    """
    text = text.replace("pyautogui.typewrite(", r"pyautogui.type\x77rite(")
    for quote in "'\"":
        text = text.replace(f"pyautogui.press({quote}<", rf"pyautogui.pres\x73({quote}<")
    return text


class Pauser:
    """Pauses a machine if its provider, or the provider's Docker container, can do it. Else does nothing."""

    def __init__(self) -> None:
        self._resume: Callable[[], object] | None = None
        self._failure = ""

    def pause(self, provider: Any) -> None:
        """A failed pause is no error: the machine continues to run. `suffix` reports it."""
        if self._failure:
            return
        for target in (provider, getattr(provider, "container", None)):
            pause = getattr(target, "pause", None)
            resume = getattr(target, "unpause", None) or getattr(target, "resume", None)
            if callable(pause) and callable(resume):
                try:
                    pause()
                except Exception as error:
                    self._failure = f"; an earlier pause failed: {type(error).__name__}: {error}"
                else:
                    self._resume = resume
                return

    def suffix(self) -> str:
        """The reason of a failed pause, to append to a message; "" if there was none."""
        return self._failure

    def resume(self) -> None:
        if self._resume is not None:
            resume, self._resume = self._resume, None
            resume()
