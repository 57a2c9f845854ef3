"""The browser environment with real pages in Chromium: actions, dialogs, tabs, checks, isolation, attacks."""

import asyncio
import json
import os
import signal
import sys
import threading
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from apart import run_apart
from arpo.actions import (
    Click,
    Direction,
    DoubleClick,
    Drag,
    Finished,
    Hotkey,
    MouseDown,
    MouseUp,
    Point,
    PressBack,
    RightClick,
    Scroll,
    TripleClick,
    Type,
)
from arpo.config import BrowserConfig, EnvConfig
from arpo.dialects.ui_tars import parse_solution
from arpo.envs.browser.env import BrowserEnvs
from arpo.envs.browser.functions import browser_function
from arpo.envs.browser.window import MAX_DOWNLOADS, MAX_TABS
from arpo.envs.pool import GuardedEnv
from arpo.errors import EnvError, EnvTimeout, UserError
from arpo.tasks.lists import load_tasks
from arpo.types import Task
from processes import descendants
from web_pages import PLACES, pages

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
WIDTH, HEIGHT = 640, 400


@pytest.fixture(scope="module")
def site():
    with pages() as (address, later):
        yield address, later


def a_task(address, path="/", *, steps=(), checks=({"javascript": "true"},), **opened):
    step = {"type": "open", "parameters": {"url": address + path, **opened}}
    evaluator = {"func": "all", "checks": list(checks)}
    return Task(id="t", instruction="", snapshot="", config=(*steps, step), evaluator=evaluator)


@asynccontextmanager
async def browsing(scale=1.0):
    """A factory of environments in one browser."""
    envs = BrowserEnvs(BrowserConfig(scale=scale), EnvConfig(name="browser", width=WIDTH, height=HEIGHT))
    try:
        yield envs
    finally:
        envs.close()


def played(task, *steps, seconds=60, scale=1.0):
    """(score, text of the element #out, environment) after the steps, each a tuple of actions."""

    async def play():
        async with asyncio.timeout(seconds), browsing(scale) as envs:
            env = envs()
            await env.start(task)
            for actions in steps:
                result = await env.step(actions)
                assert result.observation.screenshot.size == (WIDTH, HEIGHT)
            text = await env._window.tab.evaluate("document.getElementById('out')?.textContent")
            score = await env.evaluate()
            await env.close()
            return score, text, env

    return run_apart(play())


def click(name):
    return Click(point=Point(*PLACES[name]))


def test_texts_of_any_script_are_typed(site):
    _, text, _ = played(a_task(site[0]), (click("field"), Type(text="Zoë 中文 🙂 a_B"), click("greet")))
    assert text == "Hello Zoë 中文 🙂 a_B"


def test_enter_and_ctrl_keys(site):
    keys = Hotkey(keys=("ctrl", "a")), Hotkey(keys=("ctrl", "x")), Type(text="1"), Hotkey(keys=("ctrl", "v"))
    _, text, _ = played(a_task(site[0]), (click("field"), Type(text="ab"), *keys), (click("greet"),))
    assert text == "Hello 1ab"


def test_right_and_double_clicks(site):
    point = Point(500, 360)
    assert played(a_task(site[0]), (RightClick(point=point),))[1] == "menu"
    assert played(a_task(site[0]), (DoubleClick(point=point),))[1] == "double"


def test_an_element_is_dragged_to_another(site):
    drag = Drag(start=Point(*PLACES["drag"]), end=Point(*PLACES["drop"]))
    assert played(a_task(site[0]), (drag,))[1] == "cargo"


def test_an_item_of_a_list_is_visible_and_can_be_clicked(site):
    assert played(a_task(site[0]), (click("select"),), (click("blue"),))[1] == "Blue"


@pytest.mark.parametrize(("amount", "low", "high"), [(None, 200, 400), (1, 30, 100), (10, 400, 800)])
def test_a_page_scrolls(site, amount, low, high):
    check = {"javascript": f"{low} < scrollY && scrollY < {high}"}
    scroll = Scroll(point=None, direction=Direction.DOWN, amount=amount)
    assert played(a_task(site[0], checks=[check]), (scroll,))[0] == 1


def test_a_button_is_held_from_one_step_to_another(site):
    down, up = (kind(point=Point(*PLACES["greet"])) for kind in (MouseDown, MouseUp))
    assert played(a_task(site[0]), (down,), (up,))[1] == "Hello "


def test_three_clicks_select_a_line(site):
    typed = (click("field"), Type(text="two words"), TripleClick(point=Point(*PLACES["field"])))
    assert played(a_task(site[0]), typed, (Type(text="new"), click("greet")))[1] == "Hello new"


