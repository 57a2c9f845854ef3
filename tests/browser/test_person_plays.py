"""A person plays two doorbell tasks in a real browser; `arpo collect` stores the episodes."""

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import expect

import arpo

EXAMPLES = Path(__file__).parents[2] / "examples"
BELLS = {"door-01": ("Click Nora", 161, 91), "door-02": ("Click Hugo", 63, 119)}


@pytest.fixture
def collecting(tmp_path):
    tasks = json.loads((EXAMPLES / "doorbell_tasks.json").read_text())
    (tmp_path / "tasks.json").write_text(json.dumps([task for task in tasks if task["id"] in BELLS]))
    settings = {
        "engine.name": "person",
        "run.dir": tmp_path / "run",
        "tasks.heldout": "",
        "tasks.train": tmp_path / "tasks.json",
        "train.epochs": 1,
        "rollout.group_size": 2,
        "rollout.max_steps": 4,
    }
    command = [sys.executable, "-m", "arpo", "collect", "doorbell.toml"]
    words = [f"--{key}={value}" for key, value in settings.items()]
    with (
        subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True, cwd=EXAMPLES) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        yield process


def test_a_person_plays(browser, collecting, tmp_path):
    assert collecting.stdout
    lines = iter(collecting.stdout)
    address = next(line for line in lines if "play here" in line).split()[-1]
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    page = context.new_page()
    page.goto(address)
    places = {text: (x, y) for text, x, y in BELLS.values()}
    screen, heading = page.locator("#screen"), page.get_by_role("heading", level=1)
    for number in range(4):
        expect(page.locator("#step")).to_have_text("A new episode, step 1")
        expect(heading).to_have_text(re.compile("Nora|Hugo"))
        x, y = places[heading.inner_text()]
        zoom = screen.bounding_box()["width"] / 224
        assert zoom == 3
        if number == 0:  # a click beside the bells, text, a key, and then the bell
            page.get_by_role("textbox").fill("look first")
            screen.click(position={"x": 4, "y": 4})
            expect(page.locator("#step")).to_have_text("step 2")
            page.keyboard.type("it's")
            expect(page.locator("#typed")).to_have_text("typing: it's")
            page.keyboard.press("Control+c")
            expect(page.locator("#step")).to_have_text("step 4")
        if number == 1:
            screen.click(position={"x": 4, "y": 4})
            expect(page.locator("#step")).to_have_text("step 2")
            asked = heading.inner_text()
            page.get_by_role("button", name="Discard this episode").click()
            expect(page.locator("#step")).to_have_text("A new episode, step 1")
            assert heading.inner_text() == asked
        shown = screen.get_attribute("src")
        screen.click(position={"x": x * zoom + 2, "y": y * zoom + 2})
        if number < 3:
            expect(screen).not_to_have_attribute("src", shown)
    rest = "".join(lines)
    assert collecting.wait() == 0, rest
    assert "4 episodes, 4 successes" in rest
    episodes = list(arpo.open_run(tmp_path / "run").episodes())
    answers = [[step.answer for step in one.steps] for one in episodes]
    assert max(answers, key=len)[:3] == [
        "Thought: look first\nAction: click(start_box='(1,1)')",
        "Action: type(content='it\\'s')",
        "Action: hotkey(key='ctrl c')",
    ]
    assert sorted(map(len, answers)) == [1, 1, 1, 4]
    context.close()
