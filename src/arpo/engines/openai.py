"""The engine for OpenAI-compatible vision servers: messages in, text out. For evaluation only.

Several servers of one model share the load. The requests of an episode stay on one server, to use its prefix
cache. A new episode goes to the server with the fewest episodes. A failing server is skipped for a growing
time, and its episodes continue on other servers. The answers have no tokens, so they are never trained on.

Servers are not trusted. Prompt and API key go to the named addresses only: redirects, proxies of the process
environment and cookies are not used. The size of a response is limited, and its text is safe to store.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp

from arpo.config import ServerConfig
from arpo.engines.base import Weights
from arpo.errors import ContextTooLong, EngineError, UserError, printable
from arpo.recipe import nearest
from arpo.types import Completion, Message, Prompt, Sampling, Screenshot

_CHAT, _MODELS = "/chat/completions", "/models"  # routes
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds without requests after a failure, doubled each time
_CONNECT_SECONDS = 10.0
_MAX_BYTES = 4 << 20  # of a response; 32,000 tokens, each an escaped text of 100 bytes, fit
_MAX_ERROR_BYTES = 10_000  # of an error; the rest is not read
_MAX_LINE = 300  # characters of a server's text in a message
_BUSY = (408, 409, 425, 429)
_NO_SUCH_ROUTE = (404, 405, 501)
_TOO_LONG = re.compile(
    r"context.?(length|size|window)|max\w{0,20}.?(model|input|sequence).?len|"
    r"(prompt|input)\S{0,20} (is )?too long",
    re.IGNORECASE,
)
_END_MARKS = ("<|im_end|>", "<|endoftext|>")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which UTF-8 cannot encode


class _TransientError(Exception):
    """An error that a retry may avoid. `pause` is the Retry-After of the server (seconds), if any."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class _RedirectError(_TransientError):
    """The server names another address. The prompt is not sent there."""


@dataclass(slots=True, eq=False)
class _Server:
    url: str
    episodes: set[str] = field(default_factory=set)
    failed: int = 0  # consecutive failures
    until: float = 0.0  # clock time of the next attempt


