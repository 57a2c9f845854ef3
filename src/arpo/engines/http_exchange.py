"""HTTP requests to untrusted inference servers.

Prompt and key go to the named addresses only: redirects, proxies of the process environment and cookies are
not used. The size of a response is limited, and text from a server is safe to print.
"""

from __future__ import annotations

import json
import re
from typing import Any

import aiohttp

from arpo.errors import EngineError, RequestRefused, UserError, printable

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 2.0  # then a connection is closed: vLLM closes it after 5 s, maybe while a request is sent
_MAX_ERROR_BYTES = 10_000  # of an error; the rest is not read
_MAX_LINE = 300  # characters of a server's text in a message
_OF_CONTENT = (400, 413, 422)  # status codes; the user can correct the cause of others, such as 401
_OF_ACCOUNT = re.compile(r"credit|quota|billing|balance|account|api.?key", re.IGNORECASE)


class TransientError(Exception):
    """An error worth a retry. `pause` is the Retry-After of the server (seconds), if any."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class RedirectError(TransientError):
    """The server names another address. The prompt is not sent there."""


class HttpExchange:
    """A session for requests with JSON bodies. Use between `open()` and `close()`.

    `setting` is the config key with the addresses of the servers.
    """

    def __init__(self, key: str, max_bytes: int, setting: str) -> None:
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._max_bytes, self._setting = max_bytes, setting
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        self._session = aiohttp.ClientSession(
            headers={
                **self._headers,
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",  # a small compressed response may be a huge one
            },
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self, method: str, url: str, body: bytes | None, seconds: float
    ) -> tuple[int, str, float | None]:
        """(status, text, Retry-After in seconds or None). Raises TransientError without a usable response."""
        assert self._session is not None, "open() comes first"
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.request(
                method, url, data=body, timeout=timeout, allow_redirects=False
            ) as response:
                text = await self._read(url, response)
                return response.status, text, _seconds(response.headers.get("Retry-After"))
        except aiohttp.ConnectionTimeoutError as error:
            raise TransientError(f"{url}: no connection within {CONNECT_SECONDS:g} s") from error
        except TimeoutError as error:
            raise TransientError(f"{url}: no answer within {timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise TransientError(f"{url}: {type(error).__name__}: {one_line(str(error))}") from error

    async def _read(self, url: str, response: aiohttp.ClientResponse) -> str:
        """The text of a response, or the first part of an error. The caller closes the connection."""
        if 300 <= response.status < 400:
            target = one_line(response.headers.get("Location", "")) or "another address"
            raise RedirectError(
                f"{url}: redirects to {target}. Redirects are not followed: name the server's own address "
                f"in {self._setting}"
            )
        if (packing := response.headers.get("Content-Encoding", "").lower()) not in ("", "identity"):
            raise TransientError(f"{url}: the response is compressed with {one_line(packing)}, not as asked")
        limit = self._max_bytes if response.status == 200 else _MAX_ERROR_BYTES
        content = await read_bounded(response, limit)
        if len(content) > limit and response.status == 200:
            raise TransientError(f"{url}: the response is larger than {limit} bytes")
        return content[:limit].decode("utf-8", "replace")


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body of a response. Reading stops after `limit` bytes: a longer result is a part of the body."""
    content = bytearray()
    async for chunk in response.content.iter_any():  # `read(n)` returns what has arrived so far
        content += chunk
        if len(content) > limit:
            break
    return bytes(content)


def endpoints(text: str, key: str, path: str, route: str = "") -> tuple[str, ...]:
    """Parse a list of addresses of the config key `key`.

    `path` is that of addresses without one. `route` is removed from the end of an address.

    >>> endpoints("http://a:9000-9001/v1, http://b:8000", "server.endpoints", "/v1")
    ('http://a:9000/v1', 'http://a:9001/v1', 'http://b:8000/v1')
    """
    found: dict[str, None] = {}
    for address in filter(None, (part.strip() for part in text.split(","))):
        named = re.fullmatch(r"(https?://[^/\s:]+|https?://\[[^]]+\])(?::(\d+)(?:-(\d+))?)?(/\S*)?", address)
        if named is None:
            raise UserError(f"{key}: {address!r} is not an address such as http://127.0.0.1:8000{path}")
        host, first, last, own_path = named.groups()
        own_path = (own_path or "").rstrip("/").removesuffix(route) or path
        ports = range(int(first), int(last or first) + 1) if first else ()
        if first and (not ports or ports[-1] > 65535):
            raise UserError(f"{key}: {address!r}: has no valid port range")
        found |= dict.fromkeys([f"{host}:{port}{own_path}" for port in ports] or [f"{host}{own_path}"])
    if not found:
        raise UserError(f"{key}: is empty. Name a server, for example http://127.0.0.1:8000{path}")
    return tuple(found)


def refusal(status: int, text: str) -> type[EngineError]:
    """The kind of error of a response that is worth no retry. Some servers answer 400 to an empty account."""
    return RequestRefused if status in _OF_CONTENT and not _OF_ACCOUNT.search(text) else EngineError


def parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("too many nested brackets") from error


def first_line(text: str) -> str:
    """The first line of a server's error message, as text or JSON."""
    try:
        value = parse_json(text)
    except ValueError:
        value = text
    for key in ("error", "message", "detail"):
        value = value.get(key, value) if isinstance(value, dict) else value
    said = value if isinstance(value, str) else text
    return one_line(next(iter(said.strip().splitlines()), "no text"))


def one_line(text: str) -> str:
    """A server's text as one short line."""
    return printable(" ".join(text[:_MAX_LINE].split()))


def _seconds(header: str | None) -> float | None:
    return float(header) if header and re.fullmatch(r"\d+(\.\d+)?", header) else None
