"""Environments of OpenEnv servers: `env.name = "openenv:http://HOST:PORT#mapping.toml"`.

Each episode is a session of its own. The score is the last reward, clipped to [0, 1], or the sum of all
rewards if the mapping file says so. An action without a template in the mapping file does nothing; one line
of the log names all of them.
"""

from __future__ import annotations

import base64
import binascii
import io
import logging
import math
from typing import Any

import numpy as np
from PIL import Image

from arpo.actions import TERMINAL, Action, Wait, up_to_terminal
from arpo.envs.base import Env
from arpo.envs.openenv.mapping import ScreenMapping, read_mapping
from arpo.envs.openenv.server import RESET, Server, Session, parse_address
from arpo.errors import ActionRefused, EnvError, UserError
from arpo.png import rgb
from arpo.types import Observation, Screenshot, StepResult, Task, screen_fault

_log = logging.getLogger(__name__)

Json = dict[str, Any]


class OpenEnvs:
    """Makes environments of one server. Reads the mapping file and compares it with the server's schema."""

    def __init__(self, name: str) -> None:
        self._server, file = parse_address("env.name", name)
        schema = self._server.schema()
        if not file:
            fields = {
                part: ", ".join(schema[part].get("properties", {})) for part in ("observation", "action")
            }
            raise UserError(
                f"env.name = {name!r}: add a mapping file: {name}#mapping.toml. The observation has the "
                f"fields {fields['observation'] or 'none'}; the action {fields['action'] or 'none'}"
            )
        try:
            self._mapping = read_mapping(file, schema)
        except RecursionError:
            raise UserError(f"{self._server.url}/schema: nested too deeply") from None
        self._ignored: list[str] = []

    def selected_actions(self) -> list[Action]:
        """An action for each entry of the mapping file of one key, direction or name."""
        return self._mapping.selected_actions()

    def __call__(self) -> Env:
        return OpenEnvEnv(self._server, self._mapping, self._ignored)


class OpenEnvEnv:
    """One episode. `ignored`: the first action without a template, already logged."""

    def __init__(self, server: Server, mapping: ScreenMapping, ignored: list[str]) -> None:
        self.host = server.url
        self._session = Session(server)
        self._mapping = mapping
        self._ignored = ignored
        self._reward = 0.0
        self._done = False

    async def start(self, task: Task) -> Observation:
        first = await self._session.reset(_reset_parameters(task))
        self._take(first, "start")
        goal = _find(first, self._mapping.goal, "start") if self._mapping.goal else ""
        if not isinstance(goal, str) or not (goal or task.instruction):
            place = (
                f"observation.{self._mapping.goal}" if self._mapping.goal else f"task {task.id}: instruction"
            )
            raise EnvError("start", f"{place}: is {_short(goal)}, must be the goal as text")
        return Observation(screenshot=self._screen, instruction=goal)

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        for action in up_to_terminal(actions):
            for step in self._steps(action):
                if not self._done:
                    self._take(await self._send(action, step), "step")
        return StepResult(observation=Observation(screenshot=self._screen), terminated=self._done)

    async def evaluate(self) -> float:
        return min(max(self._reward, 0.0), 1.0)

    async def close(self) -> None:
        await self._session.close()

    async def _send(self, action: Action, step: Json) -> Json:
        try:
            return await self._session.step(step)
        except ActionRefused as refused:
            raise ActionRefused(
                "step",
                f"{self._mapping.file}: actions: {self._mapping.entry(action)}: the server refuses "
                f"{_short(step)}: {refused.message[:150]}: correct the template, or remove it",
            ) from refused

    def _steps(self, action: Action) -> list[Json]:
        steps = self._mapping.steps(action, self._screen.size)
        if steps is None and not self._ignored and not isinstance(action, (Wait, *TERMINAL)):
            self._ignored.append(self._mapping.entry(action))
            missing = dict.fromkeys((*self._ignored, *self._mapping.without_template()))
            _log.warning(
                "%s: [actions] has no %s: such actions do nothing", self._mapping.file, ", ".join(missing)
            )
        return steps or []

    def _take(self, answer: Json, where: str) -> None:
        """Keep the screenshot, the reward and the end. Raises EnvError with the wrong field."""
        self._screen = self._screenshot(answer, where)
        reward, self._done = answer.get("reward"), answer.get("done", False)
        if not isinstance(self._done, bool):
            raise EnvError(where, f"done: is {_short(self._done)}, must be true or false")
        if reward is not None:
            if not isinstance(reward, int | float) or not math.isfinite(reward):
                raise EnvError(where, f"reward: is {_short(reward)}, must be a finite number")
            self._reward = float(reward) + (self._reward if self._mapping.sums_rewards else 0.0)

    def _screenshot(self, answer: Json, where: str) -> Screenshot:
        path = self._mapping.screenshot
        value = _find(answer, path, where)
        try:
            if isinstance(value, str):
                png = base64.b64decode(value.rpartition("base64,")[2], validate=True)
                screenshot = Screenshot.of(png)
                rgb(screenshot)  # here, to name the field
                return screenshot
            shape = _find(answer, self._mapping.shape, where) if self._mapping.shape else None
            return Screenshot.of(_png_of(value, shape))
        except binascii.Error as error:
            raise EnvError(where, f"observation.{path}: is not base64: {error}") from None
        except ValueError as error:
            raise EnvError(where, f"observation.{path}: {error}") from None


def _reset_parameters(task: Task) -> Json:
    """Those of the set-up step of type "reset"."""
    parameters: Json = {}
    for step in task.config:
        if step.get("type") != RESET or not isinstance(step.get("parameters"), dict):
            raise EnvError(
                "start",
                f"task {task.id}: OpenEnv cannot run the setup step of type {step.get('type')!r}; use "
                f'{{"type": "{RESET}", "parameters": {{"seed": 1}}}}',
            )
        parameters |= step["parameters"]
    return parameters


def _find(answer: Json, path: str, where: str) -> Any:
    """The value at a path in the observation. Raises EnvError with the missing part."""
    value: Any = answer.get("observation")
    done = "observation"
    for name in path.split("."):
        if isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            raise EnvError(where, f"{done}.{name}: is missing, although the server's /schema allows it")
        done = f"{done}.{name}"
    return value


def _png_of(value: Any, shape: Any) -> bytes:
    """Encode pixels: [height][width], or [height][width][3 or 4], flat with `shape`. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"is {_short(value)}, must be a base64 PNG or an array of pixels")
    try:
        pixels = np.array(value)
        if shape is not None:
            pixels = pixels.reshape(shape)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(
            f"is an array that does not have the shape {_short(shape)}"
            if shape
            else "is an array with rows of different lengths"
        ) from None
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))):
        raise ValueError(
            f"is an array of shape {list(pixels.shape)}, must be [height, width, 3] (if it is flat, set "
            "`shape`)"
        )
    if pixels.dtype.kind not in "iu" or pixels.min(initial=0) < 0 or pixels.max(initial=0) > 255:
        raise ValueError("is an array with other values than whole numbers of 0 to 255")
    if fault := screen_fault(pixels.shape[1], pixels.shape[0]):
        raise ValueError(f"is {pixels.shape[1]}x{pixels.shape[0]}, {fault}")
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).convert("RGB").save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _short(value: Any) -> str:
    return repr(value)[:60]
