"""OpenAI-compatible servers for tests: real HTTP on loopback, in a thread, with answers that a test wrote.

Behind one of them the shipped tiny model answers.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from arpo.config.recipe import load_config
from arpo.rollout.player import open_player
from arpo.types import Message, Prompt, Sampling, Screenshot

MODEL = "tiny-ui-tars"


@dataclass(slots=True)
class Served:
    """A server that runs: its address, and every request for an answer that it was sent."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)


Answer = Callable[[web.Request, dict[str, Any], int], Awaitable[web.StreamResponse]]


def says(text: str, finish: str = "stop") -> web.Response:
    message = {"role": "assistant", "content": text}
    return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": finish}]})


def refuses(status: int, message: str, **headers: str) -> web.Response:
    error = {"error": {"message": message, "type": "Error", "code": status}}
    return web.json_response(error, status=status, headers=headers)


async def hangs() -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def cuts(request: web.Request) -> web.Response:
    """Ends the connection without an answer."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@contextmanager
def serving(answer: Answer, models: Sequence[str] = (MODEL,)) -> Iterator[Served]:
    """A server on a free port; `answer` is given the request, its body and how many came before it."""
    served = Served()

    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        served.requests.append(body)
        served.headers.append(dict(request.headers))
        return await answer(request, body, len(served.requests) - 1)

    async def list_models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name} for name in models]})

    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.post("/v1/chat/completions", chat), web.get("/v1/models", list_models)])
    with running(app) as port:
        served.url = f"http://127.0.0.1:{port}/v1"
        yield served


@contextmanager
def running(app: web.Application) -> Iterator[int]:
    """The application in a thread with a loop of its own; its port."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    async def stop() -> None:
        await runner.cleanup()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:  # requests that hang
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def tiny_model_server(name: str = MODEL) -> Iterator[Served]:
    """The shipped model under a name, told the conversation as text and pictures, as any server is."""
    player = open_player(load_config("desk", ["--model.device=cpu", "--run.threads=1"]))
    renderer, engine = player.token_renderer, player.scheduler.agent.engine

    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        messages = tuple(_message(message) for message in body["messages"])
        rendered = renderer.render(messages)
        prompt = Prompt(
            episode_id=str(number), token_ids=rendered.token_ids, images=rendered.images, messages=messages
        )
        sampling = Sampling(temperature=body["temperature"], max_tokens=body["max_tokens"], seed=body["seed"])
        try:
            completion = await engine.generate(prompt, sampling)
        finally:
            await engine.release(prompt.episode_id)
        return says(completion.text, completion.finish)

    with serving(answer, [name]) as served:
        yield served


def _message(message: Mapping[str, Any]) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return Message(role=message["role"], text=content)
    (part,) = content
    return Message(role=message["role"], screenshot=picture(part))


def picture(part: Mapping[str, Any]) -> Screenshot:
    """The screenshot in one part of a message."""
    kind, _, data = part["image_url"]["url"].partition(",")
    assert kind == "data:image/png;base64"
    return Screenshot.of(base64.b64decode(data))
