"""Environments in other processes and on other machines, reached with the protocol of `wire.py`.

`Hosts` is an EnvSource. A lease goes to the host with the most free slots. When a host refuses calls, dies or
hangs, its episodes fail, and the host is probed again with exponential backoff until it is back. A lease
fails only if no host was reachable for `env.start_seconds`; if none ever was, this is a UserError.

Each lease has its own HTTP session, because a session must not outlive its event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from yarl import URL

from arpo.actions import Action
from arpo.config import EnvConfig
from arpo.engines.http_exchange import read_bounded
from arpo.envs import wire
from arpo.envs.base import Env, EnvSource
from arpo.envs.slots import Slots
from arpo.envs.wire import BadRequest, NoFreeSlot, NoSuchEpisode, WrongToken
from arpo.errors import EnvError, UserError
from arpo.processes.backoff import pause_after
from arpo.types import Observation, Screenshot, StepResult, Task

PROBE_SECONDS = 5.0  # timeout for connecting, and for calls without an environment
SLACK_SECONDS = 5.0  # added to each timeout: the host must report a slow environment first
FULL_SECONDS = 1.0  # between probes of a host without free slots


class HostLost(EnvError):
    """The host did not respond: it refused the connection, died or hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A successful HTTP response, read completely."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class RemoteHost:
    """One host as seen by this process. `address` returns its URL, or raises HostLost while it has none."""

    def __init__(self, name: str, address: Callable[[], str], token: str | None) -> None:
        self.name = name
        self.free = 0
        self.was_probed = False
        self.rejection = ""  # why its environments cannot be used, for example a wrong token
        self.last_error = ""  # why it was marked lost
        self.lost_since: float | None = None
        self._address = address
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._next_probe = 0.0
        self._failed_probes = 0

    @property
    def needs_probe(self) -> bool:
        """Whether it has no free slot and its backoff is over."""
        return self.free <= 0 and time.monotonic() >= self._next_probe

    async def probe(self, config: EnvConfig) -> None:
        """Update its state from /health. A host with other environments than `config` is rejected."""
        try:
            async with open_session() as session:
                response = await self.call(session, "GET", "/health", where="start", seconds=PROBE_SECONDS)
            health = wire.health_from_json(wire.read_json(response.body, "start"), "start")
            self._check(health, config)
        except HostLost:
            pass
        except EnvError as fault:
            self._reject(fault)
        else:
            self.free, self.lost_since, self.rejection = health.free, None, ""
            self._next_probe = time.monotonic() + FULL_SECONDS
        finally:
            self.was_probed = True

    async def acquire_slot(self, session: aiohttp.ClientSession) -> str | None:
        """Take a slot and return its episode id; None if the host has none or is lost."""
        self.free -= 1
        try:
            response = await self.call(
                session, "POST", "/episodes", where="start", seconds=PROBE_SECONDS, body={}
            )
            episode = response.headers.get(wire.EPISODE, "")
            if not re.fullmatch("[0-9a-f]+", episode):
                raise EnvError("start", f"{self.name}: returned no episode id")
        except NoFreeSlot:
            self.free = 0
            self._next_probe = time.monotonic() + FULL_SECONDS
        except HostLost:
            pass
        except EnvError as fault:
            self._reject(fault)
        else:
            return episode
        return None

    async def call(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        *,
        where: str,
        seconds: float,
        body: Mapping[str, Any] | None = None,
    ) -> Response:
        """Call the host and return its response.

        Raises the EnvError reported by the host, or HostLost if it does not respond within `seconds`.
        """
        limit = aiohttp.ClientTimeout(total=seconds, sock_connect=PROBE_SECONDS)
        try:
            async with session.request(
                method,
                self._address() + path,
                json=body,
                headers=self._headers,
                timeout=limit,
                allow_redirects=False,
            ) as reply:
                content = await _read_body(reply, where)
        except HostLost as lost:
            self._mark_lost(lost.message)
            raise
        except (aiohttp.ClientError, OSError) as error:
            is_timeout = isinstance(error, TimeoutError)
            reason = f"no answer within {seconds:g} s" if is_timeout else f"{type(error).__name__}: {error}"
            self._mark_lost(f"{self.name}: {reason}")
            raise HostLost(where, self.last_error) from error
        if reply.status >= 300:
            raise self._fault(reply.status, content, where)
        return Response(status=reply.status, headers=reply.headers, body=content)

    def _fault(self, status: int, content: bytes, where: str) -> EnvError:
        try:
            return wire.fault_from_json(wire.read_json(content, where), where)
        except BadRequest:
            return EnvError(where, f"{self.name}: not an environment host: it responded with status {status}")

    def _check(self, health: wire.Health, config: EnvConfig) -> None:
        if health.env != config.name:
            raise EnvError("start", f"serves {health.env!r}, but env.name = {config.name!r}")
        if health.screen != wire.configured_screen(config):
            raise EnvError(
                "start",
                f"has screens of {health.screen}, but env.width and env.height are "
                f"{wire.configured_screen(config)}: start its `arpo env-host` with the same recipe",
            )

    def _reject(self, fault: EnvError) -> None:
        reason = (
            f"set {wire.TOKEN_VARIABLE} to the host's token"
            if isinstance(fault, WrongToken)
            else fault.message
        )
        self.rejection = f"{self.name}: {reason}"
        self._mark_lost(self.rejection)

    def _mark_lost(self, last_error: str) -> None:
        """Exclude the host until its next probe. Its episodes may all fail at once: only the first counts."""
        now = time.monotonic()
        if self.lost_since is None:
            self.lost_since, self._failed_probes = now, 0
        elif now < self._next_probe:
            return
        self._failed_probes += 1
        self.free, self.last_error = 0, last_error
        self._next_probe = now + pause_after(self._failed_probes)


