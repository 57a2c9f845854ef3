"""`arpo env-host`: serves environments to other processes with the protocol of `wire.py`.

A host has a fixed number of slots, one environment in each. It applies the same timeouts as a local pool. It
closes hanging environments, episodes without a call for LEASE_SECONDS, and episodes whose caller
disconnects during a call; each frees the slot. Without a token it listens on loopback only; with a token it
refuses every request without it. `http_server.py` limits connections, `bounded_log.py` limits the log. Errors
leave the host as typed messages, never as tracebacks.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler

from arpo import __version__
from arpo.config import Config, EnvConfig
from arpo.envs import wire
from arpo.envs.base import EnvFactory
from arpo.envs.factory import resolve_env
from arpo.envs.listen import Listen, host_connections, raise_descriptor_limit
from arpo.envs.pool import GuardedEnv
from arpo.envs.wire import BadRequest, NoFreeSlot, NoSuchEpisode, OutOfTurn, WrongToken
from arpo.errors import EnvError, EnvTimeout, UserError, boundary
from arpo.http_server import Connections, bind, listening
from arpo.processes.bounded_log import bounded_log
from arpo.processes.environment import is_loopback
from arpo.types import Observation, Screenshot, Task

RETRY_SECONDS = 1
LEASE_SECONDS = 900.0  # without a call before a host ends an episode
BODY_SECONDS = 30.0  # for receiving the body of a request
_log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(slots=True)
class Episode:
    timer: asyncio.TimerHandle  # closes the episode
    env: GuardedEnv | None = None
    call: asyncio.Task[Any] | None = None  # the running call
    sent: set[str] = field(default_factory=set)  # sha256 of the screenshots sent to the caller
    on_end: Callable[[], object] = lambda: None  # called when its slot is free


class Host:
    """The slots and their episodes; `application` serves them over HTTP."""

    def __init__(
        self, factory: EnvFactory, config: EnvConfig, token: str | None, lease_seconds: float
    ) -> None:
        self._factory = factory
        self._config = config
        self._lease_seconds = lease_seconds
        self._token = token
        self.connections = Connections(host_connections(config.parallel))
        self._episodes: dict[str, Episode] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}

    def application(self) -> web.Application:
        application = web.Application(
            middlewares=[self._handle_errors], client_max_size=wire.MAX_REQUEST_BYTES
        )
        application.add_routes(self._routes())
        return application

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.post("/episodes", self._create_episode),
            web.post("/episodes/{episode}/start", self._start),
            web.post("/episodes/{episode}/step", self._step),
            web.post("/episodes/{episode}/evaluate", self._evaluate),
            web.delete("/episodes/{episode}", self._delete),
        ]

    async def close(self) -> None:
        """Close every environment."""
        for name in list(self._episodes):
            self._close(name)
        if self._closing:
            await asyncio.wait(list(self._closing.values()))

    @property
    def _free(self) -> int:
        return self._config.parallel - len(self._episodes) - len(self._closing)

    @web.middleware
    async def _handle_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Convert every exception to an error response of the protocol."""
        try:
            self._authorise(request)
            self.connections.mark_caller(request)
            return await handler(request)
        except EnvError as fault:
            return _error_response(wire.status_of(fault), fault)
        except web.HTTPException as error:
            return _error_response(
                error.status, BadRequest("host", f"{request.method} {request.path}: {error.reason}")
            )
        except Exception as error:
            _log.exception("%s %s", request.method, request.path)
            return _error_response(500, EnvError("host", f"{type(error).__name__}: {error}"))

    def _authorise(self, request: web.Request) -> None:
        if self._token is None:
            # DNS rebinding: a web page could otherwise call this host under its own domain name.
            if not is_loopback(request.url.host or ""):
                raise WrongToken(
                    "host", f"set {wire.TOKEN_VARIABLE}, or call the host as 127.0.0.1 or localhost"
                )
            return
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise WrongToken("host", f"wrong or no token: set {wire.TOKEN_VARIABLE} to the host's token")

    async def _health(self, request: web.Request) -> web.Response:
        config = self._config
        health = wire.Health(
            env=config.name,
            screen=wire.configured_screen(config),
            slots=config.parallel,
            free=self._free,
            version=__version__,
        )
        return web.json_response(wire.health_to_json(health))

    async def _create_episode(self, request: web.Request) -> web.Response:
        await _body(request, "start")
        return web.Response(status=201, headers={wire.EPISODE: self._take_slot()})

    def _take_slot(self) -> str:
        """The name of a new episode. It expires unless its start follows within `env.start_seconds`."""
        if self._free <= 0:
            raise NoFreeSlot("start", f"all {self._config.parallel} slots are in use")
        name = secrets.token_hex(16)
        self._episodes[name] = Episode(self._timer(name, self._config.start_seconds))
        return name

    async def _start(self, request: web.Request) -> web.Response:
        [content] = await _body(request, "start", "task")
        task = wire.task_from_json(content, "start")

        async def start(episode: Episode) -> web.Response:
            if episode.env is not None:
                raise OutOfTurn("start", "the episode has started already")
            first = await self._start_env(episode, task)
            response = _screenshot_response(episode, first.screenshot)
            if first.instruction:
                response.headers[wire.INSTRUCTION] = json.dumps(first.instruction)
            return response

        return await self._call(request.match_info["episode"], "start", start)

    async def _start_env(self, episode: Episode, task: Task) -> Observation:
        async with boundary(EnvError, "start"):
            made = self._factory()
        episode.env = GuardedEnv(made, self._config)
        return await episode.env.start(task)

    async def _step(self, request: web.Request) -> web.Response:
        [content] = await _body(request, "step", "actions")
        actions = wire.actions_from_json(content, "step")

        async def step(episode: Episode) -> web.Response:
            result = await started_env(episode, "step").step(actions)
            response = _screenshot_response(episode, result.observation.screenshot)
            response.headers[wire.TERMINATED] = json.dumps(result.terminated)
            return response

        return await self._call(request.match_info["episode"], "step", step)

    async def _evaluate(self, request: web.Request) -> web.Response:
        await _body(request, "evaluate")

        async def evaluate(episode: Episode) -> web.Response:
            return web.json_response({"score": await started_env(episode, "evaluate").evaluate()})

        return await self._call(request.match_info["episode"], "evaluate", evaluate)

    async def _delete(self, request: web.Request) -> web.Response:
        """Cancel a running call, close the environment and wait until the slot is free."""
        name = request.match_info["episode"]
        if name in self._episodes:
            self._close(name)
        if name not in self._closing:
            raise NoSuchEpisode("close", "no such episode: it was already closed")
        await asyncio.shield(self._closing[name])
        return web.Response(status=204)

    async def _call(self, name: str, where: str, work: Callable[[Episode], Coroutine[Any, Any, _T]]) -> _T:
        """Run one call of an episode; it does not expire meanwhile. A second concurrent call is refused.

        If the caller disconnects, the episode ends: nobody can continue it without the result.
        """
        if name not in self._episodes:
            limit = f"{self._lease_seconds:g} s without a call"
            raise NoSuchEpisode(where, f"no such episode: it was closed, or expired after {limit}")
        episode = self._episodes[name]
        if episode.call is not None:
            raise OutOfTurn(where, "another call of this episode is running")
        episode.timer.cancel()
        call = episode.call = asyncio.create_task(work(episode))
        try:
            return await asyncio.shield(call)  # `_end` cancels the call: it does not wait for it forever
        except EnvTimeout:
            self._close(name)
            raise
        except asyncio.CancelledError:
            if (own := asyncio.current_task()) is None or own.cancelling():
                self._close(name)
                raise
            raise NoSuchEpisode(where, "the episode was closed during the call") from None
        finally:
            if call.done():
                episode.call = None
            if name in self._episodes:
                episode.timer = self._timer(name, self._lease_seconds)

    def _timer(self, name: str, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._close, name)

    def _close(self, name: str) -> None:
        """End the episode in the background; its slot is free once the environment is closed."""
        if (episode := self._episodes.pop(name, None)) is None:
            return
        episode.timer.cancel()

        def closed(task: asyncio.Task[None]) -> None:
            del self._closing[name]
            episode.on_end()
            if not task.cancelled() and (fault := task.exception()):
                _log.warning("episode %s: %s", name, fault)

        self._closing[name] = asyncio.create_task(self._end(episode))
        self._closing[name].add_done_callback(closed)

    async def _end(self, episode: Episode) -> None:
        if episode.call is not None:
            episode.call.cancel()
            await asyncio.wait([episode.call], timeout=self._config.step_seconds)
        if episode.env is not None:
            await episode.env.close()


