"""The HTTP server of one episode for its agent program: the model as OpenAI serves it, and the environment.

    POST /KEY/v1/chat/completions   {"messages": […]} with images as data URLs
    GET  /KEY/task                  {"instruction", "system", "prompt", "max_steps", "max_images", …}
    GET  /KEY/screenshot            the PNG
    POST /KEY/step                  {"answer": TEXT}, {"actions": […]} or {"pyautogui": CODE}

It listens on loopback only. KEY is random: the program of another episode cannot call it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import io
import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from aiohttp import web
from PIL import Image

from arpo.errors import describe_exception, printable
from arpo.http_server import Connections, bind, connection_limit, listening
from arpo.png import BadPng, rgb
from arpo.types import Completion, Message, Screenshot, screen_fault

MAX_BODY = 256 << 20  # bytes: some hundred screenshots
THREAD_BYTES = 1 << 20
MODEL = "policy"
ROLES = ("system", "user", "assistant")
# Parameters of OpenAI that would change what is sampled. Those of sampling, such as temperature, are ignored.
REFUSED = ("tools", "functions", "response_format", "stop", "logprobs", "logit_bias")

_SURROGATE = re.compile("[\ud800-\udfff]")

Json = dict[str, Any]


class Refused(Exception):
    """A call that changes nothing. `code` as in OpenAI's errors; "" for none."""

    def __init__(self, message: str, *, status: int = 400, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Served(Protocol):
    """The episode behind the server. Its calls raise Refused; any other exception ends the episode.

    `guarded` runs each call, and raises Refused if the episode has ended.
    `refused` gets the reason of each refusal: a program may not print it.
    """

    def task(self) -> Json: ...

    def refused(self, reason: str) -> None: ...

    def screenshot(self) -> Screenshot: ...

    async def step(self, body: Json) -> Json: ...

    async def answer(self, messages: tuple[Message, ...], max_tokens: int | None) -> tuple[Completion, int]:
        """The answer, and the number of tokens of its prompt."""
        ...

    def guarded(self, call: Awaitable[web.Response]) -> Awaitable[web.Response]: ...


@asynccontextmanager
async def serving(episode: Served) -> AsyncIterator[str]:
    """Serve the episode during the block. Yields its address, without a slash at the end."""
    key, connections, pictures = secrets.token_urlsafe(32), Connections(connection_limit()), _Pictures()

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def task(request: web.Request) -> web.Response:
        return web.json_response(episode.task())

    async def screenshot(request: web.Request) -> web.Response:
        return web.Response(body=episode.screenshot().png, content_type="image/png")

    async def step(request: web.Request) -> web.Response:
        return web.json_response(await episode.step(await _read(request)))

    async def chat(request: web.Request) -> web.Response:
        body = await _read(request)
        pictures.know(episode.screenshot())
        messages = await _apart(request, _messages, body, pictures)
        answer, tokens = await episode.answer(messages, _max_tokens(body))
        reply = _reply(body, answer, tokens)
        if body.get("stream"):
            return web.Response(body=_events(reply), content_type="text/event-stream")
        return web.json_response(reply)

    def route(handler: Callable[[web.Request], Awaitable[web.Response]]) -> Any:
        async def handle(request: web.Request) -> web.Response:
            connections.mark_caller(request)
            return await _or_refusal(episode.guarded(_or_refusal(handler(request), episode)), episode)

        return handle

    application = web.Application(client_max_size=MAX_BODY)
    application.add_routes(
        [
            web.get(f"/{key}/v1/models", route(models)),
            web.post(f"/{key}/v1/chat/completions", route(chat)),
            web.get(f"/{key}/task", route(task)),
            web.get(f"/{key}/screenshot", route(screenshot)),
            web.post(f"/{key}/step", route(step)),
        ]
    )
    async with listening(application, bind("127.0.0.1", 0), connections) as port:
        yield f"http://127.0.0.1:{port}/{key}"


async def _or_refusal(call: Awaitable[web.Response], episode: Served) -> web.Response:
    """The response of a call. A refusal is one, too."""
    try:
        return await call
    except Refused as refusal:
        episode.refused(str(refusal))
        error = {"message": str(refusal), "type": "invalid_request_error", "code": refusal.code or None}
        return web.json_response({"error": error}, status=refusal.status)


async def _read(request: web.Request) -> Json:
    try:
        body = await _apart(request, json.loads, await request.read())
    except web.HTTPRequestEntityTooLarge as error:
        raise Refused(f"the body must have at most {MAX_BODY >> 20} MiB", status=413) from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object")
    if text := _damaged_text(body):
        raise Refused(f"the body has half a character (a lone surrogate) in {printable(text[-40:])!r}")
    return body


async def _apart(request: web.Request, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function about the body, in a thread if it is large: its pictures would delay all episodes."""
    if len(await request.read()) > THREAD_BYTES:
        return await asyncio.to_thread(function, *arguments)
    return function(*arguments)


def _damaged_text(body: Json) -> str:
    """A text with a lone surrogate, which has no UTF-8 and no tokens, up to that; "" if there is none."""
    values: list[Any] = [body]
    for value in values:  # it grows
        if isinstance(value, dict):
            values += (*value, *value.values())
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str) and not value.isascii() and (found := _SURROGATE.search(value)):
            return value[: found.end()]
    return ""


def _max_tokens(body: Json) -> int | None:
    value = next((body[key] for key in ("max_completion_tokens", "max_tokens") if body.get(key)), None)
    if value is not None and (type(value) is not int or value < 1):
        raise Refused(f"max_tokens: is {value!r}, must be a positive integer")
    return value


def _messages(body: Json, pictures: _Pictures) -> tuple[Message, ...]:
    if refused := [key for key in REFUSED if body.get(key)]:
        raise Refused(f"{refused[0]}: is not supported: leave it out")
    if body.get("n") not in (None, 1):
        raise Refused("n: must be 1: call again for another answer")
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise Refused("messages: must be a list with at least one message")
    messages = tuple(_message(one, f"messages[{index}]", pictures) for index, one in enumerate(given))
    if messages[-1].role == "assistant":
        raise Refused("messages: the last one is the assistant's, must be of role user")
    return messages


def _message(value: Any, place: str, pictures: _Pictures) -> Message:
    role = value.get("role") if isinstance(value, dict) else None
    if role not in ROLES:
        raise Refused(f"{place}: its role is {role!r}, must be one of {', '.join(ROLES)}")
    content = value.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise Refused(f"{place}: its content must be a text or a list")
    read = [_part(part, f"{place}.content[{index}]", pictures) for index, part in enumerate(parts)]
    if all(isinstance(part, str) for part in read):
        return Message(role=role, text="".join(map(str, read)))
    return Message(role=role, more=tuple(read))


def _part(part: Any, place: str, pictures: _Pictures) -> str | Screenshot:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return pictures.read(url, place)
    raise Refused(f"{place}: must be a text, or an image_url with a data URL")


class _Pictures:
    """Pictures of data URLs. A program sends the same ones again and again."""

    def __init__(self) -> None:
        self._by_url: dict[bytes, Screenshot] = {}
        self._by_sha256: dict[str, Screenshot] = {}

    def know(self, screenshot: Screenshot) -> None:
        self._by_sha256[screenshot.sha256] = screenshot

    def read(self, url: str, place: str) -> Screenshot:
        name = hashlib.sha256(url.encode("utf-8", "replace")).digest()
        if name not in self._by_url:
            header, comma, encoded = url.partition(",")
            if not comma or not header.startswith("data:image/") or not header.endswith(";base64"):
                raise Refused(f"{place}: must be a data URL such as data:image/png;base64,…")
            try:
                picture = _screenshot(base64.b64decode(encoded, validate=True))
            except (binascii.Error, BadPng, OSError, ValueError, Image.DecompressionBombError) as error:
                raise Refused(f"{place}: is not a picture: {describe_exception(error)}") from error
            self._by_url[name] = self._by_sha256.setdefault(picture.sha256, picture)
        return self._by_url[name]


def _screenshot(data: bytes) -> Screenshot:
    """PNGs stay as they are. Other pictures become PNGs."""
    try:
        screenshot = Screenshot.of(data)
        rgb(screenshot)
        return screenshot
    except BadPng:
        if data.startswith(b"\x89PNG"):
            raise
    with Image.open(io.BytesIO(data), formats=("JPEG", "WEBP", "GIF", "BMP")) as image:
        if fault := screen_fault(*image.size):
            raise ValueError(f"a picture {fault}")
        file = io.BytesIO()
        image.convert("RGB").save(file, "PNG", compress_level=1)
    return Screenshot.of(file.getvalue())


def _reply(body: Json, answer: Completion, prompt_tokens: int) -> Json:
    sampled = len(answer.token_ids)
    model = body.get("model")
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": 0,
        "model": model if isinstance(model, str) else MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": answer.text},
                "finish_reason": answer.finish,
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": sampled,
            "total_tokens": prompt_tokens + sampled,
        },
    }


def _events(reply: Json) -> bytes:
    """The reply as a stream of server-sent events: the whole answer is one delta."""
    [choice] = reply["choices"]
    delta = {"index": 0, "delta": choice["message"], "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    head = {"id": reply["id"], "object": "chat.completion.chunk", "created": 0, "model": reply["model"]}
    chunks = (
        {**head, "choices": [delta]},
        {**head, "choices": [end]},
        {**head, "choices": [], "usage": reply["usage"]},
    )
    return "".join(f"data: {one}\n\n" for one in (*map(json.dumps, chunks), "[DONE]")).encode()
