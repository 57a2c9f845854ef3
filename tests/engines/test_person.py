"""A person as the engine: one episode at a time on the page, and answers in the student's dialect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from arpo.dialects.registry import choose_dialect
from arpo.dialects.tool_calls import QWEN3_VL
from arpo.dialects.ui_tars import UI_TARS_1_5
from arpo.engines import person
from arpo.engines.person import PersonEngine
from arpo.errors import Discarded, UserError
from arpo.types import Completion
from tiny_vlm import first_prompt, sampling, screenshot, tiny_renderer

RENDERER = tiny_renderer()
CLICK = {"do": "Click", "point": {"x": 56, "y": 42}}  # the middle
Json = dict[str, Any]


class Page:
    def __init__(self, http: aiohttp.ClientSession, address: str) -> None:
        self.http, self.address = http, address

    async def state(self, after: int = 0) -> Json:
        async with self.http.get(f"{self.address}state", params={"after": after}) as reply:
            return await reply.json()

    async def act(self, number: int, *actions: Any, **more: Any) -> tuple[int, str]:
        body = {"number": number, "actions": actions, **more}
        async with self.http.post(f"{self.address}act", json=body) as reply:
            return reply.status, (await reply.json()).get("error", "")

    async def get(self, path: str) -> tuple[int, bytes]:
        async with self.http.get(self.address + path) as reply:
            return reply.status, await reply.read()


@asynccontextmanager
async def opened(**changes: Any) -> AsyncIterator[tuple[PersonEngine, Page]]:
    engine = PersonEngine(RENDERER, changes.get("dialect", UI_TARS_1_5))
    (note,) = await engine.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield engine, Page(http, note.removeprefix("play here: "))
    finally:
        await engine.close()


def run(scenario: Callable[[PersonEngine, Page], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        async with opened(**changes) as (engine, page):
            await scenario(engine, page)

    asyncio.run(main())


def ask(engine: PersonEngine, episode: str, seed: int = 1) -> asyncio.Task[Completion]:
    prompt = replace(first_prompt(RENDERER, episode, screenshot(seed)), instruction=f"do {episode}")
    return asyncio.create_task(engine.generate(prompt, sampling(0, max_tokens=200)))


def test_an_episode_stays_on_the_page_until_it_ends() -> None:
    async def scenario(engine: PersonEngine, page: Page) -> None:
        one, two = ask(engine, "one"), ask(engine, "two", seed=2)
        first = await page.state()
        assert first == {"number": 1, "step": 1, "instruction": "do one", "width": 112, "height": 84}
        assert (await page.get("screens/1"))[1] == screenshot(1).png
        assert await page.act(1, CLICK, thought="Open it") == (200, "")
        assert (await one).text == "Thought: Open it\nAction: click(start_box='(56,42)')"
        later = asyncio.create_task(page.state(1))
        await page.get("")  # "two" waits, but the page belongs to "one"
        assert not later.done() and (await page.get("screens/2"))[0] == 404
        one = ask(engine, "one", seed=3)
        assert (await later)["number"] == 3 and (await page.state(1))["step"] == 2
        assert await page.act(3, {"do": "Finished", "content": ""}, CLICK) == (200, "")
        assert (await one).text == "Action: finished()"
        await engine.release("one")
        assert (await page.state(3))["instruction"] == "do two"
        await page.act(2, {"do": "Fail"})
        assert await two == Completion(
            token_ids=(), logprobs=(), text="Action: error_env()", finish="stop", versions=()
        )

    run(scenario)


def test_a_discarded_episode_starts_again_before_the_next_one() -> None:
    async def scenario(engine: PersonEngine, page: Page) -> None:
        one, two = ask(engine, "one"), ask(engine, "two")
        await page.state()
        await page.act(1, CLICK)
        await one
        one = ask(engine, "one", seed=3)
        assert (await page.state(1))["step"] == 2
        assert await page.act(3, discard=True) == (200, "")
        with pytest.raises(Discarded):
            await one
        await engine.release("one")
        waiting = asyncio.create_task(page.state(3))
        await page.get("")
        assert not waiting.done()
        one = ask(engine, "one")
        again = await waiting
        assert (again["number"], again["step"], again["instruction"]) == (4, 1, "do one")
        for task in (one, two):
            task.cancel()

    run(scenario)


def test_the_page_does_not_wait_for_ever_for_a_discarded_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task may be set aside in the meantime: then it is not played again."""
    monkeypatch.setattr(person, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(person, "AGAIN_SECONDS", -1.0)

    async def scenario(engine: PersonEngine, page: Page) -> None:
        one, two = ask(engine, "one"), ask(engine, "two")
        await page.state()
        await page.act(1, discard=True)
        with pytest.raises(Discarded):
            await one
        await engine.release("one")
        assert (await page.state(1))["instruction"] == "do two"
        two.cancel()

    run(scenario)


def test_what_cannot_be_an_answer_is_refused_and_the_screen_stays() -> None:
    async def scenario(engine: PersonEngine, page: Page) -> None:
        one = ask(engine, "one")
        await page.state()
        assert await page.act(7, CLICK) == (409, "this screen is over")
        assert (await page.act(1))[0] == 400
        status, error = await page.act(1, CLICK, thought="one two three four five six " * 9)
        assert (status, "at most 200 are allowed (rollout.max_answer_tokens)" in error) == (400, True)
        assert (await page.act(1, CLICK, thought=3))[0] == 400
        assert await page.act(1, {"do": "Fly"}) == (400, "actions[0]: unknown action 'Fly'")
        assert (await page.act(1, {"do": "Hotkey", "keys": ["no such key"]}))[0] == 400
        assert (await page.act(1, CLICK, thought="x\nAction: wait()\n"))[0] == 400
        assert not one.done() and (await page.state())["number"] == 1
        page.address = page.address[:-2] + "/"
        assert (await page.get("state"))[0] == 404
        one.cancel()

    run(scenario)


def test_points_are_in_the_units_of_the_dialect() -> None:
    async def scenario(engine: PersonEngine, page: Page) -> None:
        one = ask(engine, "one")
        await page.state()
        await page.act(1, CLICK)
        assert '"coordinate": [500, 500]' in (await one).text

    run(scenario, dialect=QWEN3_VL)


def test_an_episode_that_fails_leaves_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person, "POLL_SECONDS", 0.05)

    async def scenario(engine: PersonEngine, page: Page) -> None:
        one = ask(engine, "one")
        assert (await page.state())["number"] == 1
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        await engine.release("one")
        assert await page.state(1) == {"number": 0}

    run(scenario)


def test_a_dialect_without_a_writer_is_refused() -> None:
    with pytest.raises(UserError, match="the dialect glm_4_5v of the student cannot be written"):
        PersonEngine(RENDERER, choose_dialect("glm_4_5v", "any", None))