MakeHost = Callable[[EnvFactory, EnvConfig, str | None, float], Host]


@asynccontextmanager
async def hosting(
    factory: EnvFactory,
    config: EnvConfig,
    *,
    token: str | None,
    listen: Listen,
    lease_seconds: float = LEASE_SECONDS,
    make_host: MakeHost = Host,
) -> AsyncIterator[str]:
    """Run a host during the block and yield its URL. Leaving the block closes every environment."""
    host = make_host(factory, config, token, lease_seconds)
    try:
        listeners = bind(listen.host, listen.port)
    except OSError as error:
        raise UserError(f"--listen {listen.host}:{listen.port}: {error.strerror}") from error
    try:
        async with listening(host.application(), listeners, host.connections) as port:
            yield listen.url(port)
    finally:
        await host.close()


def run_host(
    config: Config, address: str, ready_file: Path | None, with_parent: bool, make_host: MakeHost = Host
) -> int:
    """`arpo env-host`: serve until SIGINT or SIGTERM, or with `with_parent` until stdin closes."""
    parent = _ParentWatch()
    if with_parent:
        parent.watch(grace_seconds=2 * config.env.step_seconds)
    token = wire.read_token(os.environ)
    listen = Listen.read(address).checked(token)
    raise_descriptor_limit(config.env.parallel)

    async def serve(factory: EnvFactory) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        parent.on_exit = lambda: loop.call_soon_threadsafe(ended.set)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        serving = hosting(factory, config.env, token=token, listen=listen, make_host=make_host)
        async with serving as address:
            print(f"{config.env.name}: {config.env.parallel} slots at {address}", flush=True)
            if ready_file is not None:
                _write_ready(ready_file, address)
            await ended.wait()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)  # a second signal kills the process

    with bounded_log():
        asyncio.run(serve(resolve_env(config)))
    return 0


