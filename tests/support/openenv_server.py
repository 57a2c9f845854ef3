"""OpenEnv for tests: a server and a client of the package, in its own interpreter, and a server that lies."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from arpo.actions import Action, Finished
from arpo.envs.openenv.mapping import FIELDS, read_mapping
from arpo.envs.openenv.server import Server
from arpo.testing import screenshot
from arpo.types import Observation, Screenshot, StepResult, Task

PYTHON = Path(__file__).parents[2] / ".venv-openenv" / "bin" / "python"
TOKEN = "0123456789abcdef"
PNG = base64.b64encode(screenshot(1).png).decode()
SCHEMA: dict[str, Any] = {
    "action": {
        "type": "object",
        "properties": {
            "kind": {"enum": ["click", "key"]},
            "x": {"type": "integer"},
            "text": {"type": "string"},
        },
        "required": ["kind"],
        "additionalProperties": False,
    },
    "observation": {
        "type": "object",
        "properties": {
            "screen": {"$ref": "#/$defs/Image"},
            "goal": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "pixels": {"type": "array", "items": {"type": "integer"}},
            "count": {"type": "integer"},
        },
        "$defs": {"Image": {"type": "object", "properties": {"png": {"type": "string"}}}},
    },
}
GOOD: dict[str, Any] = {
    "observation": {"screen": {"png": PNG}, "goal": "Win", "pixels": [0]},
    "reward": None,
    "done": False,
}


@contextmanager
def buttons(sessions: int = 32) -> Iterator[str]:
    """The URL of a server of `openenv_buttons.py`, in the package's own interpreter."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = Path(__file__).parents[2] / "examples" / "openenv_buttons.py"
    process = subprocess.Popen([_python(), program, str(port), str(sessions)])
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert process.poll() is None
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except OSError:
                time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


@contextmanager
def scripted(*answers: Any, schema: Any = SCHEMA, token: str = "") -> Iterator[tuple[str, list[Any]]]:
    """A server that gives these answers to the messages of every session; the last one to all later ones.

    Yields its URL and the messages that it received. An answer is the data of an observation, a whole
    message with a type, a text to send as it is, a function of the message, or None to close the session. A
    text as schema: a redirect.
    """
    received: list[Any] = []

    async def session(request: web.Request) -> web.WebSocketResponse:
        channel = web.WebSocketResponse()
        await channel.prepare(request)
        left = list(answers)
        async for message in channel:
            received.append(message.json())
            if received[-1]["type"] == "close" or left[0] is None:
                break
            answer = left[0] if len(left) == 1 else left.pop(0)
            if callable(answer):
                answer = answer(received[-1])
            if isinstance(answer, str):
                await channel.send_str(answer)
            else:
                await channel.send_json(
                    answer if "type" in answer else {"type": "observation", "data": answer}
                )
        return channel

    async def answer_schema(request: web.Request) -> web.Response:
        if isinstance(schema, str):
            raise web.HTTPFound(schema)
        return web.json_response(schema)

    @web.middleware
    async def authorise(request: web.Request, handler: Any) -> Any:
        if token and request.headers.get("Authorization") != f"Bearer {token}":
            raise web.HTTPUnauthorized
        return await handler(request)

    application = web.Application(middlewares=[authorise])
    application.add_routes([web.get("/ws", session), web.get("/schema", answer_schema)])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def listen() -> tuple[web.AppRunner, int]:
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, runner.addresses[0][1]

    runner, port = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    try:
        yield f"http://127.0.0.1:{port}", received
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def own_mapping() -> str:
    """The mapping file for `arpo env-host --openenv`: every action with all its fields."""
    lines = ['screenshot = "screenshot"', 'goal = "instruction"', "[actions]"]
    for name, fields in FIELDS.items():
        given = [f'{field} = "{{{field}}}"' for field in fields if (name, field) != ("Hotkey", "key")]
        written = ", ".join([f'action = "{name}"', *given])
        lines.append(f"{name} = {{ {written} }}")
    return "\n".join(lines)


class PackageEnv:
    """An environment of a host at `url`, played by the client of the package `openenv`."""

    def __init__(self, url: str, folder: Path) -> None:
        program = Path(__file__).with_name("openenv_player.py")
        self._client = subprocess.Popen(
            [_python(), program, url, TOKEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._url = url
        file = folder / "own.toml"
        file.write_text(own_mapping())
        self._mapping = read_mapping(str(file), self._get("/schema"))
        [self._name] = self._get("/list_environments")

    async def start(self, task: Task) -> Observation:
        """Find the task by its id in the splits of the host."""
        for split in self._get(f"/{self._name}/splits"):
            tasks = self._get(f"/{self._name}/tasks", {"split": split["name"]})["tasks"]
            for found in tasks:
                if found["id"] == task.id:
                    return await self._call({"reset": {"split": split["name"], "index": found["index"]}})
        raise AssertionError(f"no task {task.id}")

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        for action in actions:
            steps = self._mapping.steps(action, self._size)
            assert steps is not None
            observation = await self._call({"step": steps[0]})
        return StepResult(observation=observation, terminated=self._last["done"])

    async def evaluate(self) -> float:
        if not self._last["done"]:
            await self.step((Finished(),))
        assert self._last["done"]
        return self._last["reward"]

    async def close(self) -> None:
        self._client.communicate()
        assert self._client.returncode == 0

    async def _call(self, message: dict[str, Any]) -> Observation:
        assert self._client.stdin is not None and self._client.stdout is not None
        self._client.stdin.write(json.dumps(message) + "\n")
        self._client.stdin.flush()
        self._last = json.loads(await asyncio.to_thread(self._client.stdout.readline))
        observation = self._last["observation"]
        screenshot = Screenshot.of(base64.b64decode(observation["screenshot"]))
        self._size = screenshot.size
        return Observation(screenshot=screenshot, instruction=observation["instruction"])

    def _get(self, path: str, body: Any = None) -> Any:
        return Server(url=self._url, headers={"Authorization": f"Bearer {TOKEN}"}).call(path, body)


def _python() -> Path:
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: run `make openenv`")
    return PYTHON
