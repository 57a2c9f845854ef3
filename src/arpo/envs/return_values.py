"""Checks of the values returned by an environment.

A wrong value is an EnvError: the value, the right one, and the line that defines the method.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Awaitable
from numbers import Real
from typing import Any, TypeVar

from arpo.envs.base import Env
from arpo.envs.wire import MAX_INSTRUCTION
from arpo.errors import EnvError, definition_of
from arpo.types import PNG_BYTES, Observation, Screenshot, StepResult

ENV_METHODS = ("start", "step", "evaluate", "close")
EXAMPLE = "see examples/doorbell.py"
_OBSERVATION = "Observation(screenshot=Screenshot.of(png))"

_T = TypeVar("_T")


def require_awaitable(env: Env, value: Awaitable[_T]) -> Awaitable[_T]:
    """The fault is the same for all methods that are not async: the user corrects them at once."""
    if inspect.isawaitable(value):
        return value
    plain = [name for name in ENV_METHODS if not inspect.iscoroutinefunction(getattr(env, name))]
    raise EnvError(
        plain[0],
        f"not async: {', '.join(plain)}: write `async def {plain[0]}(self, …)`, {EXAMPLE}",
        definition(env, plain[0]),
    )


def require_step_result(env: Env, value: Any) -> StepResult:
    if isinstance(value, StepResult):
        return value
    raise EnvError(
        "step",
        f"returned {_with_article(value)}, must return StepResult(observation=…, terminated=…): {EXAMPLE}",
        definition(env, "step"),
    )


def require_observation(env: Env, method: str, value: Any) -> Observation:
    if isinstance(value, Observation) and isinstance(value.screenshot, Screenshot):
        if isinstance(value.instruction, str) and len(value.instruction) <= MAX_INSTRUCTION:
            return value
        wrong = f"must be a text of at most {MAX_INSTRUCTION:,} characters"
        raise EnvError(method, f"the instruction of its Observation {wrong}", definition(env, method))
    if isinstance(value, Observation):
        value = value.screenshot
        wrong = f"the screenshot of its Observation is {_with_article(value)}, must be Screenshot.of(png)"
    elif method == "step":
        wrong = f"the observation of its StepResult is {_with_article(value)}, must be {_OBSERVATION}"
    else:
        wrong = f"returned {_with_article(value)}, must return {_OBSERVATION}"
    png = {"PIL": PNG_BYTES, "numpy": f"first `image = Image.fromarray(array)`; {PNG_BYTES}"}
    raise EnvError(method, f"{wrong}: {png.get(_library(value), EXAMPLE)}", definition(env, method))


def require_score(env: Env, value: Any) -> float:
    if isinstance(value, Real) and 0.0 <= float(value) <= 1.0:
        return float(value)
    raise EnvError(
        "evaluate",
        f"returned {reprlib.repr(value)}, not a number in [0, 1]: return 1.0 if the task is solved and "
        "0.0 if not",
        definition(env, "evaluate"),
    )


def definition(env: Env, method: str) -> str:
    """The line that defines a method of the environment; "" if it is not the user's code."""
    return definition_of(getattr(env, method))


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _with_article(value: Any) -> str:
    """For example "a tuple", "an Image of PIL", "None"."""
    if value is None or isinstance(value, bytes):
        return "None" if value is None else "bytes"
    name, library = type(value).__name__, _library(value)
    of = f" of {library}" if library in ("PIL", "numpy") else ""
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}{of}"
