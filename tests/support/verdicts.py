"""Desk with verdicts that a test wrote down, and environments that break, for the tests of the loops."""

from __future__ import annotations

import asyncio
import io
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from arpo.actions import Action
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.envs.base import Env
from arpo.envs.desk.env import DeskEnv
from arpo.envs.osworld.desktop_env_names import KnownNames
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.testing import FailingEnv, LyingEnv, Times
from arpo.types import Observation, Screenshot, StepResult, Task
from installed import install_desktop
from pngs import corrupt

A, B, C, D = "pool-001", "pool-010", "pool-013", "pool-021"
HELDOUT = "heldout-006"


class Scripted(DeskEnv):
    """Each task's episodes score what `script` says for it, in the order in which they end; then 0."""

    script: ClassVar[dict[str, list[float]]] = {}

    async def evaluate(self) -> float:
        left = self.script.get(self.task.id)
        return left.pop(0) if left else 0.0

    @classmethod
    def play(cls, script: Mapping[str, Sequence[float]]) -> None:
        cls.script = {task: list(scores) for task, scores in script.items()}


class Fragile(Scripted):
    """Breaks at every step of task A."""

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        if self.task.id == A:
            raise RuntimeError("the screen went dark")
        return await super().step(actions)


class Stuck(Scripted):
    """The first two training episodes of task A never end: they hang in their first step."""

    started: ClassVar[int] = 0
    closed: ClassVar[int] = 0

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        if self.task.id == A:
            Stuck.started += 1
            if Stuck.started in (2, 3):  # the first episode is that of the base evaluation
                try:
                    await asyncio.Event().wait()
                finally:
                    Stuck.closed += 1
        return await super().step(actions)


class Slow(Scripted):
    """The first group of two of the task `slow` ends when `overtaken` is set."""

    slow: ClassVar[str] = A
    overtaken: ClassVar[asyncio.Event]
    scored: ClassVar[int] = 0  # episodes of this task that were to be evaluated

    async def evaluate(self) -> float:
        if self.task.id == Slow.slow:
            Slow.scored += 1
            if Slow.scored in (2, 3):  # the first episode is that of the base evaluation
                await Slow.overtaken.wait()
        return await super().evaluate()


class Reachable(Scripted):
    """Starts `starts` more times, then no more; `starts` counts down over all environments."""

    starts: ClassVar[float] = math.inf

    async def start(self, task: Task) -> Observation:
        Reachable.starts -= 1
        if Reachable.starts < 0:
            raise OSError("no display")
        return await super().start(task)


class Corrupting(Scripted):
    """Every 11th screenshot of all environments together is corrupt; `shown` counts them all."""

    shown: ClassVar[int] = 0

    def _observe(self) -> Observation:
        observation = super()._observe()
        Corrupting.shown += 1
        if Corrupting.shown % 11:
            return observation
        return Observation(screenshot=Screenshot.of(corrupt(observation.screenshot.png)))


class Photographic(Scripted):
    """Screenshots like those of a real desktop: RGB, above the size at which the store encodes them."""

    def _observe(self) -> Observation:
        screen = Image.open(io.BytesIO(super()._observe().screenshot.png)).convert("RGB")
        noise = np.random.default_rng(0).integers(0, 256, (80, screen.width, 3), np.uint8)
        screen.paste(Image.fromarray(noise), (0, screen.height - 80))
        buffer = io.BytesIO()
        screen.save(buffer, "PNG")
        return Observation(screenshot=Screenshot.of(buffer.getvalue()))


class Chaos:
    """How many steps still raise."""

    steps = Times(0)


def failing_at_first() -> Env:
    return FailingEnv(Scripted(), "step", Chaos.steps)


def lying() -> Env:
    return LyingEnv(Scripted(), None)


def select(path: Path, source: str, tasks: Sequence[str]) -> str:
    """A selection of a shipped list, written to `path`."""
    counts = {task: {"successes": 1, "rollouts": 2} for task in tasks}
    path.write_text(json.dumps({"source": source, "tasks": counts}), "utf-8")
    return str(path)


@cache
def shipped_list(name: str) -> dict[str, dict[str, Any]]:
    """The tasks of a shipped list, by id."""
    tasks = json.loads((files("arpo") / f"envs/desk/tasks/{name}.json").read_text("utf-8"))
    return {task["id"]: task for task in tasks}


def select_few(path: Path, name: str, tasks: Sequence[str]) -> str:
    """A selection of a short list with the same tasks: each start of a run reads it much faster."""
    short = path.with_name(f"{path.stem}-tasks.json")
    short.write_text(json.dumps([shipped_list(name)[task] for task in tasks]), "utf-8")
    return select(path, short.name, tasks)


def small_config(folder: Path, train: Sequence[str], *overrides: str, env: str = "Scripted") -> Config:
    """One step an episode, one held-out task, one rollout a task in evaluation, one update a batch."""
    from clicking_model import clicking_model  # here: hosts of these environments need no torch

    settings = {
        "model.path": clicking_model(),
        "run.dir": str(folder / "run"),
        "run.threads": "1",
        "env.name": f"verdicts:{env}",
        "tasks.train": select_few(folder / "train.json", "pool", train),
        "tasks.heldout": select_few(folder / "heldout.json", "heldout", [HELDOUT]),
        "rollout.max_steps": "1",
        "train.epochs": "1",
        "train.tasks_per_batch": "2",
        "train.tasks_per_update": "2",
        "loss.format_weight": "0",
        "loss.kl": "0",
        "eval.every": "0",
        "eval.rollouts": "1",
        "eval.heldout_rollouts": "1",
        "store.tensorboard": "false",
    }
    return load_config("desk", [*(f"--{key}={value}" for key, value in settings.items()), *overrides])


def without_evaluator(folder: Path, *tasks: str) -> None:
    """Change the tasks of `small_config`."""
    path = folder / "train-tasks.json"
    entries = json.loads(path.read_text("utf-8"))
    changed = [one | {"evaluator": {"func": "none"}} if one["id"] in tasks else one for one in entries]
    path.write_text(json.dumps(changed), "utf-8")


DESK_NAMES = KnownNames(
    steps=frozenset({"world", "open"}),
    getters=frozenset({"desk_world", "rule"}),
    metrics=frozenset({"desk_state", "infeasible"}),
    unusable={},
)
NO_VS_CODE = (
    "needs VS Code, which light desktops do not have: run it on a virtual machine, for example with "
    'osworld.provider = "docker"'
)


def osworld_config(
    patch: pytest.MonkeyPatch, folder: Path, apps: Mapping[str, str], *overrides: str
) -> Config:
    """Under the name of osworld the same small desktops; each task says which application it needs."""
    tasks = [shipped_list("pool")[task] | {"related_apps": [app]} for task, app in apps.items()]
    (folder / "osworld.json").write_text(json.dumps(tasks), "utf-8")
    patch.setattr("arpo.envs.osworld.runnable.names_for", lambda env, osworld: DESK_NAMES)
    install_desktop(patch, folder / "programs")
    patch.setattr("arpo.rollout.player.open_pool", lambda config: EnvPool(LocalEnvs(Scripted, 1), config.env))
    settings = ("--env.name=osworld", f"--tasks.train={folder / 'osworld.json'}", "--tasks.heldout=")
    return small_config(folder, [A], *settings, *overrides)