class _ParentWatch:
    """Detects the exit of the parent process, which holds the other end of stdin, even if it was killed."""

    def __init__(self) -> None:
        self.on_exit: Callable[[], object] = lambda: os._exit(1)

    def watch(self, grace_seconds: float) -> None:
        """Call `on_exit` when stdin closes; kill this process if it still runs `grace_seconds` later."""

        def wait() -> None:
            while os.read(0, 4096):
                pass
            self.on_exit()
            time.sleep(grace_seconds)
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()


def _write_ready(path: Path, address: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps({"address": address}), "utf-8")
    os.replace(temporary, path)


async def _body(request: web.Request, where: str, *names: str) -> list[Any]:
    """Return the values of the body, a JSON object with exactly these keys."""
    return wire.object_values(await read_json_body(request, where), names, where, "body")


async def read_json_body(request: web.Request, where: str) -> Any:
    """Return the body.

    Requires the JSON content type: a web page of another origin cannot send it without CORS permission.
    """
    if request.content_type != "application/json":
        raise BadRequest(where, f"the body must be application/json, not {request.content_type}")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            content = await request.read()
    except TimeoutError:
        raise BadRequest(where, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    return wire.read_json(content, where)


def started_env(episode: Episode, where: str) -> GuardedEnv:
    if episode.env is None:
        raise OutOfTurn(where, "the episode has not started")
    return episode.env


def _screenshot_response(episode: Episode, screenshot: Screenshot) -> web.Response:
    headers = {"ETag": f'"{screenshot.sha256}"'}
    if screenshot.sha256 in episode.sent:
        return web.Response(status=204, headers=headers)
    episode.sent.add(screenshot.sha256)
    return web.Response(body=screenshot.png, content_type="image/png", headers=headers)


def _error_response(status: int, fault: EnvError) -> web.Response:
    headers = {"Retry-After": str(RETRY_SECONDS)} if isinstance(fault, NoFreeSlot) else {}
    return web.json_response(wire.fault_to_json(fault), status=status, headers=headers)
