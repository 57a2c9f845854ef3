"""`boundary` attributes every exception to its call, and lets a requested cancellation pass."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from arpo.config import EnvConfig
from arpo.envs.pool import GuardedEnv
from arpo.errors import (
    ArpoFault,
    EngineError,
    EnvError,
    EnvTimeout,
    boundary,
    code_place,
    definition_of,
    place_of,
)
from arpo.testing import FakeEnv, failing


async def _awaits_a_cancelled_task() -> None:
    helper = asyncio.ensure_future(asyncio.sleep(60))
    helper.cancel()
    await helper


async def _its_own_timeout() -> None:
    raise TimeoutError("the socket gave up")


async def _division() -> None:
    raise ZeroDivisionError("by zero")


async def _exits() -> None:
    sys.exit("no display")


class _OwnExit(BaseException):
    pass


async def _raises_its_own_exit() -> None:
    raise _OwnExit("stop")


async def _named_already() -> None:
    raise EngineError("generate", "out of memory")


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (_division, EnvError, "step: ZeroDivisionError: by zero"),
        (_exits, EnvError, "step: SystemExit: no display"),
        (_raises_its_own_exit, EnvError, "step: _OwnExit: stop"),
        (_named_already, EngineError, "generate: out of memory"),
        (_its_own_timeout, EnvError, "step: TimeoutError: the socket gave up"),
        (_awaits_a_cancelled_task, EnvError, "step: CancelledError: an awaited task was cancelled"),
        (asyncio.Event().wait, EnvTimeout, "step: no answer within 0.01 s"),
    ],
)
def test_an_exception_becomes_a_fault_of_the_call(call, kind, message):
    async def guarded() -> None:
        async with boundary(EnvError, "step", 0.01 if kind is EnvTimeout else 60):
            await call()

    with pytest.raises(ArpoFault) as caught:
        asyncio.run(guarded())
    assert (type(caught.value), str(caught.value)) == (kind, message)


def test_a_requested_cancellation_passes():
    async def guarded() -> None:
        async with boundary(EnvError, "step", 60):
            await asyncio.Event().wait()

    async def stop_it() -> None:
        task = asyncio.create_task(guarded())
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stop_it())


def test_ctrl_c_passes():
    async def guarded() -> None:
        async with boundary(EnvError, "step", 60):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(guarded())


def test_the_message_of_a_fault_is_safe_to_print_and_to_store() -> None:
    """It may come from a guest or from another machine."""
    fault = EnvError("st\x1bep", "a\x1b[2J\x07\r\tb\nc \ud800 é")
    assert fault.where == "st\ufffdep"
    assert fault.message == "a\ufffd[2J\ufffd\ufffd\tb\nc \ufffd é"
    assert str(fault) == f"{fault.where}: {fault.message}"
    assert str(fault).encode()
    assert len(EngineError("generate", "x" * 1_000_000).message) == 10_000


# Line 1 imports, line 4 raises in a helper, line 7 calls the standard library, line 10 waits, and so on.
USER_CODE = """\
import asyncio, json

def look(room):
    return {}[room]

async def library():
    json.loads("no json")

async def waits():
    await asyncio.sleep(60)

async def several():
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(look, "hall"))

async def refuses():
    from arpo.errors import EnvError
    raise EnvError("step", "no keyboard")

async def looks():
    look("hall")
"""


@pytest.mark.parametrize(
    ("call", "message", "line"),
    [
        ("looks", "KeyError: 'hall'", 4),
        ("library", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)", 7),
        ("waits", "no answer within 0.01 s", 10),
        ("several", "KeyError: 'hall'", 4),
        ("refuses", "no keyboard", 18),
    ],
)
def test_a_fault_names_the_line_in_the_users_code(tmp_path, monkeypatch, call, message, line):
    file = tmp_path / "my_env.py"
    file.write_text(USER_CODE, "utf-8")
    code: dict[str, Any] = {}
    exec(compile(USER_CODE, file, "exec"), code)

    async def guarded() -> None:
        async with boundary(EnvError, "step", 0.01 if call == "waits" else 60):
            await code[call]()

    with pytest.raises(EnvError) as caught:
        asyncio.run(guarded())
    assert (caught.value.message, caught.value.place) == (message, f"{file}:{line}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvError) as caught:
        asyncio.run(guarded())
    assert caught.value.place == f"my_env.py:{line}"


def test_a_fault_of_this_package_or_of_a_library_has_no_place():
    env = GuardedEnv(failing(FakeEnv, "step", times=1)(), EnvConfig(name="arpo.testing:FakeEnv"))
    with pytest.raises(EnvError) as caught:
        asyncio.run(env.step(()))
    assert caught.value.place == ""
    assert code_place(json.__file__, 1) == code_place(pytest.__file__, 1) == code_place("<string>", 1) == ""


def test_definitions_and_syntax_errors_have_a_place():
    here = Path(__file__).relative_to(Path.cwd())
    assert definition_of(_OwnExit) == f"{here}:{inspect.findsource(_OwnExit)[1] + 1}"
    assert definition_of(_exits) == f"{here}:{_exits.__code__.co_firstlineno}"
    assert definition_of(3) == definition_of(len) == definition_of(FakeEnv) == ""
    with pytest.raises(SyntaxError) as caught:
        compile("x = 1\ny = = 2\n", "my_env.py", "exec")
    assert place_of(caught.value) == "my_env.py:2"
