"""MiniWoB++: 130 small web tasks of the PyPI package `miniwob`, played in Chromium.

    tasks.train = "miniwob:click-test-2,click-dialog"

Each task has as many instances as there are seeds. The pages are those of the package; the proxy of the
episode serves them. The score is the page's own reward, without its deduction for time: 1 if it is positive.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

from arpo.config.recipe import nearest
from arpo.envs.browser.tab import Tab
from arpo.errors import EnvError, UserError
from arpo.types import Task

HELDOUT = "heldout/"  # prefix of a list: other seeds
TRAIN_SEEDS, HELDOUT_SEEDS = range(32), range(1_000_000, 1_000_016)
HOST = "miniwob.test"  # the name under which the proxy serves the package's pages
WIDTH, HEIGHT = 160, 210
_READY_SECONDS = 10.0
_DAY = 24 * 3600 * 1000  # milliseconds: the clock of an episode never ends it
_START = f"""(seed => {{
  core.endEpisode(0); Math.seedrandom(seed); core.setDataMode('train'); core.EPISODE_MAX_TIME = {_DAY};
  core.startEpisodeReal();
}})"""
# The package shows its counters beside the page. In a window of the page's size they cause scroll bars, which
# hide a part of the page.
_STYLE = "#reward-display { display: none } html { overflow: hidden }"
_ADD_STYLE = (
    f"document.head.append(Object.assign(document.createElement('style'), {{textContent: '{_STYLE}'}}))"
)
_UTTERANCE = "(text => typeof text === 'string' ? text : text.utterance)(core.getUtterance())"


@cache
def pages() -> Path:
    """The folder of the package's pages. Raises UserError if it is not installed."""
    found = importlib.util.find_spec("miniwob")
    if found is None or not found.submodule_search_locations:
        raise UserError('the package miniwob is missing: install it with: pip install "arpo[miniwob]"')
    return Path(found.submodule_search_locations[0]) / "html"


@cache
def names() -> tuple[str, ...]:
    """All tasks of the package."""
    return tuple(sorted(path.stem for path in (pages() / "miniwob").glob("*.html")))


def miniwob_tasks(text: str) -> list[Task]:
    """The instances of a list such as "click-test-2,click-dialog", "all" or "heldout/click-test-2".

    The instruction is that of the page, when it is played.
    """
    listed = text.removeprefix(HELDOUT)
    chosen = names() if listed == "all" else tuple(filter(None, map(str.strip, listed.split(","))))
    if not chosen:
        raise UserError('miniwob: name tasks, such as "miniwob:click-test-2,click-dialog", or "miniwob:all"')
    for name in chosen:
        if name not in names():
            raise UserError(f"miniwob:{name}: no such task{nearest(name, names())}")
    seeds = HELDOUT_SEEDS if text.startswith(HELDOUT) else TRAIN_SEEDS
    return [_task(name, seed) for seed in seeds for name in chosen]


def _task(name: str, seed: int) -> Task:
    return Task(
        id=f"{name}-{seed}",
        instruction=f"MiniWoB++ {name}, seed {seed}",
        snapshot="miniwob",
        config=({"type": "miniwob", "parameters": {"name": name, "seed": seed}},),
        evaluator={"func": "all", "checks": [{"miniwob": True}]},
        related_apps=("chromium",),
        domain=name,
    )


def url(name: str) -> str:
    return f"http://{HOST}/miniwob/{name}.html"


async def begin(tab: Tab, seed: Any) -> None:
    """Start the instance with this seed on the loaded page."""
    await _until(tab, "typeof core !== 'undefined' && core.cover_div !== null")
    await tab.evaluate(_ADD_STYLE)
    await tab.evaluate(f"{_START}({json.dumps(str(seed))})")
    await _until(tab, "WOB_TASK_READY")
    await tab.evaluate("scrollTo(0, 0)")  # the focus of a dialog scrolls a page that is as small as this


async def instruction(tab: Tab) -> str:
    return str(await tab.evaluate(_UTTERANCE))


async def is_done(tab: Tab) -> bool:
    return bool(await tab.evaluate("typeof WOB_DONE_GLOBAL !== 'undefined' && WOB_DONE_GLOBAL"))


async def score(tab: Tab) -> float:
    if not await is_done(tab):
        return 0.0
    return float(await tab.evaluate("WOB_RAW_REWARD_GLOBAL") > 0)


async def _until(tab: Tab, condition: str) -> None:
    look = f"const look = () => ({condition}) ? done(true) : setTimeout(look, 10);"
    poll = f"new Promise(done => {{ {look} look(); }})"
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await tab.evaluate(poll)
    except TimeoutError:
        raise EnvError("start", f"MiniWoB++: not after {_READY_SECONDS:g} s: {condition}") from None
