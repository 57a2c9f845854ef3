"""A person as the engine: each prompt is a screen on a page, and what the person does there is the answer.

    GET  /KEY/                    the page
    GET  /KEY/state?after=NUMBER  the next screen, as soon as there is one: {"number", "instruction", …}
    GET  /KEY/screens/NUMBER      its PNG
    POST /KEY/act                 {"number": NUMBER, "actions": […], "thought": TEXT}, in pixels of the screen
                                  {"number": NUMBER, "discard": true}: starts the episode again

For `arpo collect`, which stores the answers as tokens of the student, in its dialect. The page shows one
episode until it ends, then the next one. It listens on loopback only; KEY is random.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from arpo.actions import action_from_json, up_to_terminal
from arpo.dialects.base import Dialect, ParseError
from arpo.engines.base import Weights
from arpo.engines.teacher import tokenise
from arpo.errors import Discarded, EngineError, UserError
from arpo.http_server import Connections, bind, connection_limit, listening
from arpo.prompts.rendering import Renderer
from arpo.types import Completion, Prompt, Sampling, Screenshot

POLL_SECONDS = 20.0  # the page asks again after it
AGAIN_SECONDS = 60.0  # the page waits so long for the first screen of a discarded episode
MAX_BODY = 1 << 16
FOLDER = Path(__file__).parent
FILES = {"": "page.html", "page.js": "page.js", "page.css": "page.css"}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A screen that waits for the person. Numbers count from 1."""

    number: int
    step: int
    prompt: Prompt
    max_tokens: int  # of the answer
    answer: asyncio.Future[str]

    @property
    def screenshot(self) -> Screenshot:
        return self.prompt.images[-1]


class PersonEngine:
    def __init__(self, student: Renderer, dialect: Dialect) -> None:
        if dialect.write is None:
            raise UserError(
                f'engine.name = "person": the dialect {dialect.name} of the student cannot be written. '
                "Choose another model.path or model.dialect"
            )
        self._student, self._dialect = student, dialect
        self._waiting: dict[str, _Asked] = {}  # by episode, oldest first
        self._episode: str | None = None  # on the page until it ends
        self._discarded = False  # this episode, until it is released
        self._until = math.inf  # clock time of giving the page to another episode
        self._steps: dict[str, int] = {}
        self._asked = 0
        self._changed = asyncio.Event()
        self._opened = AsyncExitStack()

    async def start(self) -> Sequence[str]:
        key, connections = secrets.token_urlsafe(32), Connections(connection_limit())
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_with_headers(connections)])
        app.router.add_get(f"/{key}/state", self._state)
        app.router.add_get(f"/{key}/screens/{{number}}", self._screen)
        app.router.add_post(f"/{key}/act", self._act)
        for address, name in FILES.items():
            app.router.add_get(f"/{key}/{address}", _file(name))
        port = await self._opened.enter_async_context(listening(app, bind("127.0.0.1", 0), connections))
        return [f"play here: http://127.0.0.1:{port}/{key}/"]

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """The answer of the person. It has a text only."""
        if not prompt.images:
            raise EngineError("generate", "the prompt has no screenshot to show to a person")
        episode, self._asked = prompt.episode_id, self._asked + 1
        self._steps[episode] = self._steps.get(episode, 0) + 1
        asked = _Asked(
            number=self._asked,
            step=self._steps[episode],
            prompt=prompt,
            max_tokens=sampling.max_tokens,
            answer=asyncio.get_running_loop().create_future(),
        )
        self._waiting[episode] = asked
        if episode == self._episode:
            self._until = math.inf
        self._tell()
        try:
            text = await asked.answer
        finally:
            del self._waiting[episode]
        return Completion(token_ids=(), logprobs=(), text=text, finish="stop", versions=())

    async def release(self, episode_id: str) -> None:
        self._steps.pop(episode_id, None)
        if self._episode == episode_id:
            if self._discarded:
                self._discarded, self._until = False, time.monotonic() + AGAIN_SECONDS
            else:
                self._episode = None
            self._tell()

    async def load(self, weights: Weights) -> None:
        raise EngineError("load", "a person cannot load weights")

    async def close(self) -> None:
        await self._opened.aclose()

    def _tell(self) -> None:
        """Wake the requests that wait for a screen."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _current(self) -> _Asked | None:
        if self._episode is None or time.monotonic() > self._until:
            self._episode, self._until = next(iter(self._waiting), None), math.inf
        asked = self._waiting.get(self._episode or "")
        return None if asked is None or asked.answer.done() else asked

    async def _state(self, request: web.Request) -> web.Response:
        after = request.query.get("after", "")
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                while (asked := self._current()) is None or str(asked.number) == after:
                    await self._changed.wait()
        if (asked := self._current()) is None:
            return web.json_response({"number": 0})
        width, height = asked.screenshot.size
        return web.json_response(
            {
                "number": asked.number,
                "step": asked.step,
                "instruction": asked.prompt.instruction,
                "width": width,
                "height": height,
            }
        )

    async def _screen(self, request: web.Request) -> web.Response:
        asked = self._current()
        if asked is None or request.match_info["number"] != str(asked.number):
            raise web.HTTPNotFound(text="this screen is over")
        return web.Response(body=asked.screenshot.png, content_type="image/png")

    async def _act(self, request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.read())
            asked = self._current()
            if asked is None or not isinstance(body, dict) or body.get("number") != asked.number:
                return _refused("this screen is over", 409)
            if body.get("discard") is True:
                self._discarded = True
                asked.answer.set_exception(Discarded("generate", "the person discarded the episode"))
            else:
                asked.answer.set_result(self._text(body, asked))
        except (ValueError, EngineError) as error:  # also ParseError
            return _refused(error.message if isinstance(error, EngineError) else str(error), 400)
        return web.json_response({})

    def _text(self, body: dict[str, Any], asked: _Asked) -> str:
        """The answer in the student's dialect. Raises ValueError or EngineError if it cannot be one."""
        screenshot = asked.screenshot
        given, thought = body.get("actions"), body.get("thought", "")
        if not isinstance(given, list) or not given or not isinstance(thought, str):
            raise ValueError('"actions" must be a list that is not empty, "thought" a text')
        actions = up_to_terminal(
            [action_from_json(one, f"actions[{index}]") for index, one in enumerate(given)]
        )
        size = self._student.model_size(screenshot)
        text = self._dialect.answer(actions, thought, size, screenshot.size)
        read = self._dialect.parse(text)
        if [type(one) for one in read.actions] != [type(one) for one in actions]:
            raise ParseError("this thought cannot be told from an action: write it differently")
        written = tokenise(text, "stop", self._student, asked.max_tokens)
        if written.finish == "length":
            raise ValueError(
                f"the answer has {len(written.token_ids)} tokens of the student, at most {asked.max_tokens} "
                "are allowed (rollout.max_answer_tokens): shorten the thought, or type the text in parts"
            )
        return text


def _with_headers(connections: Connections) -> Any:
    @web.middleware
    async def middleware(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPException as error:
            response = _refused(error.text or error.reason, error.status)
        else:
            connections.mark_caller(request)  # it knows the key
        response.headers.update(HEADERS)
        return response

    return middleware


def _file(name: str) -> Any:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(FOLDER / name)

    return handle


def _refused(reason: str, status: int) -> web.Response:
    return web.json_response({"error": reason}, status=status)
