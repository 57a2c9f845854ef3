"""`arpo env-host --openenv`: serves environments to other trainers with the protocol of OpenEnv.

    GET  /ws      WebSocket, one environment: {"type": "reset", "step", "state" or "close", "data": {…}}
    GET  /schema  JSON schemas of action, observation and state
    GET  /list_environments, /{env}/splits; POST /{env}/tasks, num_tasks, task, task_range: the task sets

A session takes a slot of the host, with its token, its timeouts and its lease. A reset names a task:
{"split": "train", "index": 3}, or {"seed": 7}; a second reset starts a new environment. An episode is done
after a terminal action, when the environment ends it, or after `rollout.max_steps` steps. Its last reward is
its score; all earlier rewards are 0.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import WSMsgType, web

from arpo import __version__
from arpo.actions import TERMINAL, Action, Direction, action_from_json
from arpo.config import EnvConfig
from arpo.dialects.base import checked_actions
from arpo.envs import wire
from arpo.envs.base import EnvFactory
from arpo.envs.host import Episode, Host, read_json_body, started_env
from arpo.envs.openenv.mapping import FIELDS
from arpo.envs.wire import BadRequest, NoFreeSlot, NoSuchEpisode, OutOfTurn, WrongToken
from arpo.errors import EnvError
from arpo.types import Screenshot, Task

MAX_WAITING = 8  # waiting messages of a session
MAX_LISTED = 1000  # tasks in one answer; /task_range has the others
_log = logging.getLogger(__name__)

Json = dict[str, Any]

_NUMBER = {"type": "number"}
_TEXT = {"type": "string"}
_FIELD_SCHEMAS: Mapping[str, Json] = {
    "x": {**_NUMBER, "description": "Pixels from the left edge of the screenshot"},
    "y": {**_NUMBER, "description": "Pixels from its top edge"},
    "end_x": _NUMBER,
    "end_y": _NUMBER,
    "direction": {"enum": list(Direction)},
    "amount": {"type": "integer", "description": "Wheel notches"},
    "key": {**_TEXT, "description": "For example enter, or ctrl+c"},
    "keys": {"type": "array", "items": _TEXT},
    "text": _TEXT,
    "submit": {"type": "boolean", "description": "Press Enter after the text"},
    "name": _TEXT,
    "seconds": _NUMBER,
    "content": _TEXT,
}
ACTION_SCHEMA: Json = {
    "title": "ArpoAction",
    "description": "; ".join(f"{name}: {', '.join(given) or 'no fields'}" for name, given in FIELDS.items()),
    "type": "object",
    "properties": {"action": {"enum": list(FIELDS)}, **_FIELD_SCHEMAS, "metadata": {"type": "object"}},
    "required": ["action"],
    "additionalProperties": False,
}
OBSERVATION_SCHEMA: Json = {
    "title": "ArpoObservation",
    "type": "object",
    "properties": {
        "done": {"type": "boolean"},
        "reward": {"anyOf": [_NUMBER, {"type": "null"}]},
        "screenshot": {**_TEXT, "description": "PNG in base64"},
        "instruction": _TEXT,
        "metadata": {"type": "object", "description": "task_id"},
    },
}
STATE_SCHEMA: Json = {
    "title": "ArpoState",
    "type": "object",
    "properties": {"episode_id": _TEXT, "step_count": {"type": "integer"}, "task_id": _TEXT},
}


@dataclass(slots=True, kw_only=True)
class _Play:
    """The episode of a session since its last reset."""

    task: Task
    instruction: str
    screen: tuple[int, int]
    steps: int = 0
    done: bool = False


class OpenEnvHost(Host):
    """`splits`: the task sets by name, at least one. `max_steps`: steps after which an episode is done."""

    def __init__(
        self,
        factory: EnvFactory,
        config: EnvConfig,
        token: str | None,
        lease_seconds: float,
        *,
        splits: Mapping[str, Sequence[Task]],
        max_steps: int,
    ) -> None:
        super().__init__(factory, config, token, lease_seconds)
        self._splits = {name: tasks for name, tasks in splits.items() if tasks}
        self._max_steps = max_steps
        self._env_name = config.name.rpartition(":")[2]
        self._plays: dict[str, _Play] = {}

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.get("/ws", self._session),
            web.get("/health", _answer(wire.OPENENV_HEALTH)),
            web.get(
                "/schema",
                _answer({"action": ACTION_SCHEMA, "observation": OBSERVATION_SCHEMA, "state": STATE_SCHEMA}),
            ),
            web.get(
                "/metadata",
                _answer(
                    {"name": self._env_name, "description": "An ARPO environment", "version": __version__}
                ),
            ),
            web.get("/list_environments", _answer([self._env_name])),
            web.get("/{env}/splits", self._list_splits),
            web.post("/{env}/tasks", self._list_tasks),
            web.post("/{env}/num_tasks", self._num_tasks),
            web.post("/{env}/task", self._get_task),
            web.post("/{env}/task_range", self._task_range),
        ]

    async def _list_splits(self, request: web.Request) -> web.Response:
        self._check_name(request)
        return web.json_response(
            [{"name": name, "type": "train" if name == "train" else "test"} for name in self._splits]
        )

    async def _list_tasks(self, request: web.Request) -> web.Response:
        tasks, _ = await self._asked(request)
        return web.json_response({"tasks": _described(tasks, 0, MAX_LISTED), "env_name": self._env_name})

    async def _num_tasks(self, request: web.Request) -> web.Response:
        tasks, _ = await self._asked(request)
        return web.json_response({"num_tasks": len(tasks)})

    async def _get_task(self, request: web.Request) -> web.Response:
        tasks, body = await self._asked(request)
        index = _index(body.get("index"), tasks)
        return web.json_response({"task": _described(tasks, index, index + 1)[0]})

    async def _task_range(self, request: web.Request) -> web.Response:
        tasks, body = await self._asked(request)
        bounds = body.get("start"), body.get("stop")
        if not all(bound is None or type(bound) is int for bound in bounds):
            raise BadRequest("tasks", "start and stop: must be integers")
        start, stop, _ = slice(*bounds).indices(len(tasks))
        return web.json_response({"tasks": _described(tasks, start, min(stop, start + MAX_LISTED))})

    async def _asked(self, request: web.Request) -> tuple[Sequence[Task], Json]:
        """The split that the body of a request names, and the body."""
        self._check_name(request)
        body = await read_json_body(request, "tasks")
        if not isinstance(body, dict):
            raise BadRequest("tasks", "the body must be an object")
        return self._split(body.get("split")), body

    def _check_name(self, request: web.Request) -> None:
        if request.match_info["env"].lower() != self._env_name.lower():
            raise web.HTTPNotFound

    def _split(self, name: Any) -> Sequence[Task]:
        if not isinstance(name, str) or name not in self._splits:
            raise BadRequest(
                "tasks", f"split: is {str(name)[:60]!r}, must be one of {', '.join(self._splits)}"
            )
        return self._splits[name]

    async def _session(self, request: web.Request) -> web.WebSocketResponse:
        """Serve one session. Messages are read while a call runs: pings are answered, an end is noticed."""
        if self._token is None and "Origin" in request.headers:  # browsers allow it to pages of any origin
            raise WrongToken("host", f"a web page may not connect: set {wire.TOKEN_VARIABLE}")
        channel = web.WebSocketResponse(max_msg_size=wire.MAX_REQUEST_BYTES)
        await channel.prepare(request)
        while self._free <= 0 and self._closing:
            await asyncio.wait(list(self._closing.values()), return_when=asyncio.FIRST_COMPLETED)
        try:
            name = self._take_slot()
        except NoFreeSlot as full:
            await channel.send_json(_error(full))
            return channel
        loop = asyncio.get_running_loop()
        self._episodes[name].on_end = lambda: loop.create_task(channel.close())
        messages: asyncio.Queue[str] = asyncio.Queue(MAX_WAITING)
        answering = asyncio.create_task(self._answer_all(channel, name, messages))
        try:
            async for message in channel:
                if message.type is not WSMsgType.TEXT or messages.full():
                    break
                messages.put_nowait(message.data)
        finally:
            answering.cancel()
            self._plays.pop(name, None)
            self._close(name)
        return channel

    async def _answer_all(
        self, channel: web.WebSocketResponse, name: str, messages: asyncio.Queue[str]
    ) -> None:
        """Answer one message after the other, until "close" or until the connection ends."""
        with suppress(ConnectionError):
            while (answer := await self._answer_one(name, await messages.get())) is not None:
                await channel.send_json(answer)
        self._close(name)

    async def _answer_one(self, name: str, text: str) -> Json | None:
        try:
            message = wire.read_json(text.encode(), "host")
        except BadRequest as fault:
            return _error(fault, "INVALID_JSON")
        try:
            match message:
                case {"type": "reset"}:
                    return await self._reset(name, _data(message))
                case {"type": "step"}:
                    return await self._take_step(name, _data(message))
                case {"type": "state"}:
                    return {"type": "state", "data": self._state(name)}
                case {"type": "close"}:
                    return None
                case _:
                    return _error(
                        BadRequest("host", "type: must be reset, step, state or close"), "UNKNOWN_TYPE"
                    )
        except EnvError as fault:
            return _error(fault)
        except Exception as error:
            _log.exception("openenv session")
            return _error(EnvError("host", f"{type(error).__name__}: {error}"))

    async def _reset(self, name: str, data: Json) -> Json:
        task = self._chosen(data)

        async def start(episode: Episode) -> Json:
            self._plays.pop(name, None)
            if episode.env is not None:
                env, episode.env = episode.env, None
                await env.close()
            first = await self._start_env(episode, task)
            play = self._plays[name] = _Play(
                task=task,
                instruction=first.instruction or task.instruction,
                screen=first.screenshot.size,
            )
            return _observation(play, first.screenshot, None)

        return await self._call(name, "start", start)

    async def _take_step(self, name: str, data: Json) -> Json:
        play = self._plays.get(name)
        action = read_action(data, play.screen if play else None)

        async def step(episode: Episode) -> Json:
            env = started_env(episode, "step")
            if play is None or play.done:
                raise OutOfTurn("step", "the episode is done: send a reset")
            result = await env.step((action,))
            play.steps += 1
            play.done = result.terminated or isinstance(action, TERMINAL) or play.steps >= self._max_steps
            return _observation(
                play, result.observation.screenshot, await env.evaluate() if play.done else 0.0
            )

        return await self._call(name, "step", step)

    def _state(self, name: str) -> Json:
        play = self._plays.get(name)
        steps, task = (play.steps, play.task.id) if play else (0, "")
        return {"episode_id": name, "step_count": steps, "task_id": task}

    def _chosen(self, data: Json) -> Task:
        """The task of a reset: by index, by seed, or any."""
        tasks = self._split(data.get("split") or next(iter(self._splits)))
        if (index := data.get("index")) is None:
            seed = data.get("seed")
            index = seed % len(tasks) if type(seed) is int else secrets.randbelow(len(tasks))
        return tasks[_index(index, tasks)]


def read_action(data: Json, screen: tuple[int, int] | None) -> Action:
    """The action of a step: {"action": "Click", "x": 3, "y": 4}. Raises BadRequest with the wrong field.

    `screen`: its size; None before the first reset.
    """
    given = {key: value for key, value in data.items() if value is not None and key != "metadata"}
    name = given.pop("action", None)
    if not isinstance(name, str) or name not in FIELDS:
        raise BadRequest("step", f"action: is {str(name)[:60]!r}, must be one of {', '.join(FIELDS)}")
    for key in given:
        if key not in FIELDS[name]:
            raise BadRequest(
                "step", f"{key[:60]}: no field of {name}; its fields are: {', '.join(FIELDS[name])}"
            )
    if name == "Hotkey" and isinstance(given.get("key"), str):
        given = {"keys": [given["key"]]} | given
        del given["key"]
    defaults: dict[str, Json] = {
        "Type": {"submit": False},
        "Finished": {"content": ""},
        "Scroll": {"point": None},
    }
    try:
        read = action_from_json({"do": name, **defaults.get(name, {}), **_with_points(name, given)})
        return checked_actions([read], screen)[0]
    except ValueError as error:
        raise BadRequest("step", str(error)) from error


def _with_points(name: str, given: Json) -> Json:
    """x and y become `point`; those of a drag become `start` and `end`."""
    names = {"start": ("x", "y"), "end": ("end_x", "end_y")} if name == "Drag" else {"point": ("x", "y")}
    points = {
        point: {axis: given[key] for axis, key in zip("xy", keys, strict=True) if key in given}
        for point, keys in names.items()
        if any(key in given for key in keys)
    }
    used = {key for keys in names.values() for key in keys}
    return {key: value for key, value in given.items() if key not in used} | points


def _observation(play: _Play, screenshot: Screenshot, reward: float | None) -> Json:
    observation = {
        "screenshot": base64.b64encode(screenshot.png).decode(),
        "instruction": play.instruction,
        "metadata": {"task_id": play.task.id},
    }
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": play.done}}


def _error(fault: EnvError, code: str = "") -> Json:
    codes = {BadRequest: "VALIDATION_ERROR", NoFreeSlot: "CAPACITY_REACHED", NoSuchEpisode: "SESSION_ERROR"}
    code = code or codes.get(type(fault), "EXECUTION_ERROR")
    return {"type": "error", "data": {"message": f"{fault.where}: {fault.message}", "code": code}}


def _data(message: Json) -> Json:
    data = message.get("data", {})
    if not isinstance(data, dict):
        raise BadRequest("host", "data: must be an object")
    return data


def _described(tasks: Sequence[Task], start: int, stop: int) -> list[Json]:
    return [
        {"id": task.id, "index": start + index, "instruction": task.instruction, "domain": task.domain}
        for index, task in enumerate(tasks[start:stop])
    ]


def _index(index: Any, tasks: Sequence[Task]) -> int:
    if type(index) is not int or not 0 <= index < len(tasks):
        raise BadRequest("tasks", f"index: is {str(index)[:60]}, must be 0 to {len(tasks) - 1}")
    return index


def _answer(content: Any) -> Any:
    """A handler: always the same JSON."""
    text = json.dumps(content)

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(text=text)

    return answer
