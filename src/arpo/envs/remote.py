"""Environments in other processes and on other machines, over the protocol of `wire.py`.

`Hosts` is a source like any other. A lease goes to the host with most free slots. A host that refuses, dies
or hangs costs the episodes that it held, is set aside, and is looked at again with growing pauses until it
is back. Only when none has been in reach for long enough does a lease fail; if none ever was, the run ends.

A session belongs to a lease and ends with it, so nothing here outlives the loop that it was used in.
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
from arpo.envs import wire
from arpo.envs.base import Env, EnvSource
from arpo.envs.pool import Slots
from arpo.envs.wire import BadRequest, NoFreeSlot, NoSuchEpisode, WrongToken
from arpo.errors import EnvError, UserError
from arpo.types import Observation, Screenshot, StepResult, Task

LOOK_SECONDS = 5.0  # a question that needs no environment is answered sooner, or the host hangs
SLACK_SECONDS = 5.0  # the host's own verdict that an environment is late comes first
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
FULL_PAUSE = 1.0


class HostLost(EnvError):
    """The host gave no answer: it refused, vanished or hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class RemoteHost:
    """One host as it looks from here: where it is, how many slots it has free, since when it is lost."""

    def __init__(self, name: str, address: Callable[[], str], token: str | None) -> None:
        self.name = name
        self.free = 0
        self.looked = False  # at least once
        self.refusal = ""  # why it is not a host for us
        self.trouble = ""  # why it was set aside
        self.lost_since: float | None = None
        self._address = address  # HostLost where there is none at the moment
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._look_at = 0.0
        self._pause = FIRST_PAUSE

    @property
    def is_due(self) -> bool:
        """Whether it should be looked at: nothing can be leased from it, and its pause is over."""
        return self.free <= 0 and time.monotonic() >= self._look_at

    async def look(self, config: EnvConfig) -> None:
        """Ask how it is. A host that serves something else than `config` says is refused."""
        try:
            async with open_session() as session:
                answer = await self.call(session, "GET", "/health", where="start", seconds=LOOK_SECONDS)
            health = wire.health_from_json(wire.read_json(answer.body, "start"), "start")
            self._check(health, config)
        except HostLost:
            pass
        except EnvError as fault:
            self._refuse(fault)
        else:
            self.free, self.lost_since, self.refusal = health.free, None, ""
            self._look_at = time.monotonic() + FULL_PAUSE
        finally:
            self.looked = True

    async def take(self, session: aiohttp.ClientSession) -> str | None:
        """A slot: the name of the episode in it; None where there is none, and that is remembered."""
        self.free -= 1
        try:
            answer = await self.call(
                session, "POST", "/episodes", where="start", seconds=LOOK_SECONDS, body={}
            )
            episode = answer.headers.get(wire.EPISODE, "")
            if not re.fullmatch("[0-9a-f]+", episode):
                raise EnvError("start", f"{self.name}: gave no episode")
        except NoFreeSlot:
            self.free = 0
            self._look_at = time.monotonic() + FULL_PAUSE
        except HostLost:
            pass
        except EnvError as fault:
            self._refuse(fault)
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
    ) -> Answer:
        """Its answer, or the fault that it answers with. HostLost, and the host is set aside, without one."""
        limit = aiohttp.ClientTimeout(total=seconds, sock_connect=LOOK_SECONDS)
        try:
            async with session.request(
                method,
                self._address() + path,
                json=body,
                headers=self._headers,
                timeout=limit,
                allow_redirects=False,
            ) as response:
                content = await _limited(response, where)
        except HostLost as lost:
            self._set_aside(lost.message)
            raise
        except (aiohttp.ClientError, OSError) as error:
            late = isinstance(error, TimeoutError)
            reason = f"no answer within {seconds:g} s" if late else f"{type(error).__name__}: {error}"
            self._set_aside(f"{self.name}: {reason}")
            raise HostLost(where, self.trouble) from error
        if response.status >= 300:
            raise self._fault(response.status, content, where)
        return Answer(status=response.status, headers=response.headers, body=content)

    def _fault(self, status: int, content: bytes, where: str) -> EnvError:
        try:
            return wire.fault_from_json(wire.read_json(content, where), where)
        except BadRequest:
            return EnvError(where, f"{self.name}: answered {status}, not as an environment host does")

    def _check(self, health: wire.Health, config: EnvConfig) -> None:
        if health.env != config.name:
            raise EnvError("start", f"serves {health.env!r}, but env.name = {config.name!r}")
        if health.screen != wire.screen_of(config):
            raise EnvError(
                "start",
                f"has screens of {health.screen}, but env.width and env.height say {wire.screen_of(config)}: "
                "give its `arpo env-host` the same recipe",
            )

    def _refuse(self, fault: EnvError) -> None:
        reason = f"set {wire.TOKEN} to the host's token" if isinstance(fault, WrongToken) else fault.message
        self.refusal = f"{self.name}: {reason}"
        self._set_aside(self.refusal)

    def _set_aside(self, trouble: str) -> None:
        """Until it is looked at again. All its episodes may say so at once: that is one reason, not many."""
        now = time.monotonic()
        if self.lost_since is None:
            self.lost_since, self._pause = now, FIRST_PAUSE
        elif now >= self._look_at:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        else:
            return
        self.free, self.trouble, self._look_at = 0, trouble, now + self._pause


