"""OpenEnv servers for tests: one of the package `openenv`, in its own interpreter, and one that lies."""

from __future__ import annotations

import asyncio
import base64
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

from arpo.testing import screenshot

PYTHON = Path(".venv-openenv/bin/python")
PNG = base64.b64encode(screenshot(1).png).decode()
SCHEMA = {
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
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: run `make openenv`")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = Path(__file__).with_name("openenv_buttons.py")
    process = subprocess.Popen([PYTHON, program, str(port), str(sessions)])
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
    message with a type, a text to send as it is, or None to close the session.
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
            if isinstance(answer, str):
                await channel.send_str(answer)
            else:
                await channel.send_json(
                    answer if "type" in answer else {"type": "observation", "data": answer}
                )
        return channel

    async def answer_schema(request: web.Request) -> web.Response:
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
