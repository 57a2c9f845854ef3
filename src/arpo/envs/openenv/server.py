"""An OpenEnv server as seen by its client: its address, its schema, its tasks, and sessions with it."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import aiohttp

from arpo.config.task_set_names import OPENENV
from arpo.engines.http_exchange import one_line
from arpo.envs.openenv.schema import require_schema
from arpo.errors import ActionRefused, EnvError, UserError
from arpo.processes.backoff import pause_after
from arpo.processes.environment import read_secret
from arpo.types import Task

TOKEN_VARIABLE = "ARPO_OPENENV_TOKEN"  # not that of our own hosts: other people run these servers
RESET = "reset"  # type of the set-up step with the parameters of a reset
MAX_MESSAGE = 2**27  # bytes: the pixels of a 4K screen as a JSON array have less
_CALL_SECONDS = 30.0
_CLOSE_SECONDS = 5.0
_FULL_ATTEMPTS = 4  # an ended session frees its place a moment later
_FULL = "CAPACITY_REACHED"
_LIST = "/list_environments"
_GOALS = ("instruction", "goal", "prompt", "question", "description")  # of a task, the usual names

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """`url` without a final slash; `headers` with the token of ARPO_OPENENV_TOKEN, if it is set."""

    url: str
    headers: dict[str, str]

    def schema(self) -> Json:
        """Its /schema. Raises UserError if there is none."""
        found = self.call("/schema")
        for part in ("action", "observation"):
            if not isinstance(found, dict) or not isinstance(found.get(part), dict):
                raise UserError(f"{self.url}/schema: {part!r} is missing: not an OpenEnv server")
            try:
                require_schema(found[part], part)
            except RecursionError:
                raise UserError(f"{self.url}/schema: {part} is nested too deeply") from None
            except ValueError as error:
                raise UserError(f"{self.url}/schema: {error}: correct the server") from None
        return found

    def call(self, path: str, body: Json | None = None) -> Any:
        """The answer to GET, or to POST with a body. Raises UserError if there is none."""
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", **self.headers},
        )
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
        try:
            with direct.open(request, timeout=_CALL_SECONDS) as answer:
                return json.loads(answer.read(MAX_MESSAGE))
        except urllib.error.HTTPError as error:
            remedy = f"set {TOKEN_VARIABLE}" if error.code in (401, 403) else "not an OpenEnv server"
            if error.code == 501 or (error.code, path) == (404, _LIST):
                raise NoTasks(self.url) from error
            raise UserError(f"{self.url}{path}: answered with status {error.code}: {remedy}") from error
        except (OSError, ValueError, HTTPException, RecursionError) as error:
            reason = one_line(str(getattr(error, "reason", None) or error))
            raise UserError(
                f"{self.url}{path}: {reason}: start the OpenEnv server, or correct the address"
            ) from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to another server."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


class NoTasks(UserError):
    """The server has no task lists, or its version of OpenEnv does not know them."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"{url}: has no task lists: set tasks.train or --tasks to a file tasks.json such as "
            '[{"id": "a", "instruction": "Reach the goal", "evaluator": {}, '
            '"config": [{"type": "reset", "parameters": {"seed": 1}}]}]'
        )


def parse_address(key: str, text: str) -> tuple[Server, str]:
    """Split "openenv:http://HOST:PORT#REST" into the server and REST ("" without it)."""
    url, _, rest = text.removeprefix(OPENENV).partition("#")
    if not re.fullmatch(r"https?://[^\s/?]+(/[^\s?]*)?", url):
        raise UserError(f"{key} = {text!r}: must be {OPENENV}http://HOST:PORT#…")
    token = read_secret(TOKEN_VARIABLE)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return Server(url=url.rstrip("/"), headers=headers), rest


def openenv_tasks(source: str) -> list[Task]:
    """The tasks of a split: "openenv:http://HOST:PORT#SPLIT". Raises UserError with the splits there are."""
    server, split = parse_address("tasks", source)
    names = server.call(_LIST)
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise UserError(f"{server.url}{_LIST}: must be a list with a name")
    splits = server.call(f"/{names[0]}/splits")
    known = (
        [str(one.get("name")) for one in splits if isinstance(one, dict)] if isinstance(splits, list) else []
    )
    if split not in known:
        fault = f"no split {split!r}" if split else "names no split"
        raise UserError(
            f"{source}: {fault}; write {OPENENV}{server.url}#SPLIT with one of: {', '.join(known)}"
        )
    answer = server.call(f"/{names[0]}/tasks", {"split": split})
    specs = answer.get("tasks") if isinstance(answer, dict) else None
    if not isinstance(specs, list):
        raise UserError(f"{server.url}/{names[0]}/tasks: 'tasks' must be a list")
    folder = re.sub(r"[^\w.-]+", "_", split).strip("._") or "split"
    return [_task(spec, split, index, folder) for index, spec in enumerate(specs)]