@pytest.mark.parametrize(("key", "result"), [("enter", "true"), ("esc", "false")])
def test_a_question_of_a_page_is_shown_and_answered(site, key, result):
    async def play():
        async with browsing() as envs:
            env = envs()
            before = await env.start(a_task(site[0]))
            shown = await env.step((click("confirm"),))
            assert shown.observation.screenshot != before.screenshot
            await env.step((Hotkey(keys=(key,)),))
            assert await env._window.tab.evaluate("out.textContent") == result

    run_apart(play())


def test_an_open_dialog_does_not_stop_the_checks(site):
    check = {"javascript": "document.title === 'main'"}
    assert played_to_the_end(a_task(site[0], checks=[check]), (click("prompt"),)) == 1
    assert played_to_the_end(a_task(site[0], "/dialogs", checks=[{"text": "never"}])) == "fault"


def played_to_the_end(task, *steps):
    """The score, or "fault"."""

    async def play():
        async with browsing() as envs:
            env = envs()
            await env.start(task)
            for actions in steps:
                await env.step(actions)
            try:
                return await asyncio.wait_for(env.evaluate(), 60)
            except EnvError:
                return "fault"
            finally:
                await env.close()

    return run_apart(play())


def test_a_prompt_takes_a_text(site):
    answer = Hotkey(keys=("ctrl", "a")), Type(text="Zoë", submit=True)
    assert played(a_task(site[0]), (click("prompt"),), answer)[1] == "Zoë"


def test_a_new_tab_comes_to_the_front_and_closes(site):
    second = a_task(site[0], checks=[{"url": "/second$"}])
    assert played(second, (click("tab"),))[0] == 1
    assert played(second, (click("tab"),), (Hotkey(keys=("ctrl", "w")),))[0] == 0
    assert played(second, (click("tab"),), (Hotkey(keys=("ctrl", "tab")),))[0] == 0


def test_history_goes_back(site):
    there = a_task(site[0], checks=[{"url": "/second$"}])
    task = with_script(there, "location = '/second'")
    assert played(task)[0] == 1
    assert played(task, (PressBack(),))[0] == 0


def test_a_download_is_in_the_folder_of_the_episode(site):
    assert played(a_task(site[0], checks=[{"download": "*.csv"}]), (click("download"),))[0] == 1
    assert played(a_task(site[0], checks=[{"download": "*.csv"}]))[0] == 0


def with_script(task, expression):
    step = {"type": "javascript", "parameters": {"expression": expression}}
    return replace(task, config=(*task.config, step))


def test_a_check_waits_for_a_running_download(site):
    check = {"download": "slow.csv"}
    assert played(with_script(a_task(site[0], checks=[check]), "location = '/slow.csv'"))[0] == 1


def test_a_cancelled_download_of_a_frame_is_logged(site, caplog):
    frame = "document.body.append(Object.assign(document.createElement('iframe'), {src: '/file.csv?x'}))"
    script = f"{frame}, new Promise(done => setTimeout(done, 1000))"
    played(with_script(a_task(site[0]), script))
    assert "a frame inside a page began it" in caplog.text


def test_cookies_storage_and_scale(site):
    address = site[0]
    steps = [
        {"type": "cookies", "parameters": {"cookies": [{"name": "c", "value": "v", "url": address}]}},
        {"type": "storage", "parameters": {"url": address, "items": {"kept": "$SESSION"}}},
    ]
    _, text, env = played(a_task(address, steps=steps), scale=2.0)
    assert text == f"{env._session} c=v 2 {WIDTH // 2}"


def test_a_click_has_the_pixels_of_the_screenshot(site):
    x, y = PLACES["confirm"]
    steps = (Click(point=Point(2 * x, 2 * y)),), (Hotkey(keys=("enter",)),)
    assert played(a_task(site[0]), *steps, scale=2.0)[1] == "true"


def test_a_step_waits_for_the_answers_that_a_page_waits_for(site):
    address, later = site
    later.clear()
    threading.Timer(1.0, later.set).start()
    assert played(a_task(address, "/slow"))[1] == "arrived"


@browser_function
async def says_hello(page):
    return "Hello" in await page.text()


@browser_function
def half(page):
    return 0.5 if page.answer == "42" else 2