class RemoteEnv:
    """One episode on a host. Every picture crosses the wall once."""

    def __init__(
        self, host: RemoteHost, session: aiohttp.ClientSession, episode: str, config: EnvConfig
    ) -> None:
        self._host = host
        self._session = session
        self._path = f"/episodes/{episode}"
        self._config = config
        self._seen: dict[str, Screenshot] = {}
        self._lost = False
        self._closed = False

    async def start(self, task: Task) -> Observation:
        body = {"task": wire.task_to_json(task)}
        answer = await self._post("start", self._config.start_seconds, body)
        return Observation(screenshot=self._screenshot("start", answer))

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        body = {"actions": wire.actions_to_json(actions)}
        answer = await self._post("step", self._config.step_seconds, body)
        return StepResult(
            observation=Observation(screenshot=self._screenshot("step", answer)),
            terminated=answer.headers.get(wire.TERMINATED) == json.dumps(True),
        )

    async def evaluate(self) -> float:
        answer = await self._post("evaluate", self._config.evaluate_seconds, {})
        [score] = wire.members(wire.read_json(answer.body, "evaluate"), ("score",), "evaluate", "answer")
        return score

    async def close(self) -> None:
        """Nothing is left to close where the host gave the episode up, or is itself gone."""
        if self._closed:
            return
        self._closed = True
        limit = LOOK_SECONDS if self._lost else self._config.step_seconds + SLACK_SECONDS
        with suppress(NoSuchEpisode, *([HostLost] if self._lost else [])):
            await self._host.call(self._session, "DELETE", self._path, where="close", seconds=limit)
        if self._host.lost_since is None:
            self._host.free += 1

    async def _post(self, where: str, seconds: float, body: Mapping[str, Any]) -> Answer:
        limit = seconds + SLACK_SECONDS
        try:
            return await self._host.call(
                self._session, "POST", f"{self._path}/{where}", where=where, seconds=limit, body=body
            )
        except HostLost:
            self._lost = True
            raise

    def _screenshot(self, where: str, answer: Answer) -> Screenshot:
        name = answer.headers.get("ETag", "").strip('"')
        if answer.status == 204:
            if name not in self._seen:
                raise EnvError(where, f"{self._host.name}: names a picture that it never sent")
            return self._seen[name]
        screenshot = Screenshot.of(answer.body)
        if screenshot.sha256 != name:
            raise EnvError(where, f"{self._host.name}: the picture is not the one that its name says")
        self._seen[name] = screenshot
        return screenshot


