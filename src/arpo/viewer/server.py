"""The web server of `arpo view`: loopback only, for one user who has its token.

The first address has the token. It becomes a cookie that scripts cannot read, and the first page removes it
from the address. Requests with another Host header are refused, so no name of a web page can be pointed at
this server (DNS rebinding). The pages may load nothing from elsewhere, and run no script but their own files.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import secrets
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from aiohttp import web

from arpo.errors import UserError
from arpo.http_server import Connections, bind, connection_limit, listening
from arpo.viewer.export import PAGE, STATIC
from arpo.viewer.library import Library, NotFound, finite
from arpo.viewer.pages.episode import episode_gif
from arpo.viewer.pictures import Picture, thumbnail
from arpo.viewer.source import Source

HOST = "127.0.0.1"
COOKIE, TOKEN = "arpo_view", "token"
REFRESH_SECONDS = 1.0  # between two looks at the files
SLICE_SECONDS = 0.05  # of indexing a source without a pause
QUIET_SECONDS = 0.05  # after an answer: a page has several requests, and indexing would slow them down
DISCOVER_SECONDS = 5.0
LOOKING_SECONDS = 60.0  # after the last request; an open page asks every few seconds
INDEXING_PRIORITY = 10  # as of the command nice
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
WELCOME = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>arpo view</title>'
    '<script src="static/welcome.js"></script></head></html>'
)
_log = logging.getLogger(__name__)
_UNCACHED = {"Cache-Control": "no-store"}
_FOREVER = {"Cache-Control": "private, max-age=86400, immutable"}  # a screenshot is named by its content

_T = TypeVar("_T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ViewServer:
    """Serves a library. Work with files is done by a few threads, so no request blocks another.

    Unless it `always_indexes`, it reads new content only while somebody looks at a page.
    """

    def __init__(self, library: Library, *, always_indexes: bool = True) -> None:
        self.library = library
        self._always_indexes = always_indexes
        self.token = secrets.token_urlsafe(32)
        self.port = 0
        self._connections = Connections(connection_limit())
        self._waiting = 0  # requests without their answers
        self._last_answer = -math.inf
        self._threads = ThreadPoolExecutor(4, "view")
        self._indexing = ThreadPoolExecutor(1, "view-index", initializer=_lower_priority)

    @asynccontextmanager
    async def started(self, port: int) -> AsyncIterator[None]:
        """Listen on a port of loopback; 0: any free one. Raises UserError if it is taken."""
        try:
            listeners = bind(HOST, port)
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror or error}: choose another port") from None
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/{path:.*}", self._serve)
        try:
            async with listening(app, listeners, self._connections) as self.port:
                following = asyncio.create_task(self._follow())
                try:
                    yield
                finally:
                    following.cancel()
                    with suppress(asyncio.CancelledError):
                        await following
        finally:
            self._indexing.shutdown(cancel_futures=True)
            self._threads.shutdown(cancel_futures=True)

    @property
    def cookie(self) -> str:
        """Name of the cookie. Browsers send cookies to all ports of a host, so each server has its own."""
        return f"{COOKIE}_{self.port}"

    def url(self, at: str = "") -> str:
        """The address with the token, for the first request. `at`: the part after #."""
        return f"http://{HOST}:{self.port}/?{TOKEN}={self.token}" + (f"#{at}" if at else "")

    async def _follow(self) -> None:
        """Index new content until cancelled. Nothing waits for it, and it takes no lock of a run."""
        loop = asyncio.get_running_loop()
        searched = loop.time()
        while True:
            if self._waiting or self._last_answer + QUIET_SECONDS > loop.time():  # requests come first
                await asyncio.sleep(QUIET_SECONDS)
                continue
            if not self._always_indexes and self._last_answer + LOOKING_SECONDS < loop.time():
                await asyncio.sleep(QUIET_SECONDS)
                continue
            complete = True
            try:
                if loop.time() > searched + DISCOVER_SECONDS:
                    searched = loop.time()
                    await loop.run_in_executor(self._indexing, self.library.discover)
                complete = await loop.run_in_executor(self._indexing, self.library.refresh, SLICE_SECONDS)
            except Exception as error:  # the next turn tries again; the page stays
                _log.warning("arpo view: %s: %s", type(error).__name__, error)
            await asyncio.sleep(REFRESH_SECONDS if complete else 0)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check Host, method and cookie; add the safety headers to every answer."""
        self._waiting += 1
        try:
            response = await self._checked(request, handler)
        except web.HTTPException as error:
            response = _error(error.status, error.reason)
        except NotFound as error:
            response = _error(404, str(error))
        except FileNotFoundError:
            response = _error(404, "the file was removed")
        except (UserError, OSError) as error:
            response = _error(422, str(error))
        except sqlite3.Error:  # the index was closed or made again meanwhile
            response = _error(503, "the index is changing: try again in a moment")
        except Exception:  # a fault of ours: the other pages stay
            _log.exception("arpo view: %s", request.path)
            response = _error(500, "internal error: the terminal of `arpo view` has the details")
        finally:
            self._waiting -= 1
            self._last_answer = asyncio.get_running_loop().time()
        response.headers.update(HEADERS)
        return response

    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.getall("Host", []) not in ([f"{HOST}:{self.port}"], [f"localhost:{self.port}"]):
            return _error(421, "wrong Host header")
        if request.method not in ("GET", "HEAD"):
            return _error(405, "only GET")
        if request.query.get(TOKEN) is not None:
            return self._welcome(request)
        if not _equal(request.cookies.get(self.cookie, ""), self.token):
            return _error(403, "open the address that `arpo view` has printed, with its token")
        self._connections.mark_caller(request)
        return await handler(request)

    def _welcome(self, request: web.Request) -> web.StreamResponse:
        """Turn the token of the address into a cookie."""
        if not _equal(request.query[TOKEN], self.token):
            return _error(403, "wrong token: open the address that `arpo view` has printed")
        self._connections.mark_caller(request)
        response = web.Response(text=WELCOME, content_type="text/html", headers=_UNCACHED)
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="Strict", path="/")
        return response

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        parts = [unquote(part) for part in request.rel_url.raw_path.split("/")[1:]]
        match parts:
            case ["api", "s", name, "shots", shot]:
                return await self._picture(name, shot, request.query.get("w", ""))
            case ["api", "s", name, "episodes", episode, "gif"]:
                return await self._animation(name, episode)
            case ["api", *rest]:
                answer = await self._in_thread(partial(self.library.answer, rest, dict(request.query)))
                return _json(answer)
            case ["static", *rest]:
                return _static("/".join(rest))
        return _static(PAGE)

    async def _picture(self, name: str, shot: str, width: str) -> web.StreamResponse:
        source = self.library.source(name)
        if width and not (width.isascii() and width.isdigit() and len(width) <= 5):
            raise UserError("w: must be a width in pixels")
        make = partial(_thumbnail, source, shot, int(width)) if width else partial(source.picture, shot)
        picture = await self._in_thread(make)
        return web.Response(body=picture.content, content_type=picture.media_type, headers=_FOREVER)

    async def _animation(self, name: str, episode: str) -> web.StreamResponse:
        source = self.library.source(name)
        content = await self._in_thread(partial(episode_gif, source, episode))
        return web.Response(body=content, content_type="image/gif", headers=_UNCACHED)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _thumbnail(source: Source, shot: str, width: int) -> Picture:
    return thumbnail(source.pixels(shot), width)


def _lower_priority() -> None:
    """Let runs on the same machine go before this thread."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(own, INDEXING_PRIORITY))


def _json(answer: object) -> web.Response:
    text = json.dumps(finite(answer), allow_nan=False, separators=(",", ":"))
    return web.Response(text=text, content_type="application/json", headers=_UNCACHED)


def _error(status: int, message: str) -> web.Response:
    response = _json({"error": message})
    response.set_status(status)
    return response


def _static(name: str) -> web.StreamResponse:
    """A file of the front end. Its names are a fixed list: no path of the request reaches the disk."""
    path = _static_files().get(name)
    if path is None:
        raise NotFound("no such file")
    return web.FileResponse(path, headers={"Cache-Control": "no-cache"})


@cache
def _static_files() -> dict[str, Path]:
    return {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.is_file()}


def _equal(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), expected.encode())