class RemoteEnv:
    """One episode on a host. Each distinct screenshot is transferred once."""

    def __init__(
        self, host: RemoteHost, session: aiohttp.ClientSession, episode: str, config: EnvConfig
    ) -> None:
        self.host = host.name
        self._host = host
        self._session = session
        self._path = f"/episodes/{episode}"
        self._config = config
        self._received: dict[str, Screenshot] = {}
        self._lost = False
        self._closed = False

    async def start(self, task: Task) -> Observation:
        body = {"task": wire.task_to_json(task)}
        response = await self._post("start", self._config.start_seconds, body)
        written = response.headers.get(wire.INSTRUCTION, '""').encode()
        instruction = wire.read_json(written, "start")
        return Observation(screenshot=self._screenshot("start", response), instruction=instruction)

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        body = {"actions": wire.actions_to_json(actions)}
        response = await self._post("step", self._config.step_seconds, body)
        return StepResult(
            observation=Observation(screenshot=self._screenshot("step", response)),
            terminated=response.headers.get(wire.TERMINATED) == json.dumps(True),
        )

    async def evaluate(self) -> float:
        response = await self._post("evaluate", self._config.evaluate_seconds, {})
        [score] = wire.object_values(
            wire.read_json(response.body, "evaluate"), ("score",), "evaluate", "response"
        )
        return score

    async def close(self) -> None:
        """Does not fail if the episode has expired, or if an earlier call already lost the host."""
        if self._closed:
            return
        self._closed = True
        limit = PROBE_SECONDS if self._lost else self._config.step_seconds + SLACK_SECONDS
        with suppress(NoSuchEpisode, *([HostLost] if self._lost else [])):
            await self._host.call(self._session, "DELETE", self._path, where="close", seconds=limit)
        if self._host.lost_since is None:
            self._host.free += 1

    async def _post(self, where: str, seconds: float, body: Mapping[str, Any]) -> Response:
        limit = seconds + SLACK_SECONDS
        try:
            return await self._host.call(
                self._session, "POST", f"{self._path}/{where}", where=where, seconds=limit, body=body
            )
        except HostLost:
            self._lost = True
            raise

    def _screenshot(self, where: str, response: Response) -> Screenshot:
        name = response.headers.get("ETag", "").strip('"')
        if response.status == 204:
            if name not in self._received:
                raise EnvError(where, f"{self._host.name}: refers to a screenshot that it never sent")
            return self._received[name]
        screenshot = Screenshot.of(response.body)
        if screenshot.sha256 != name:
            raise EnvError(where, f"{self._host.name}: the screenshot does not match its ETag")
        self._received[name] = screenshot
        return screenshot


