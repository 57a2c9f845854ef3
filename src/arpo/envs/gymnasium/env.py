"""Environments of other people: `env.name = "gymnasium:ID"` and `"browsergym:ID"`.

The score of an episode is the sum of its rewards, clipped to 0–1: the return is what Gymnasium's environments
define, and BrowserGym's own benchmarks report it.
"""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Any

from arpo.actions import Action, action_to_json, up_to_terminal
from arpo.config import Config
from arpo.config.recipe import find_program
from arpo.envs.browser.chromium import installed_browser
from arpo.envs.gymnasium.browsergym_calls import browsergym_call
from arpo.envs.gymnasium.tasks import read_task
from arpo.envs.gymnasium.workers import Worker, Workers
from arpo.errors import EnvError, UserError
from arpo.types import Observation, Screenshot, StepResult, Task

BROWSERGYM_PYTHON = ".venv-browsergym/bin/python"  # `make browsergym` makes it


class GymnasiumEnv:
    """One episode in a worker process of its own."""

    def __init__(self, workers: Workers, made_from: dict[str, Any]) -> None:
        self._workers, self._made_from = workers, made_from
        self._worker: Worker | None = None
        self._score = 0.0

    async def start(self, task: Task) -> Observation:
        try:
            episode = read_task(task, self._made_from["id"])
        except UserError as error:
            raise EnvError("start", str(error)) from error
        self._worker = self._workers.take()
        return (await self._call("start", **{**self._made_from, **episode})).observation

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        as_text = self._made_from["kind"] == "browsergym"
        convert = browsergym_call if as_text else action_to_json
        sent = [convert(action) for action in up_to_terminal(actions)]
        return await self._call("step", actions=[one for one in sent if one])

    async def evaluate(self) -> float:
        return min(max(self._score, 0.0), 1.0)

    async def close(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            if not self._workers.give_back(worker):
                await asyncio.to_thread(worker.end)

    async def _call(self, name: str, **values: Any) -> StepResult:
        if self._worker is None:
            raise EnvError(name, "the environment is not running")
        answer, png = await self._worker.call(name, **values)
        self._score = answer["score"]
        if not math.isfinite(self._score):
            self._worker.usable = False
            raise EnvError(name, f"the sum of its rewards is {self._score}, must be a finite number")
        observation = Observation(screenshot=Screenshot.of(png), instruction=answer["instruction"])
        return StepResult(observation=observation, terminated=answer["terminated"])


class GymnasiumEnvs:
    """Makes environments that share worker processes. `close` ends them.

    The constructor plays the start of an episode: a wrong id, a missing package or an action space without
    pixels raises UserError once, now, and not in every episode.
    """

    def __init__(self, config: Config) -> None:
        kind, _, name = config.env.name.partition(":")
        self._made_from = {
            "kind": kind,
            "id": name,
            "actions": config.gymnasium.actions,
            "chromium": str(installed_browser(config.browser.program) or "") if kind == "browsergym" else "",
        }
        self._workers = Workers(_find_python(kind, config.gymnasium.python))
        first = self._workers.take()
        try:
            first.check(config.env.start_seconds, seed=0, make={}, options={}, **self._made_from)
        except EnvError as error:
            self._workers.close()
            place = f" ({error.place})" if error.place else ""
            raise UserError(f"env.name = {config.env.name!r}: {error.message}{place}") from error
        self._workers.give_back(first)

    def __call__(self) -> GymnasiumEnv:
        return GymnasiumEnv(self._workers, self._made_from)

    def close(self) -> None:
        self._workers.close()


def _find_python(kind: str, named: str) -> str:
    if named:
        if found := find_program(named):
            return found
        raise UserError(f"gymnasium.python = {named!r}: no such program")
    own = find_program(BROWSERGYM_PYTHON) if kind == "browsergym" else None
    return own or sys.executable
