"""Key and model name of vLLM servers, for both sides: servers refuse every request without the key.

vLLM's own API key protects only some routes. The routes that load weights or call methods of a worker are
open to everybody. So `arpo serve` adds `KeyRequired` to each server, in front of all routes. This module runs
inside vLLM too, in another interpreter: it imports nothing but the standard library.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from arpo.processes.environment import is_loopback, read_secret

KEY_VARIABLE = "ARPO_ENGINE_KEY"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def served_name(model: str) -> str:
    """The name of a model on its servers: that of `model.path`, without the place of a folder.

    >>> served_name("base"), served_name("ORG/NAME@main"), served_name("/models/ui-tars/")
    ('base', 'ORG/NAME@main', 'ui-tars')
    """
    folder = Path(model).expanduser()
    return folder.resolve().name if folder.is_dir() else model


def read_key(environ: Mapping[str, str] = os.environ) -> str:
    """The key of ARPO_ENGINE_KEY; "" if the variable is not set. Raises UserError for a short or odd one."""
    return read_secret(KEY_VARIABLE, environ) or ""


def key_headers(key: str) -> dict[str, str]:
    """Headers of a request to a server with this key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


class KeyRequired:
    """ASGI middleware: answers 401 to a request without the key.

    A server without a key accepts only requests that address it as loopback, and none of web pages: a page in
    the user's browser could otherwise call it, directly or through a domain name of its own (DNS rebinding).
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._key = read_key()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._is_allowed(dict(scope["headers"])):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            text = f"wrong or no key: set {KEY_VARIABLE} to the key of the server\n"
            await send({"type": "http.response.body", "body": text.encode()})

    def _is_allowed(self, headers: Mapping[bytes, bytes]) -> bool:
        if self._key:
            return hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {self._key}".encode())
        is_page = b"origin" in headers  # browsers add it, programs do not
        return not is_page and is_loopback(_host_name(headers.get(b"host", b"").decode("latin-1")))


def _host_name(header: str) -> str:
    """The name in a Host header. Examples: "127.0.0.1:9000", "[::1]:9000"; "" for an invalid one."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