def _task(spec: Any, split: str, index: int, folder: str) -> Task:
    goals = [spec.get(key) for key in _GOALS] if isinstance(spec, dict) else [spec]
    return Task(
        id=f"{folder}-{index:04}",
        instruction=next((goal for goal in goals if isinstance(goal, str) and goal), ""),
        snapshot="",
        config=({"type": RESET, "parameters": {"split": split, "index": index}},),
        evaluator={},
        domain=folder,
    )


class Session:
    """One WebSocket session: one environment of the server. Every call raises EnvError if it fails.

    A task reads all the time: the server pings, and it ends a session that does not answer, also while a
    model thinks for a minute.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client: aiohttp.ClientSession | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: asyncio.Queue[Json | str] = asyncio.Queue()  # a text: why there will be no more

    async def reset(self, parameters: Json) -> Json:
        """Open the session and start an episode. A full server gets some more attempts."""
        for attempt in range(1, _FULL_ATTEMPTS + 1):
            await self._open()
            try:
                return await self._call("start", {"type": "reset", "data": parameters})
            except _Full as full:
                await self.close()
                if attempt == _FULL_ATTEMPTS:
                    raise EnvError("start", f"{full.message}: lower env.parallel to its sessions") from full
            await asyncio.sleep(pause_after(attempt))
        raise AssertionError

    async def step(self, action: Json) -> Json:
        """Raises ActionRefused if the server answers with an error."""
        return await self._call("step", {"type": "step", "data": action})

    async def close(self) -> None:
        """End the session and wait a moment until the server has freed its place."""
        if self._reading is not None:
            reading, self._reading = self._reading, None
            if not reading.done():
                await self._send({"type": "close"})
                await asyncio.wait([reading], timeout=_CLOSE_SECONDS)
            reading.cancel()
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def _open(self) -> None:
        self._answers = asyncio.Queue()
        self._client = aiohttp.ClientSession(headers=self._server.headers)
        url = f"ws{self._server.url.removeprefix('http')}/ws"
        try:
            self._socket = await self._client.ws_connect(url, max_msg_size=MAX_MESSAGE)
        except (aiohttp.ClientError, OSError) as error:
            raise EnvError("start", f"{self._server.url}: {type(error).__name__}: {error}") from error
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Ends when the connection does."""
        end = "the server has closed the session"
        async for message in self._socket:
            try:
                answer = json.loads(message.data)
            except (ValueError, TypeError, RecursionError):
                end = f"the answer is not JSON: {str(message.data)[:60]!r}"
                break
            self._answers.put_nowait(answer if isinstance(answer, dict) else {})
        self._answers.put_nowait(end)

    async def _call(self, where: str, message: Json) -> Json:
        """The data of the answer: observation, reward and done."""
        await self._send(message)
        answer = await self._answers.get()
        if isinstance(answer, str):
            self._answers.put_nowait(answer)
            raise EnvError(where, f"{self._server.url}: {answer}")
        data = answer.get("data")
        match answer.get("type"):
            case "observation" if isinstance(data, dict):
                return data
            case "error" if isinstance(data, dict):
                if where == "step":
                    raise ActionRefused(where, _describe(data))
                fault = _Full if data.get("code") == _FULL else EnvError
                raise fault(where, f"{self._server.url}: {_describe(data)}")
            case kind:
                raise EnvError(
                    where,
                    f"{self._server.url}: the answer has the type {str(kind)[:60]!r}, not 'observation'",
                )

    async def _send(self, message: Json) -> None:
        """If the connection has ended, the reader knows why."""
        with suppress(aiohttp.ClientError, OSError):
            await self._socket.send_str(json.dumps(message))


class _Full(EnvError):
    """The server has no free session."""


def _describe(data: Json) -> str:
    """The message of an error, with the fields of pydantic."""
    errors = data.get("errors")
    faults = [
        f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg')}"
        for one in (errors if isinstance(errors, list) else ())
        if isinstance(one, dict)
    ]
    return ": ".join(filter(None, [str(data.get("message") or data.get("code")), "; ".join(faults)]))
