"""The engine for OpenAI-compatible vision servers: messages in, text out.

Several servers of one model share the load. The requests of an episode stay on one server, to use its prefix
cache. A new episode goes to the server with the fewest episodes. A failing server is skipped for a growing
time, and its episodes continue on other servers. The answers have no tokens: `arpo train` refuses
them, `arpo collect` tokenises them for the model that learns from them (`teacher.py`).

Servers are not trusted: see `http_exchange.py`. The text of an answer is safe to store.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arpo.config import ServerConfig
from arpo.config.recipe import nearest
from arpo.engines import http_exchange
from arpo.engines.base import Weights
from arpo.engines.http_exchange import (
    CONNECT_SECONDS,
    HttpExchange,
    RedirectError,
    TransientError,
    first_line,
    one_line,
    parse_json,
    refusal,
)
from arpo.engines.routing import Router
from arpo.errors import ContextTooLong, EngineError, UserError
from arpo.processes.backoff import LONGEST_SECONDS, pause_after
from arpo.types import Completion, Message, Prompt, Sampling, Screenshot

_CHAT, _MODELS = "/chat/completions", "/models"  # routes
_MAX_BYTES = 4 << 20  # of a response; 32,000 tokens, each an escaped text of 100 bytes, fit
_ANSWER_SECONDS = 300.0  # timeout of one request
_ATTEMPTS = 8  # per request, over all servers, with growing pauses
_BUSY = (408, 409, 425, 429)
_NO_SUCH_ROUTE = (404, 405, 501)
_TOO_LONG = re.compile(
    r"context.?(length|size|window)|max\w{0,20}.?(model|input|sequence).?len|"
    r"(prompt|input)\S{0,20} (is )?too long",
    re.IGNORECASE,
)
_END_MARKS = ("<|im_end|>", "<|endoftext|>")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which UTF-8 cannot encode


@dataclass(slots=True, eq=False)
class _Server:
    url: str
    failed: int = 0  # consecutive failures
    until: float = 0.0  # clock time of the next attempt


class OpenAIEngine:
    """Routes each episode to one server. Use between `start()` and `close()`."""

    def __init__(
        self,
        config: ServerConfig,
        key: str,
        *,
        seconds: float = _ANSWER_SECONDS,
        attempts: int = _ATTEMPTS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._seconds, self._attempts = config, seconds, attempts
        self._http = HttpExchange(key, _MAX_BYTES, "server.endpoints")
        self._sleep, self._clock = sleep, clock
        self._servers = [_Server(url) for url in endpoints(config.endpoints)]
        self._router: Router[_Server] = Router()
        self._images: dict[str, dict[str, str]] = {}  # data URLs by episode and screenshot hash

    async def start(self) -> Sequence[str]:
        """Connect, and check every server. Returns a warning if some servers do not answer."""
        self.connect()
        return await self._probe()

    def connect(self) -> None:
        """Open the HTTP session without asking any server."""
        self._http.open()

    async def close(self) -> None:
        await self._http.close()

    async def _probe(self) -> list[str]:
        """Ask every server for its models. Returns a warning if some servers do not answer.

        Raises UserError if no server answers, if one refuses the key, or if one lists models without ours.
        """
        answers = await asyncio.gather(*(self._models(server) for server in self._servers))
        silent = [text for text in answers if isinstance(text, str)]
        if len(silent) == len(self._servers):
            raise UserError(f"no server answers: {silent[0]}. Start one, or name others in server.endpoints")
        model = self._config.model
        for server, models in zip(self._servers, answers, strict=True):
            if isinstance(models, list) and models and model not in models:
                shown = [one_line(name) for name in models[:1000]]
                raise UserError(
                    f"{server.url}: does not serve the model {model!r}{nearest(model, shown)}: "
                    "correct server.model"
                )
        if not silent:
            return []
        left = len(self._servers) - len(silent)
        total = len(self._servers)
        return [f"{len(silent)} of {total} servers do not answer: {silent[0]}. Using the other {left}"]

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample an answer. Retries after an error, on another server if there is one."""
        body = json.dumps(self._request(prompt, sampling)).encode()
        fault = TransientError("not tried")
        for _ in range(self._attempts):
            server = self._server_of(prompt.episode_id)
            if (pause := server.until - self._clock()) > 0:
                await self._sleep(pause)
            began = self._clock()
            try:
                completion = await self._ask(server, body)
            except TransientError as passing:
                self._mark_failed(server, began, passing.pause)
                fault = passing
            else:
                server.failed = 0
                return completion
        message = f"{fault} (tried {self._attempts} times)"
        raise EngineError("generate", message, host=server.url)

    async def release(self, episode_id: str) -> None:
        self._images.pop(episode_id, None)
        self._router.release(episode_id)

    async def load(self, weights: Weights) -> None:
        raise EngineError("load", "a chat server cannot load weights from the learner")

    def _server_of(self, episode_id: str) -> _Server:
        """The episode's server. If it is unavailable, the least loaded one, or the first to be available."""
        now = self._clock()
        available = [server for server in self._servers if server.until <= now]
        return self._router.choose(
            episode_id, available or [min(self._servers, key=lambda server: server.until)]
        )

    def _mark_failed(self, server: _Server, began: float, pause: float | None) -> None:
        """Count a failure. Concurrent requests to a dead server count once."""
        if began < server.until:
            return
        server.failed += 1
        grown = pause_after(server.failed)
        server.until = self._clock() + (grown if pause is None else min(pause, LONGEST_SECONDS))

    def _request(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        settings = self._config
        return {
            "model": settings.model,
            "messages": self._messages(prompt),
            "temperature": sampling.temperature,
            "top_p": settings.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed,
            **({"frequency_penalty": settings.frequency_penalty} if settings.frequency_penalty else {}),
            **({"skip_special_tokens": False} if settings.special_tokens else {}),
        }

    def _messages(self, prompt: Prompt) -> list[dict[str, Any]]:
        """Encode each image once per episode. Drops the images outside the window."""
        known = self._images.get(prompt.episode_id, {})
        shown = {image.sha256: image for message in prompt.messages for image in message.images}
        images = {name: known.get(name) or _data_url(shot) for name, shot in shown.items()}
        self._images[prompt.episode_id] = images
        return [_message(message, images) for message in prompt.messages]

    async def _ask(self, server: _Server, body: bytes) -> Completion:
        status, text, pause = await self._http.request("POST", server.url + _CHAT, body, self._seconds)
        if status == 200:
            return _completion(server.url, text)
        detail = f"{server.url}: status {status}: {first_line(text)}"
        if status in _BUSY or status >= 500:
            raise TransientError(detail, pause)
        if _TOO_LONG.search(text):
            raise ContextTooLong(
                "generate",
                f"{detail}; the conversation is too long. Serve the model with a larger context, or lower "
                "rollout.max_images (--max-trajectory-length) or rollout.max_answer_tokens (--max-tokens)",
            )
        if "skip_special_tokens" in text:
            detail += "; set --server.special_tokens false for this server"
        raise refusal(status, text)("generate", detail, host=server.url)

    async def _models(self, server: _Server) -> list[str] | str:
        """The model names of a server, [] if it does not list them, or the error if it does not answer."""
        began = self._clock()
        try:
            status, text, _ = await self._http.request("GET", server.url + _MODELS, None, CONNECT_SECONDS)
        except RedirectError as redirect:
            raise UserError(str(redirect)) from redirect
        except TransientError as passing:
            self._mark_failed(server, began, None)
            return str(passing)
        if status in (401, 403):
            raise UserError(
                f"{server.url}: status {status}: {first_line(text)}; set OPENAI_API_KEY to its key"
            )
        if status in _NO_SUCH_ROUTE:
            return []
        if status != 200:
            self._mark_failed(server, began, None)
            return f"{server.url}: status {status}: {first_line(text)}"
        try:
            return [model["id"] for model in parse_json(text)["data"] if isinstance(model["id"], str)]
        except (ValueError, KeyError, TypeError):
            return f"{server.url}: /models did not answer like an OpenAI-compatible server"


def endpoints(text: str) -> tuple[str, ...]:
    """Parse server.endpoints.

    >>> endpoints("http://a:9000-9001/v1, http://b:8000")
    ('http://a:9000/v1', 'http://a:9001/v1', 'http://b:8000/v1')
    """
    return http_exchange.endpoints(text, "server.endpoints", "/v1", _CHAT)


def _data_url(screenshot: Screenshot) -> str:
    return f"data:image/png;base64,{base64.b64encode(screenshot.png).decode()}"


def _message(message: Message, images: Mapping[str, str]) -> dict[str, Any]:
    if not message.images:
        return {"role": message.role, "content": "".join(map(str, message.parts))}
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": images[part.sha256]}}
        for part in message.parts
        if part
    ]
    return {"role": message.role, "content": content}


def _completion(url: str, text: str) -> Completion:
    try:
        choice = parse_json(text)["choices"][0]
        answer = choice["message"]["content"]
        finish = choice.get("finish_reason")
        if answer is None:
            answer = ""
        if not isinstance(answer, str) or finish in ("abort", "error"):
            raise ValueError("no text, or the server gave up")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise TransientError(f"{url}: status 200, but without an answer: {first_line(text)}") from error
    for mark in _END_MARKS:
        answer = answer.removesuffix(mark)
    return Completion(
        token_ids=(),
        logprobs=(),
        text=_LONE_SURROGATE.sub("\ufffd", answer),
        finish="length" if finish == "length" else "stop",
        versions=(),
    )
