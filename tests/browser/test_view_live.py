"""Pages that update themselves while a real run trains, and the state of a view across updates."""

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from arpo.storage.played_folder import PlayedFolder
from arpo.storage.run_folder import RunFolder
from browsers import serving, visiting
from viewed_runs import add_second_batch, config, make_run, played

SMALL = """
    --run.threads 1 --train.epochs 500 --train.tasks_per_batch 2 --train.tasks_per_update 2
    --rollout.max_steps 2 --rollout.max_answer_tokens 24 --loss.kl 0
    --eval.every 0 --eval.rollouts 1 --eval.heldout_rollouts 1
"""
TASKS = {"train": ("desk:pool", "pool-013", "pool-021"), "heldout": ("desk:heldout", "heldout-006")}
WAIT = 300_000  # milliseconds; a run starts within some seconds


@contextmanager
def training(folder):
    """A real run of many small batches in its own process."""
    words = SMALL.split()
    for name, (source, *ids) in TASKS.items():
        counts = {task: {"successes": 0, "rollouts": 0} for task in ids}
        (folder.parent / f"{name}.json").write_text(json.dumps({"source": source, "tasks": counts}), "utf-8")
        words += [f"--tasks.{name}", str(folder.parent / f"{name}.json")]
    command = [sys.executable, "-m", "arpo", "train", "desk", *words, "--run.dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def test_a_real_run_appears_and_grows_without_a_reload(browser, tmp_path):
    runs = tmp_path / "runs"
    make_run(runs / "old")
    with serving(runs) as address, visiting(browser, address) as visit:
        page = visit.open("/runs")
        page.evaluate("window.kept = true")
        with training(runs / "new") as process:
            row = page.get_by_role("row", name=re.compile("new"))
            expect(row).to_contain_text("live", timeout=WAIT)
            row.get_by_role("link", name="new").click()
            newest = page.locator("tbody tr:first-child td:first-child")
            expect(newest).to_have_text(re.compile(r"batch \d+"), timeout=WAIT)
            number = int(newest.inner_text().split()[1])
            expect(page.get_by_role("link", name=f"batch {number + 1}", exact=True)).to_be_visible(
                timeout=WAIT
            )
            assert process.poll() is None
        assert page.evaluate("window.kept") is True


@pytest.fixture
def growing(tmp_path):
    store = RunFolder(tmp_path / "run")
    store.write_recipe(config())
    for place, score in enumerate((1.0, 0.0)):
        store.add_trajectory(played(f"batch-1-0-{place}", "pool-040", score))
    store.log_metrics(1, {"success": 0.5})
    yield store
    store.close()


def test_an_update_keeps_the_focus_and_the_view(browser, growing):
    with serving(growing.folder) as address, visiting(browser, address) as visit:
        page = visit.open("/s/run/episodes?solved=0&sort=-score")
        expect(page.locator("tbody tr")).to_have_count(1)
        link = page.get_by_role("link", name="batch-1-0-1")
        link.focus()
        add_second_batch(growing)
        expect(page.locator("tbody tr")).to_have_count(4, timeout=20_000)
        expect(link).to_be_focused()


def test_an_update_does_not_interrupt_typing(browser, growing):
    with serving(growing.folder) as address, visiting(browser, address) as visit:
        page = visit.open("/s/run/episodes")
        field = page.get_by_label("Text in thought or answer")
        field.press_sequentially("ju")
        with page.expect_response(lambda response: response.url.endswith("/api/sources")):
            add_second_batch(growing)
        field.press_sequentially("mp")
        expect(field).to_have_value("jump")
        page.keyboard.press("Enter")
        expect(page.locator("h1 small")).to_have_text("1", timeout=20_000)


def wait_until(page, promise):
    while not page.evaluate(promise):
        page.wait_for_timeout(100)


INDEXED = "fetch('api/sources').then((a) => a.json()).then((a) => a.sources[0].episodes === 8)"


def test_an_update_during_typing_is_shown_afterwards(browser, growing):
    with serving(growing.folder) as address, visiting(browser, address) as visit:
        page = visit.open("/s/run/episodes")
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_label("Text in thought or answer").press_sequentially("ju")
        add_second_batch(growing)
        wait_until(page, INDEXED)
        for _ in range(3):  # when the third answer comes, the page has used a new one
            page.wait_for_event("response", lambda response: response.url.endswith("/api/sources"))
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_label("Text in thought or answer").fill("")
        page.evaluate("document.activeElement.blur()")
        expect(page.locator("tbody tr")).to_have_count(8, timeout=20_000)


def test_replaced_metrics_replace_the_curve(browser, growing):
    with serving(growing.folder) as address, visiting(browser, address) as visit:
        page = visit.open("/runs?metrics=success")
        expect(page.locator(".charts")).to_contain_text("50%")
        page.get_by_role("link", name="run", exact=True).click()
        metrics = growing.folder / "metrics.jsonl"
        metrics.write_text('{"step": 1, "success": 0.25}\n{"step": 2, "success": 0.75}\n', "utf-8")
        wait_until(page, "fetch('api/s/run/metrics').then((a) => a.json()).then((a) => a.rows.length === 2)")
        visit.open("/runs?metrics=success")
        values = page.evaluate("arpo.runs.log('run').then((log) => log.rows.map((row) => row.success))")
        assert values == [0.25, 0.75]


def test_a_stopped_server_is_reported(browser, runs):
    with serving(runs) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
    expect(page.locator("#offline")).to_be_visible(timeout=20_000)
    context.close()


def test_a_played_episode_grows_step_by_step_until_its_end(browser, tmp_path):
    whole = played("play", "pool-040", 1.0)
    folder = PlayedFolder(tmp_path / "steps", config())
    folder.write(replace(whole, turns=whole.turns[:1], final=whole.turns[0].screenshot))
    with serving(tmp_path / "steps") as address, visiting(browser, address) as visit:
        page = visit.open("/s/steps/episode/play?step=end")
        expect(page.locator(".where")).to_have_text("step 1 of 1")
        expect(page.locator(".line")).to_contain_text("it is being played")
        folder.write(replace(whole, turns=whole.turns[:3], final=whole.turns[2].screenshot))
        expect(page.locator(".where")).to_have_text("step 3 of 3")
        folder.finish(whole)
        folder.close()
        expect(page.locator(".where")).to_have_text("final screenshot")
        expect(page.locator(".line")).to_contain_text("score 1")