@pytest.mark.parametrize(
    ("check", "score"),
    [
        ({"text": "Hello"}, 1),
        ({"text": "Goodbye"}, 0),
        ({"url": "^http://127"}, 1),
        ({"javascript": "document.title === 'main'"}, 1),
        ({"javascript": "0.25"}, 0.25),
        ({"answer": "4."}, 1),
        ({"answer": "4"}, 0),
        ({"http": {"url": "ADDRESS/state", "path": "n", "equals": 1}}, 1),
        ({"http": {"url": "ADDRESS/state", "path": "n", "equals": 2}}, 0),
        ({"http": {"url": "ADDRESS/state", "contains": '"n"'}}, 1),
        ({"http": {"url": "ADDRESS/none"}}, 0),
        ({"http": {"url": "ADDRESS/none", "status": 404}}, 1),
        ({"state": {"url": "ADDRESS/state", "changes": {}}}, 1),
        ({"state": {"url": "ADDRESS/state", "changes": {"n": 2}}}, 0),
        ({"python": f"{__name__}:says_hello"}, 1),
        ({"python": f"{__name__}:half"}, 0.5),
        ({"any": [{"text": "Goodbye"}, {"javascript": "0.5"}]}, 0.5),
        ({"all": [{"text": "Hello"}, {"javascript": "0.5"}]}, 0.5),
    ],
)
def test_checks(site, check, score):
    given = json.loads(json.dumps(check).replace("ADDRESS", site[0]))
    done = (click("greet"), Finished(content="42"))
    assert played(a_task(site[0], checks=[given]), done)[0] == score


@pytest.mark.parametrize(
    ("check", "error", "message"),
    [
        ({"javascript": "nothing.at.all"}, EnvError, "nothing is not defined"),
        ({"javascript": "'yes'"}, EnvError, "a number of 0 to 1, not 'yes'"),
        ({"python": f"{__name__}:half"}, EnvError, "a number of 0 to 1, not 2"),
        ({"python": "os:getcwd"}, UserError, "@browser_function"),
        ({"http": {"url": "http://127.0.0.1:1/"}}, EnvError, "GET http://127.0.0.1:1/"),
    ],
)
def test_a_check_that_cannot_be_made_has_no_score(site, check, error, message):
    with pytest.raises(error, match=message.replace("(", r"\(")):
        played(a_task(site[0], checks=[check]))


def test_a_page_that_does_not_answer_is_an_error():
    with pytest.raises(EnvError, match=r"http://127.0.0.1:1/: "):
        played(a_task("http://127.0.0.1:1"))


