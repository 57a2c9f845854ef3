"""MiniWoB++ in Chromium: every task starts, takes every action and ends; scripts solve 34 tasks."""

import asyncio

import pytest

from apart import run_apart
from arpo.actions import (
    Click,
    Direction,
    DoubleClick,
    Drag,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    Point,
    RightClick,
    Scroll,
    Type,
    Wait,
)  # fmt: skip
from arpo.config import BrowserConfig, EnvConfig
from arpo.config.task_set_names import heldout_sets
from arpo.envs.browser.env import BrowserEnvs
from arpo.envs.browser.miniwob import HEIGHT, WIDTH, miniwob_tasks, names
from arpo.errors import UserError
from arpo.tasks.lists import check_disjoint, load_tasks
from miniwob_solvers import SOLVERS, Hands

AT_ONCE = 4
POINT, OTHER = Point(80, 150), Point(40, 100)
EVERY_ACTION = (
    Hover(point=POINT), Scroll(point=POINT, direction=Direction.DOWN), Hotkey(keys=("tab",)), Type(text="aß"),
    KeyDown(key="shift"), KeyUp(key="shift"), Wait(seconds=0.01), Drag(start=POINT, end=OTHER),
    RightClick(point=OTHER), DoubleClick(point=OTHER), Click(point=POINT),
)  # fmt: skip


def all_played(play, chosen):
    """The results of play(env, name), by name."""

    async def one(envs, slots, name):
        async with slots:
            env = envs()
            try:
                return await play(env, name)
            finally:
                await env.close()

    async def scenario():
        envs = BrowserEnvs(BrowserConfig(), EnvConfig(name="browser", width=WIDTH, height=HEIGHT))
        slots = asyncio.Semaphore(AT_ONCE)
        try:
            return await asyncio.gather(*(one(envs, slots, name) for name in chosen))
        finally:
            envs.close()

    return dict(zip(chosen, run_apart(scenario()), strict=True))


def test_every_task_starts_takes_every_action_and_ends():
    async def play(env, name):
        first = await env.start(miniwob_tasks(name)[0])
        assert first.instruction
        for action in EVERY_ACTION:
            if (await env.step((action,))).terminated:
                break
        return await env.evaluate()

    scores = all_played(play, names())
    assert len(scores) == 130
    assert set(scores.values()) <= {0.0, 1.0}


@pytest.mark.parametrize("number", [0, 7])
def test_scripts_solve_tasks(number):
    async def play(env, name):
        first = await env.start(miniwob_tasks(name)[number])
        hands = Hands(env, first.instruction)
        await SOLVERS[name](hands)
        return await env.evaluate()

    scores = all_played(play, list(SOLVERS))
    assert scores == dict.fromkeys(SOLVERS, 1.0)


def test_doing_nothing_solves_nothing():
    async def play(env, name):
        await env.start(miniwob_tasks(name)[0])
        await env.step((Wait(seconds=0.01),))
        return await env.evaluate()

    assert set(all_played(play, list(SOLVERS)).values()) == {0.0}


def test_the_screen_shows_the_page_without_scroll_bars():
    async def play(env, name):
        await env.start(miniwob_tasks(name)[0])
        hands = Hands(env, "")
        button = "document.querySelector('button').getBoundingClientRect()"
        return await hands.read(f"[scrollX, document.documentElement.clientWidth, {button}.right]")

    for scrolled, width, right in all_played(play, ["click-dialog", "click-test-2"]).values():
        assert (scrolled, width) == (0, WIDTH)
        assert 0 < right <= WIDTH


def test_a_seed_is_an_instance():
    async def play(env, number):
        first = await env.start(miniwob_tasks("click-checkboxes")[number])
        return first.instruction, first.screenshot

    shown = all_played(play, [0, 1, 2])
    assert len({instruction for instruction, _ in shown.values()}) == 3
    assert all_played(play, [0, 1, 2]) == shown


def test_heldout_tasks_have_other_seeds():
    [source] = heldout_sets("miniwob:heldout/click-test-2,click-dialog").values()
    train, heldout = load_tasks("miniwob:click-test-2,click-dialog"), load_tasks(source)
    assert (len(train), len(heldout)) == (64, 32)
    check_disjoint(train, heldout)
    assert {task.domain for task in heldout} == {"click-test-2", "click-dialog"}


def test_an_unknown_task_is_an_error():
    with pytest.raises(UserError, match=r"miniwob:click-tst: no such task \(did you mean click-test"):
        load_tasks("miniwob:click-tst")
