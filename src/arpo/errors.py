"""Exception types, and `boundary`, a context manager to attribute exceptions to a call.

`UserError`: the user made a mistake. Its message is one line: what is wrong, where, and what to do.
`ArpoFault`: an environment or an engine failed. It names the call.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_MAX_MESSAGE = 10_000  # characters


class UserError(ValueError):
    """Bad input: a recipe, a task file, a checkpoint, a path. `arpo` prints it and exits with code 2."""


class BadSetting(UserError):
    """An invalid value: BadSetting("loss.kl", "is -1.0, must be >= 0")."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class ArpoFault(Exception):
    """An external component failed. `where` names the call, for example "step". A long message is cut."""

    def __init__(self, where: str, message: str) -> None:
        self.where = printable(where[:_MAX_MESSAGE])
        self.message = printable(message[:_MAX_MESSAGE])
        super().__init__(f"{self.where}: {self.message}")


class EnvError(ArpoFault):
    """An environment raised an exception, hung, or returned an invalid value."""


class EnvTimeout(EnvError):
    """A call of an environment exceeded its timeout."""


class EngineError(ArpoFault):
    """The inference engine raised an exception or died."""


class ContextTooLong(EngineError):
    """Prompt and answer exceed the model's context. This limit ends the episode; it is not a fault."""


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
    """Convert every exception of the block to `fault(where, message)`. `seconds` is its timeout (None: none).

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
    except (ArpoFault, KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise fault(where, "CancelledError: an awaited task was cancelled") from error
    except BaseException as error:
        if isinstance(error, TimeoutError) and limit.expired():
            late = EnvTimeout if issubclass(fault, EnvError) else fault
            raise late(where, f"no answer within {seconds:g} s") from error
        raise fault(where, f"{type(error).__name__}: {error}") from error