def test_sessions_are_kept_apart():
    """64 episodes in the shop of the examples, all at once, each with a cart of its own."""
    import shop

    server = shop.serve(0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    tasks = load_tasks(str(EXAMPLES / "shop_tasks.json"))

    async def play(envs, slots, number):
        task = tasks[number % len(tasks)]
        text = json.dumps([task.config, task.evaluator]).replace("http://127.0.0.1:8000", address)
        config, evaluator = json.loads(text)
        own = Task(id=task.id, instruction="", snapshot="", config=tuple(config), evaluator=evaluator)
        async with slots:
            env = envs()
            await env.start(own)
            solution = parse_solution(task.solution)
            for actions in solution if number % 3 else solution[-1:]:
                await env.step(actions)
            score = await env.evaluate()
            await env.close()
        return score

    async def scenario():
        envs = BrowserEnvs(BrowserConfig(), EnvConfig(name="browser", width=460, height=300))
        slots = asyncio.Semaphore(16)
        scores = await asyncio.gather(*(play(envs, slots, number) for number in range(64)))
        envs.close()
        assert scores == [float(number % 3 > 0) for number in range(64)]

    run_apart(asyncio.wait_for(scenario(), 300))
    server.shutdown()
    server.server_close()


def test_episodes_share_no_clipboard_cookie_or_storage(site):
    async def scenario():
        async with browsing() as envs:
            one, other = envs(), envs()
            await one.start(a_task(site[0]))
            await one._window.tab.evaluate("localStorage.kept = 1; document.cookie = 'a=b'; 1")
            await one.step(
                (click("field"), Type(text="secret"), Hotkey(keys=("ctrl", "a")), Hotkey(keys=("ctrl", "c")))
            )
            await other.start(a_task(site[0]))
            assert str(await other._window.tab.evaluate("out.textContent")).startswith("  1 ")
            await other.step((click("field"), Hotkey(keys=("ctrl", "v")), click("greet")))
            assert await other._window.tab.evaluate("out.textContent") == "Hello "

    run_apart(scenario())


def is_chromium(process):
    command = Path(f"/proc/{process}/cmdline").read_text()
    return command.startswith("/usr/lib/chromium/chromium\0") and "/home/user/profile" in command


def test_a_killed_browser_costs_its_episodes_and_comes_back(site):
    async def scenario():
        async with browsing() as envs:
            env = envs()
            await env.start(a_task(site[0]))
            os.kill(next(filter(is_chromium, descendants(os.getpid()))), signal.SIGKILL)
            with pytest.raises(EnvError, match=r"ended|crashed"):
                for _ in range(50):
                    await env.step((click("greet"),))
            await env.close()
            again = envs()
            await again.start(a_task(site[0]))
            assert await again.evaluate() == 1

    run_apart(asyncio.wait_for(scenario(), 120))


def test_a_crashed_page_costs_its_own_episode(site):
    async def scenario():
        async with browsing() as envs:
            one, other = envs(), envs()
            await one.start(a_task(site[0]))
            await other.start(a_task(site[0]))
            one._window.tab.send("Page.crash")
            with pytest.raises(EnvError, match="crashed"):
                await one.step((click("greet"),))
            await other.step((click("greet"),))
            assert await other.evaluate() == 1

    run_apart(asyncio.wait_for(scenario(), 120))


def test_pages_reach_allowed_origins_only(site, caplog):
    async def scenario():
        async with browsing() as envs:
            env = envs()
            await env.start(a_task(site[0], "/outside"))
            await asyncio.sleep(0.5)
            assert await env._window.tab.evaluate("window.reached ?? null") is None
            candidates = await env._window.tab.evaluate("candidates")
            assert all(name.endswith(".local") or name.startswith("127.") for name in candidates), candidates
            blocked = env._context.access.blocked
            assert {"evil.test:80", "evil.test:443", "169.254.169.254:80"} <= blocked.keys()
            await env.close()
            assert caplog.text.count("asked for evil.test:443, which is not allowed") == 1

    run_apart(asyncio.wait_for(scenario(), 60))


CLICK = (Click(point=Point(100, 100)),)


@pytest.mark.parametrize("name", ["dialogs", "growing"])
def test_a_restless_page_gives_screenshots(site, name):
    async def scenario():
        async with browsing() as envs:
            env = envs()
            await env.start(a_task(site[0], f"/{name}"))
            await env.step((Hotkey(keys=("enter",)),))
            await env.close()

    run_apart(asyncio.wait_for(scenario(), 120))


def test_a_page_that_reloads_without_end_costs_its_own_episode_at_most(site):
    async def scenario():
        async with browsing() as envs:
            limits = EnvConfig(name="browser", width=WIDTH, height=HEIGHT, start_seconds=20, step_seconds=20)
            restless, other = GuardedEnv(envs(), limits), envs()
            with suppress(EnvTimeout):
                await restless.start(a_task(site[0], "/reload"))
            await other.start(a_task(site[0]))
            await restless.close()
            await other.step((click("greet"),))
            assert await other.evaluate() == 1

    run_apart(asyncio.wait_for(scenario(), 120))


def test_a_page_opens_a_limited_number_of_windows(site):
    async def scenario():
        async with browsing() as envs:
            env = envs()
            await env.start(a_task(site[0], "/windows"))
            await env.step(CLICK)
            assert 1 < len(env._window._tabs) <= MAX_TABS
            await env.close()

    run_apart(asyncio.wait_for(scenario(), 120))


def test_downloads_without_end_are_cancelled(site):
    async def scenario():
        async with browsing() as envs:
            env = envs()
            await env.start(a_task(site[0], "/downloads"))
            await env.step(CLICK)
            await asyncio.sleep(3)
            size = sum(file.stat().st_size for file in env._context.downloads.iterdir())
            assert env._window._downloads
            assert size < (MAX_DOWNLOADS + 1) * 80 * 2**20
            await env.close()

    run_apart(asyncio.wait_for(scenario(), 120))


def test_a_frozen_page_does_not_stop_other_episodes(site):
    async def scenario():
        async with browsing() as envs:
            frozen, other = envs(), envs()
            await frozen.start(a_task(site[0], "/frozen"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(frozen.step(CLICK), 3)
            await other.start(a_task(site[0]))
            await other.step((click("greet"),))
            await frozen.close()
            await other.close()

    run_apart(asyncio.wait_for(scenario(), 120))


def test_a_page_may_close_the_window_that_it_opened(site):
    async def scenario():
        async with browsing() as envs:
            env = envs()
            await env.start(a_task(site[0], "/close"))
            await env._window.tab.evaluate("window.open('/close'); 1")
            await env._window.settle()
            assert len(env._window._tabs) == 2
            await env.step(CLICK)  # the second window closes: the first is in front again
            assert len(env._window._tabs) == 1
            await env.close()

    run_apart(asyncio.wait_for(scenario(), 60))