class Hosts:
    """Leases environments from hosts: at most env.parallel at a time, limited by their slots.

    `end` ends the hosts, if this process has started them.
    """

    def __init__(
        self, hosts: Sequence[RemoteHost], config: EnvConfig, end: Callable[[], None] = lambda: None
    ) -> None:
        self._hosts = tuple(hosts)
        self._config = config
        self._end = end
        self._slots = Slots(config.parallel)
        self._has_leased = False
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._waiters: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Env]:
        async with self._slots(), open_session() as session:
            host, episode = await self._acquire(session)
            env = RemoteEnv(host, session, episode, self._config)
            try:
                yield env
            finally:
                with suppress(EnvError):  # to see this fault, a caller closes the environment itself
                    await env.close()
                self._notify()

    def close(self) -> None:
        self._end()

    async def _acquire(self, session: aiohttp.ClientSession) -> tuple[RemoteHost, str]:
        """Take a slot of some host. If all are full or lost, waits until a lease or a probe ends."""
        since = time.monotonic()
        while True:
            self._start_probes()
            if all(host.was_probed for host in self._hosts):
                self._raise_if_rejected()
                best = max(self._hosts, key=lambda host: host.free)
                if best.free > 0:
                    if episode := await best.acquire_slot(session):
                        self._has_leased = True
                        return best, episode
                    continue
                self._raise_if_all_lost(since)
            await self._wait_for_change(FULL_SECONDS)

    def _start_probes(self) -> None:
        """Start due probes in the background: a hanging host must not delay a lease."""
        for host in self._hosts:
            if host.needs_probe and (host.name not in self._probes or self._probes[host.name].done()):
                self._probes[host.name] = asyncio.create_task(self._probe(host))

    async def _probe(self, host: RemoteHost) -> None:
        await host.probe(self._config)
        self._notify()

    def _raise_if_rejected(self) -> None:
        """Before the first lease, a rejected host is a user error; later it counts as lost."""
        for host in self._hosts:
            if host.rejection and not self._has_leased:
                raise UserError(f"env.hosts: {host.rejection}")

    def _raise_if_all_lost(self, since: float) -> None:
        lost = [host.lost_since for host in self._hosts if host.lost_since is not None]
        if len(lost) < len(self._hosts):
            return
        if time.monotonic() - max(since, *lost) >= self._config.start_seconds:
            errors = "; ".join(host.last_error for host in self._hosts)
            if not self._has_leased:
                raise UserError(
                    f"no environment host is reachable: {errors}: start one with `arpo env-host`, or correct "
                    "env.hosts"
                )
            raise EnvError("start", f"no environment host is reachable: {errors}")

    async def _wait_for_change(self, seconds: float) -> None:
        """Wait for `_notify`, at most `seconds`. (An asyncio.Event would be tied to its first loop.)"""
        changed = asyncio.get_running_loop().create_future()
        self._waiters.add(changed)
        try:
            await asyncio.wait([changed], timeout=seconds)
        finally:
            self._waiters.discard(changed)

    def _notify(self) -> None:
        for changed in self._waiters:
            if not changed.done():
                changed.set_result(None)


class LeaseOnStartEnv:
    """Takes its lease in `start` and returns it in `close`."""

    def __init__(self, source: EnvSource) -> None:
        self._source = source
        self._lease = AsyncExitStack()
        self._env: Env | None = None

    async def start(self, task: Task) -> Observation:
        self._env = await self._lease.enter_async_context(self._source.lease())
        return await self._env.start(task)

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        return await self._started("step").step(actions)

    async def evaluate(self) -> float:
        return await self._started("evaluate").evaluate()

    async def close(self) -> None:
        async with self._lease:
            if self._env is not None:
                await self._env.close()

    def _started(self, where: str) -> Env:
        if self._env is None:
            raise EnvError(where, "the environment was not started")
        return self._env


def parse_hosts(config: EnvConfig) -> Hosts:
    """Read the addresses in env.hosts, for example "http://a:8700,http://b:8700"."""
    token = wire.read_token(os.environ)
    addresses = [_parse_address(entry.strip()) for entry in config.hosts.split(",")]
    for address in addresses:
        if addresses.count(address) > 1:
            raise UserError(f"env.hosts: {address} occurs twice: remove one")
    return Hosts([_host_at(address, token) for address in addresses], config)


def add_timeout_slack(config: EnvConfig) -> EnvConfig:
    """Return longer timeouts, for callers of a host.

    The host applies the configured ones itself, so only a hanging host exceeds the longer ones.
    """
    slack = 2 * SLACK_SECONDS
    return replace(
        config,
        start_seconds=config.start_seconds + slack,
        step_seconds=config.step_seconds + slack,
        evaluate_seconds=config.evaluate_seconds + slack,
    )


def open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(max_field_size=wire.MAX_HEADER_BYTES)


def _host_at(address: str, token: str | None) -> RemoteHost:
    return RemoteHost(address, lambda: address, token)


def _parse_address(text: str) -> str:
    try:
        url = URL(text)
        origin = url.origin()
        is_valid = url.scheme in ("http", "https") and url == origin
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UserError(f"env.hosts: {text!r} is not an address: use http://HOST:PORT, separated by commas")
    return str(origin)


async def _read_body(reply: aiohttp.ClientResponse, where: str) -> bytes:
    content = await read_bounded(reply, wire.MAX_RESPONSE_BYTES)
    if len(content) > wire.MAX_RESPONSE_BYTES:
        raise EnvError(where, f"the response is larger than {wire.MAX_RESPONSE_BYTES} bytes")
    return content