class Hosts:
    """The source of environments on these hosts: env.parallel at once, or as many as they have slots."""

    def __init__(self, hosts: Sequence[RemoteHost], config: EnvConfig) -> None:
        self._hosts = tuple(hosts)
        self._config = config
        self._slots = Slots(config.parallel)
        self._given = False  # a first lease
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Env]:
        async with self._slots(), open_session() as session:
            host, episode = await self._take(session)
            try:
                yield RemoteEnv(host, session, episode, self._config)
            finally:
                self._tell()

    async def _take(self, session: aiohttp.ClientSession) -> tuple[RemoteHost, str]:
        """A slot of some host. Waits, while all are full or lost, for the end of a lease or of a look."""
        since = time.monotonic()
        while True:
            self._look_around()
            if all(host.looked for host in self._hosts):
                self._refuse_strangers()
                best = max(self._hosts, key=lambda host: host.free)
                if best.free > 0:
                    if episode := await best.take(session):
                        self._given = True
                        return best, episode
                    continue
                self._give_up_if_lost(since)
            await self._change(FULL_PAUSE)

    def _look_around(self) -> None:
        """Look at every host that is due, without waiting: one that hangs holds nobody up."""
        for host in self._hosts:
            if host.is_due and (host.name not in self._looks or self._looks[host.name].done()):
                self._looks[host.name] = asyncio.create_task(self._look(host))

    async def _look(self, host: RemoteHost) -> None:
        await host.look(self._config)
        self._tell()

    def _refuse_strangers(self) -> None:
        """A wrong address or token is the user's mistake, found at the start; later, such a host is lost."""
        for host in self._hosts:
            if host.refusal and not self._given:
                raise UserError(f"env.hosts: {host.refusal}")

    def _give_up_if_lost(self, since: float) -> None:
        lost = [host.lost_since for host in self._hosts if host.lost_since is not None]
        if len(lost) < len(self._hosts):
            return
        if time.monotonic() - max(since, *lost) >= self._config.start_seconds:
            troubles = "; ".join(host.trouble for host in self._hosts)
            if not self._given:
                raise UserError(
                    f"no environment host is in reach: {troubles}: start one with `arpo env-host`, or mend "
                    "env.hosts"
                )
            raise EnvError("start", f"no environment host is in reach: {troubles}")

    async def _change(self, seconds: float) -> None:
        """Wait for `_tell`, at most so long. (An asyncio.Event would be tied to its first loop.)"""
        told = asyncio.get_running_loop().create_future()
        self._waiting.add(told)
        try:
            await asyncio.wait([told], timeout=seconds)
        finally:
            self._waiting.discard(told)

    def _tell(self) -> None:
        for told in self._waiting:
            if not told.done():
                told.set_result(None)


class LeaseOnStartEnv:
    """An environment that is leased when it starts, for those who make their environments one by one."""

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
            raise EnvError(where, "was not started")
        return self._env


def parse_hosts(config: EnvConfig) -> Hosts:
    """The hosts that env.hosts names: "http://a:8700,http://b:8700"."""
    token = wire.read_token(os.environ)
    addresses = [_address(entry.strip()) for entry in config.hosts.split(",")]
    for address in addresses:
        if addresses.count(address) > 1:
            raise UserError(f"env.hosts: {address} is named twice")
    return Hosts([_fixed(address, token) for address in addresses], config)


def add_timeout_slack(config: EnvConfig) -> EnvConfig:
    """The limits of who waits for a host: it has limits of its own, so only one that hangs is later."""
    more = 2 * SLACK_SECONDS
    return replace(
        config,
        start_seconds=config.start_seconds + more,
        step_seconds=config.step_seconds + more,
        evaluate_seconds=config.evaluate_seconds + more,
    )


def open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession()


def _fixed(address: str, token: str | None) -> RemoteHost:
    return RemoteHost(address, lambda: address, token)


def _address(text: str) -> str:
    try:
        url = URL(text)
        origin = url.origin()
        good = url.scheme in ("http", "https") and url == origin
    except ValueError:
        good = False
    if not good:
        raise UserError(f"env.hosts: {text!r} is no address: write http://HOST:PORT, several with commas")
    return str(origin)


async def _limited(response: aiohttp.ClientResponse, where: str) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > wire.MOST_ANSWER_BYTES:
            raise EnvError(where, f"the answer has more than {wire.MOST_ANSWER_BYTES} bytes")
    return bytes(content)
