"""Steps per second of web pages: this package's browser environment against Playwright and Selenium.

A step is a click and a screenshot on a page of MiniWoB++ (160x210). `env` also waits until the page is quiet,
as in an episode; `devtools` does not. Playwright (package `playwright`) uses one context per page of one
Chromium. Selenium (package `selenium`, Debian's chromium-driver) uses a browser and a thread per page, as the
package miniwob does; it is left out if it is not installed. Prints one JSON line: steps per second by number
of pages, memory per page (MiB, proportional share), and the ratio of `devtools` to the best other one.

    make miniwob; python benchmarks/browser.py --pages 1,4,8,16

`--episodes 1000` plays whole episodes instead, four at a time, and prints what they hold after the first
tenth and at the end: memory of this process and of its Chromium (MiB), processes and open files. `ratio` is
memory at the end to memory after the first tenth: about 1 without a leak.

    python benchmarks/browser.py --episodes 1000
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from arpo.actions import Click, Point
from arpo.config import BrowserConfig, EnvConfig
from arpo.envs.browser.chromium import find_program
from arpo.envs.browser.env import BrowserEnvs
from arpo.envs.browser.miniwob import HEIGHT, WIDTH, miniwob_tasks, pages

TASK = "click-test-2"
PLACE = Point(2, 100)  # nothing is there
AT_ONCE = 4
Step = Callable[[], Awaitable[Any]]


async def timed(steps: list[Step], count: int) -> float:
    """Steps per second, if every page takes `count` steps."""

    async def work(step: Step) -> None:
        for _ in range(count):
            await step()

    begun = time.perf_counter()
    await asyncio.gather(*map(work, steps))
    return len(steps) * count / (time.perf_counter() - begun)


async def own(number: int, count: int) -> dict[str, float]:
    envs = BrowserEnvs(BrowserConfig(), EnvConfig(name="browser", width=WIDTH, height=HEIGHT))
    made = [envs() for _ in range(number)]
    before = memory()
    await asyncio.gather(*(env.start(miniwob_tasks(TASK)[0]) for env in made))
    used = memory() - before

    def quick(window: Any) -> Step:
        async def step() -> None:
            await window.perform(Click(point=PLACE))
            await window.screenshot()

        return step

    def whole(env: Any) -> Step:
        return lambda: env.step((Click(point=PLACE),))

    found = {
        "devtools": await timed([quick(env._window) for env in made], count),
        "env": await timed([whole(env) for env in made], count),
        "mebibytes_per_page": used / number,
    }
    for env in made:
        await env.close()
    envs.close()
    return found


async def playwright(number: int, count: int) -> float:
    from playwright.async_api import async_playwright

    async with async_playwright() as library:
        browser = await library.chromium.launch(
            executable_path=str(find_program("")), args=["--no-sandbox", "--disable-gpu"]
        )

        async def opened() -> Step:
            context = await browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
            page = await context.new_page()
            await page.goto(f"file://{pages()}/miniwob/{TASK}.html")

            async def step() -> None:
                await page.mouse.click(PLACE.x, PLACE.y)
                await page.screenshot()

            return step

        steps = list(await asyncio.gather(*(opened() for _ in range(number))))
        found = await timed(steps, count)
        await browser.close()
        return found


def selenium(number: int, count: int) -> float | None:
    driver = shutil.which("chromedriver")
    if driver is None or importlib.util.find_spec("selenium") is None:
        return None
    from selenium import webdriver
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    def opened(_: int) -> Any:
        options = webdriver.ChromeOptions()
        options.binary_location = str(find_program(""))
        for flag in ("--headless", "--no-sandbox", "--disable-gpu", f"--window-size={WIDTH},{HEIGHT + 100}"):
            options.add_argument(flag)
        page = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        page.get(f"file://{pages()}/miniwob/{TASK}.html")
        return page

    def work(page: Any) -> None:
        for _ in range(count):
            builder = ActionBuilder(page)
            builder.pointer_action.move_to_location(int(PLACE.x), int(PLACE.y)).click()
            builder.perform()
            page.get_screenshot_as_png()

    with ThreadPoolExecutor(number) as threads:
        opened_pages = list(threads.map(opened, range(number)))
        begun = time.perf_counter()
        list(threads.map(work, opened_pages))
        seconds = time.perf_counter() - begun
        list(threads.map(lambda page: page.quit(), opened_pages))
    return number * count / seconds


async def episodes(count: int) -> dict[str, Any]:
    envs = BrowserEnvs(BrowserConfig(), EnvConfig(name="browser", width=WIDTH, height=HEIGHT))
    numbers, tasks = iter(range(count)), miniwob_tasks(TASK)
    held: list[dict[str, float]] = []

    async def work() -> None:
        for number in numbers:
            env = envs()
            await env.start(tasks[number % len(tasks)])
            for place in (PLACE, Point(80, 120)):
                await env.step((Click(point=place),))
            await env.evaluate()
            await env.close()
            if (number + 1) % max(count // 10, 1) == 0:
                held.append({"episodes": number + 1, **holding()})
                print(held[-1], file=sys.stderr)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    envs.close()
    return {"first": held[0], "last": held[-1], "ratio": held[-1]["mebibytes"] / held[0]["mebibytes"]}


def holding() -> dict[str, float]:
    own_files = len(os.listdir("/proc/self/fd"))
    return {"mebibytes": round(memory(), 1), "processes": len(descendants()), "open_files": own_files}


def descendants() -> list[int]:
    """This process and all that it has started."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            parents[int(name)] = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def memory() -> float:
    """Proportional share (MiB) of this process and all that it has started."""
    total = 0
    for process in descendants():
        with suppress(OSError):
            rollup = Path("/proc", str(process), "smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", default="1,4,8,16", help="numbers of pages")
    parser.add_argument("--steps", type=int, default=30, help="steps of each page")
    parser.add_argument("--episodes", type=int, help="play episodes and look for leaks instead")
    given = parser.parse_args()
    if given.episodes:
        print(json.dumps(asyncio.run(episodes(given.episodes))))
        return
    results: dict[str, Any] = {}
    for number in map(int, given.pages.split(",")):
        found: dict[str, Any] = asyncio.run(own(number, given.steps))
        found["playwright"] = asyncio.run(playwright(number, given.steps))
        found["selenium"] = selenium(number, given.steps)
        others = [found["playwright"], found["selenium"] or 0.0]
        found["ratio"] = found["devtools"] / max(others)
        results[str(number)] = {name: value and round(value, 2) for name, value in found.items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