class OpenAIEngine:
    """Routes each episode to one server. Use between `start()` and `close()`."""

    def __init__(
        self,
        config: ServerConfig,
        key: str,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._sleep, self._clock = sleep, clock
        self._servers = [_Server(url) for url in endpoints(config.endpoints)]
        self._images: dict[str, dict[str, str]] = {}  # data URLs by episode and screenshot hash
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> Sequence[str]:
        """Connect, and check every server. Returns a warning if some servers do not answer."""
        self.connect()
        return await self._probe()

    def connect(self) -> None:
        """Open the HTTP session without asking any server."""
        self._session = aiohttp.ClientSession(
            headers={
                **self._headers,
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",  # a small compressed response may be a huge one
            },
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

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
                shown = [_line(name) for name in models[:1000]]
                raise UserError(f"{server.url}: does not serve the model {model!r}{nearest(model, shown)}")
        if not silent:
            return []
        left = len(self._servers) - len(silent)
        total = len(self._servers)
        return [f"{len(silent)} of {total} servers do not answer: {silent[0]}. Using the other {left}"]

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample an answer. Retries after an error, on another server if there is one."""
        body = json.dumps(self._request(prompt, sampling)).encode()
        fault = _TransientError("not tried")
        for _ in range(self._config.attempts):
            server = self._server_of(prompt.episode_id)
            if (pause := server.until - self._clock()) > 0:
                await self._sleep(pause)
            began = self._clock()
            try:
                completion = await self._ask(server, body)
            except _TransientError as passing:
                self._mark_failed(server, began, passing.pause)
                fault = passing
            else:
                server.failed = 0
                return completion
        raise EngineError("generate", f"{fault} (tried {self._config.attempts} times)")

    async def release(self, episode_id: str) -> None:
        self._images.pop(episode_id, None)
        for server in self._servers:
            server.episodes.discard(episode_id)

    async def load(self, weights: Weights) -> None:
        raise EngineError("load", "a chat server cannot load weights from the learner")

    def _server_of(self, episode_id: str) -> _Server:
        """The episode's server. If it is unavailable, the least loaded one, or the first to be available."""
        own = next((server for server in self._servers if episode_id in server.episodes), None)
        now = self._clock()
        if own is not None and own.until <= now:
            return own
        chosen = min(self._servers, key=lambda server: (max(0.0, server.until - now), len(server.episodes)))
        if own is not None:
            own.episodes.discard(episode_id)
        chosen.episodes.add(episode_id)
        return chosen

    def _mark_failed(self, server: _Server, began: float, pause: float | None) -> None:
        """Count a failure. Concurrent requests to a server that died count once."""
        if began < server.until:
            return
        grown = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**server.failed)
        server.failed += 1
        server.until = self._clock() + min(_LONGEST_PAUSE, grown if pause is None else pause)

    def _request(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        settings = self._config
        return {
            "model": settings.model,
            "messages": self._messages(prompt),
            "temperature": sampling.temperature,
            "top_p": settings.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed,
            **({"stop": settings.stop} if settings.stop else {}),
            **({"frequency_penalty": settings.frequency_penalty} if settings.frequency_penalty else {}),
            **({"skip_special_tokens": False} if settings.special_tokens else {}),
        }

    def _messages(self, prompt: Prompt) -> list[dict[str, Any]]:
        """Encode each image once per episode. Drops the images that left the window."""
        known = self._images.get(prompt.episode_id, {})
        shown = {m.screenshot.sha256: m.screenshot for m in prompt.messages if m.screenshot is not None}
        images = {name: known.get(name) or _data_url(shot) for name, shot in shown.items()}
        self._images[prompt.episode_id] = images
        return [_message(message, images) for message in prompt.messages]

    async def _ask(self, server: _Server, body: bytes) -> Completion:
        status, text, pause = await self._exchange("POST", server.url + _CHAT, body)
        if status == 200:
            return _completion(server.url, text)
        detail = f"{server.url}: status {status}: {_first_line(text)}"
        if status in _BUSY or status >= 500:
            raise _TransientError(detail, pause)
        if _TOO_LONG.search(text):
            raise ContextTooLong(
                "generate",
                f"{detail}; the conversation is too long. Serve the model with a larger context, or lower "
                "rollout.max_images (--max-trajectory-length) or rollout.max_answer_tokens (--max-tokens)",
            )
        if "skip_special_tokens" in text:
            detail += "; set --server.special_tokens false for this server"
        raise EngineError("generate", detail)

    async def _models(self, server: _Server) -> list[str] | str:
        """The model names of a server, [] if it does not list them, or the error if it does not answer."""
        began = self._clock()
        try:
            status, text, _ = await self._exchange("GET", server.url + _MODELS, None, _CONNECT_SECONDS)
        except _RedirectError as redirect:
            raise UserError(str(redirect)) from redirect
        except _TransientError as passing:
            self._mark_failed(server, began, None)
            return str(passing)
        if status in (401, 403):
            raise UserError(
                f"{server.url}: status {status}: {_first_line(text)}; set OPENAI_API_KEY to its key"
            )
        if status in _NO_SUCH_ROUTE:
            return []
        if status != 200:
            self._mark_failed(server, began, None)
            return f"{server.url}: status {status}: {_first_line(text)}"
        try:
            return [model["id"] for model in _json(text)["data"] if isinstance(model["id"], str)]
        except (ValueError, KeyError, TypeError):
            return f"{server.url}: /models did not answer like an OpenAI-compatible server"

    async def _exchange(
        self, method: str, url: str, body: bytes | None, seconds: float | None = None
    ) -> tuple[int, str, float | None]:
        """(status, text, Retry-After in seconds or None)."""
        assert self._session is not None, "start() comes first"
        timeout = aiohttp.ClientTimeout(total=seconds or self._config.seconds, sock_connect=_CONNECT_SECONDS)
        try:
            async with self._session.request(
                method, url, data=body, timeout=timeout, allow_redirects=False
            ) as response:
                text = await _read(url, response)
                return response.status, text, _seconds(response.headers.get("Retry-After"))
        except aiohttp.ConnectionTimeoutError as error:
            raise _TransientError(f"{url}: no connection within {_CONNECT_SECONDS:g} s") from error
        except TimeoutError as error:
            raise _TransientError(f"{url}: no answer within {timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _TransientError(f"{url}: {type(error).__name__}: {_line(str(error))}") from error


async def _read(url: str, response: aiohttp.ClientResponse) -> str:
    """The text of a response, or the first part of an error. The caller closes the connection."""
    if 300 <= response.status < 400:
        target = _line(response.headers.get("Location", ""))
        address = _redirected_endpoint(url, target)
        remedy = (
            f"set server.endpoints to {address}"
            if address
            else "name the server's own address in server.endpoints"
        )
        raise _RedirectError(
            f"{url}: redirects to {target or 'another address'}. Redirects are not followed: {remedy}"
        )
    if (packing := response.headers.get("Content-Encoding", "").lower()) not in ("", "identity"):
        raise _TransientError(f"{url}: the response is compressed with {_line(packing)}, not as asked")
    limit = _MAX_BYTES if response.status == 200 else _MAX_ERROR_BYTES
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > limit:
            if response.status == 200:
                raise _TransientError(f"{url}: the response is larger than {limit} bytes")
            break
    return content[:limit].decode("utf-8", "replace")


def _redirected_endpoint(url: str, target: str) -> str | None:
    """The endpoint to set for a redirect from `url` to `target`; None if there is none, or the same one.

    >>> _redirected_endpoint("http://a/v1/models", "https://a/v1/models")
    'https://a/v1'
    """
    try:
        parts = urlsplit(urljoin(url, target))
        path = parts.path.rstrip("/")
        route = next(route for route in (_CHAT, _MODELS) if path.endswith(route))
        address = f"{parts.scheme}://{parts.netloc}{path.removesuffix(route)}"
        usable = endpoints(address) == (address,) and "@" not in address
    except (ValueError, StopIteration, UserError):
        return None
    return address if usable and url not in (address + _CHAT, address + _MODELS) else None


def endpoints(text: str) -> tuple[str, ...]:
    """Parse server.endpoints.

    >>> endpoints("http://a:9000-9001/v1, http://b:8000")
    ('http://a:9000/v1', 'http://a:9001/v1', 'http://b:8000/v1')
    """
    found: dict[str, None] = {}
    for address in filter(None, (part.strip() for part in text.split(","))):
        named = re.fullmatch(r"(https?://[^/\s:]+|https?://\[[^]]+\])(?::(\d+)(?:-(\d+))?)?(/\S*)?", address)
        if named is None:
            raise UserError(
                f"server.endpoints: {address!r} is not an address such as http://127.0.0.1:8000/v1"
            )
        host, first, last, path = named.groups()
        path = (path or "").rstrip("/").removesuffix(_CHAT) or "/v1"
        ports = range(int(first), int(last or first) + 1) if first else ()
        if first and (not ports or ports[-1] > 65535):
            raise UserError(f"server.endpoints: {address!r}: has no valid port range")
        found |= dict.fromkeys([f"{host}:{port}{path}" for port in ports] or [f"{host}{path}"])
    if not found:
        raise UserError("server.endpoints: is empty. Name a server, for example http://127.0.0.1:8000/v1")
    return tuple(found)


def _data_url(screenshot: Screenshot) -> str:
    return f"data:image/png;base64,{base64.b64encode(screenshot.png).decode()}"


def _message(message: Message, images: Mapping[str, str]) -> dict[str, Any]:
    if message.screenshot is None:
        return {"role": message.role, "content": message.text}
    image = {"type": "image_url", "image_url": {"url": images[message.screenshot.sha256]}}
    words = [{"type": "text", "text": message.text}] if message.text else []
    return {"role": message.role, "content": [*words, image]}


def _completion(url: str, text: str) -> Completion:
    try:
        choice = _json(text)["choices"][0]
        answer = choice["message"]["content"]
        finish = choice.get("finish_reason")
        if answer is None:
            answer = ""
        if not isinstance(answer, str) or finish in ("abort", "error"):
            raise ValueError("no text, or the server gave up")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise _TransientError(f"{url}: status 200, but without an answer: {_first_line(text)}") from error
    for mark in _END_MARKS:
        answer = answer.removesuffix(mark)
    return Completion(
        token_ids=(),
        logprobs=(),
        text=_LONE_SURROGATE.sub("\ufffd", answer),
        finish="length" if finish == "length" else "stop",
        versions=(),
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("too many nested brackets") from error


def _first_line(text: str) -> str:
    """The first line of a server's error message, as text or JSON."""
    try:
        value = _json(text)
    except ValueError:
        value = text
    for key in ("error", "message", "detail"):
        value = value.get(key, value) if isinstance(value, dict) else value
    said = value if isinstance(value, str) else text
    return _line(next(iter(said.strip().splitlines()), "no text"))


def _line(text: str) -> str:
    """A server's text as one short line."""
    return printable(" ".join(text[:_MAX_LINE].split()))


def _seconds(header: str | None) -> float | None:
    return float(header) if header and re.fullmatch(r"\d+(\.\d+)?", header) else None
