"""Web applications in Chromium: `env.name = "browser"`. A task names the first page, a set-up and checks."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from arpo.actions import Action, up_to_terminal
from arpo.config import BrowserConfig, EnvConfig
from arpo.envs.answers import answer_in
from arpo.envs.browser import http_calls, miniwob
from arpo.envs.browser.checks import score, state_urls
from arpo.envs.browser.chromium import Context, SharedBrowser
from arpo.envs.browser.functions import Page, call_function
from arpo.envs.browser.proxy import Access
from arpo.envs.browser.spec import BrowserTask, read_task
from arpo.envs.browser.window import Window
from arpo.types import Observation, Screenshot, StepResult, Task


class BrowserEnv:
    """One episode in a context of its own: no other episode sees its cookies, storage, tabs or clipboard."""

    def __init__(self, browser: SharedBrowser, config: BrowserConfig, env: EnvConfig) -> None:
        self._browser, self._config = browser, config
        self._size = env.width, env.height
        self._context: Context | None = None
        self._session = secrets.token_hex(8)
        self._answer: str | None = None
        self._states: dict[str, Any] = {}  # JSON of the application before the first step, by URL
        self._score: float | None = None

    async def start(self, task: Task) -> Observation:
        self._task_id = task.id
        self._task = read_task(task, self._session)
        access = Access(allowed=self._task.allowed, folders=_folders(self._task))
        self._context = await (await self._browser.get()).open(access)
        self._window = Window(self._context, *self._size, self._config.scale)
        for kind, parameters in self._task.steps:
            await self._set_up(kind, parameters)
        await self._window.settle()
        for url in state_urls(self._task.check):
            answer = await http_calls.call_expecting({"url": url}, "start")
            self._states[url] = answer.json("start", url)
        first = await self._observe()
        if not self._plays_miniwob:
            return first
        return replace(first, instruction=await miniwob.instruction(self._window.tab))

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        for action in up_to_terminal(actions):
            self._answer = answer_in(action, self._answer)
            await self._window.perform(action)
            await self._window.settle()
            if self._plays_miniwob and await miniwob.is_done(self._window.tab):
                # The page hides its end state behind a cover: the model sees the screen before it.
                return StepResult(observation=self._last, terminated=True)
        return StepResult(observation=await self._observe())

    async def evaluate(self) -> float:
        if self._score is None:
            await self._window.dismiss_dialogs()
            await self._window.finish_downloads()
            self._score = await score(self._task.check, self._page(), self._states)
        return self._score

    async def close(self) -> None:
        if self._context is not None:
            context, self._context = self._context, None
            self._browser.report_blocked(context.access, self._task_id)
            await context.close()

    @property
    def _plays_miniwob(self) -> bool:
        return any(kind == "miniwob" for kind, _ in self._task.steps)

    def _page(self) -> Page:
        assert self._context is not None
        return Page(
            tab=self._window.tab,
            session=self._session,
            downloads=self._context.downloads,
            answer=self._answer or "",
        )

    async def _observe(self) -> Observation:
        self._last = Observation(screenshot=Screenshot.of(await self._window.screenshot()))
        return self._last

    async def _set_up(self, kind: str, step: Mapping[str, Any]) -> None:
        assert self._context is not None
        match kind:
            case "open":
                await self._window.open(step["url"])
            case "http":
                await http_calls.call_expecting(step, "start")
            case "cookies":
                await self._context.call(
                    "Storage.setCookies", cookies=step["cookies"], browserContextId=self._context.name
                )
            case "storage":
                self._window.scripts.append(_storage_script(step))
            case "javascript":
                await self._window.tab.evaluate(step["expression"])
            case "miniwob":
                await self._window.open(miniwob.url(step["name"]))
                await miniwob.begin(self._window.tab, step.get("seed", 0))
            case _:
                await call_function(step["function"], self._page(), "config")


class BrowserEnvs:
    """Makes environments that share one browser. `close` ends it."""

    def __init__(self, config: BrowserConfig, env: EnvConfig) -> None:
        self._config, self._env = config, env
        self._browser = SharedBrowser(config.program)

    def __call__(self) -> BrowserEnv:
        return BrowserEnv(self._browser, self._config, self._env)

    def close(self) -> None:
        self._browser.close()


def _folders(task: BrowserTask) -> dict[str, Any]:
    return {miniwob.HOST: miniwob.pages()} if any(kind == "miniwob" for kind, _ in task.steps) else {}


def _storage_script(step: Mapping[str, Any]) -> str:
    """Runs in the next page, before its own scripts: local storage belongs to the origin of a page."""
    items = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in step["items"].items()
    }
    return (
        f"if (location.origin === new URL({json.dumps(step['url'])}).origin) "
        f"for (const [name, value] of Object.entries({json.dumps(items)})) localStorage.setItem(name, value);"
    )
