"""Exception types; `boundary`, which attributes exceptions to a call; `closed_on_error`.

`UserError`: the user made a mistake. Its message is one line: what is wrong, where, and what to do.
`ArpoFault`: an environment or an engine failed. It names the call and the line in the user's code.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

_MAX_MESSAGE = 10_000  # characters


class UserError(ValueError):
    """Bad input: a recipe, a task file, a checkpoint, a path. `arpo` prints it and exits with code 2."""


class NoSuchTask(UserError):
    """No task of the recipe has this id."""


class BadSetting(UserError):
    """An invalid value: BadSetting("loss.kl", "is -1.0, must be >= 0")."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class Outage(Exception):
    """No environment, or no vLLM server, worked for env.outage_seconds.

    The run is resumable; `arpo` exits with code 1. `boundary` does not convert it.
    """


class ArpoFault(Exception):
    """An external component failed. `where` names the call, for example "step". A long message is cut.

    `place` is the file and line in the user's code, for example "my_env.py:14"; "" if there is none.
    `host` is the address of the environment host or server, "" for this process.
    """

    def __init__(self, where: str, message: str, place: str = "", host: str = "") -> None:
        self.where = printable(where[:_MAX_MESSAGE])
        self.message = printable(message[:_MAX_MESSAGE])
        self.place = printable(place[:_MAX_MESSAGE])
        self.host = host
        super().__init__(f"{self.where}: {self.message}")


class EnvError(ArpoFault):
    """An environment raised an exception, hung, or returned an invalid value."""


class ActionRefused(EnvError):
    """The server of an environment refused an action that its mapping file has."""


class EnvTimeout(EnvError):
    """A call of an environment exceeded its timeout."""


class EngineError(ArpoFault):
    """The inference engine raised an exception or died."""


class Discarded(EngineError):
    """A person discarded the episode (engine.name = "person"). It is played again; this is no fault."""


class NotInTokens(EngineError):
    """The tokenizer of model.path cannot represent the answer of a teacher. The episode cannot be stored."""


class RequestRefused(EngineError):
    """The server refused a request because of its content, and would refuse it again."""


class AgentError(ArpoFault):
    """The agent program of the user (rollout.agent) failed, hung, or never asked the model."""


class ContextTooLong(EngineError):
    """Prompt and answer exceed the model's context. This limit ends the episode; it is not a fault."""


class PromptTooLong(ContextTooLong):
    """The first prompt of a task exceeds the context, so no episode of the task can be played."""


# Control characters, which a terminal obeys, and lone surrogates, which UTF-8 cannot encode.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Text from outside, safe to print and to store. Tabs and line breaks stay.

    >>> printable("\x1b[2J caf\xe9 \ud800")
    '�[2J café �'
    """
    return _UNPRINTABLE.sub("\ufffd", text)


@asynccontextmanager
async def boundary(fault: type[ArpoFault], where: str, seconds: float | None = None) -> AsyncIterator[None]:
    """Convert every exception of the block to `fault(where, message, place)`, after `seconds` to a timeout.

    SystemExit is converted too: an environment that calls sys.exit() ends its episode, not the run. Ctrl-C
    passes through. If the caller cancels this task, CancelledError passes through. If a task awaited inside
    the block was cancelled, CancelledError is converted as well: otherwise it would end the whole run
    silently.

    >>> async with boundary(EnvError, "step", seconds=60):
    ...     result = await env.step(actions)  # ZeroDivisionError becomes EnvError("step", …)
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except ArpoFault as error:
        error.place = error.place or place_of(error)
        raise
    except (KeyboardInterrupt, GeneratorExit, Outage):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise fault(where, "CancelledError: an awaited task was cancelled", place_of(error)) from error
    except BaseException as error:
        if isinstance(error, TimeoutError) and limit.expired():
            late = EnvTimeout if issubclass(fault, EnvError) else fault
            waiting = error.__cause__ or error  # the cancelled call
            raise late(where, f"no answer within {seconds:g} s", place_of(waiting)) from error
        first = _first(error)
        raise fault(where, describe_exception(first), place_of(first)) from error


class _Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def closed_on_error(part: _Closable) -> Iterator[None]:
    """Close `part` if the block raises. For constructors: nobody else can close their parts then."""
    try:
        yield
    except BaseException:
        part.close()
        raise


def describe_exception(error: BaseException) -> str:
    """For example "KeyError: 'room'", or only "AssertionError" if it has no message."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _first(error: BaseException) -> BaseException:
    """The first exception of a group, as asyncio.TaskGroup raises it; any other exception itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_LIBRARIES = tuple(
    os.path.join(folder, "")
    for folder in {_PACKAGE, *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))}
)
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")


def place_of(error: BaseException) -> str:
    """The last line of the user's code in the traceback, for example "my_env.py:14"; "" if there is none.

    The user's code is everything outside this package, the standard library and installed packages.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return code_place(error.filename, error.lineno)
    lines = [
        code_place(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return next(filter(None, reversed(lines)), "")


def definition_of(function: Any) -> str:
    """The line of the definition of the user's function, method or class, as in `place_of`."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is not None:
        return code_place(code.co_filename, code.co_firstlineno)
    try:
        return code_place(inspect.getfile(function), inspect.findsource(function)[1] + 1)
    except (OSError, TypeError):
        return ""


def code_place(file: str, line: int | None) -> str:
    """File and line, with the path relative to the current folder if it lies inside; "" for library code."""
    path = os.path.abspath(file)
    if file.startswith("<") or path.startswith(_LIBRARIES) or _INSTALLED.search(path):
        return ""
    return f"{path.removeprefix(os.path.join(_current_folder(), ''))}:{line}"


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return os.sep * 2
