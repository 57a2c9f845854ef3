"""Pages about a comparison, collected episodes, and OSWorld results of another agent."""

import json

import pytest
from playwright.sync_api import expect

from arpo.storage.run_folder import RunFolder
from browsers import serving
from viewed_runs import config, make_run, picture, played

AGENT = "results/pyautogui/screenshot/agent"


def make_results(folder):
    """One OSWorld task with three steps; as in OSWorld, each screenshot follows its action."""
    folder.mkdir(parents=True)
    actions = ("WAIT", "import pyautogui\npyautogui.click(60, 200)", "DONE")
    lines = [
        {
            "step_num": number,
            "action_timestamp": f"20260131@23595{number}500000",
            "action": action,
            "response": f"Thought: look for item {number}",
            "screenshot_file": f"step_{number}.png",
        }
        for number, action in enumerate(actions, 1)
    ]
    for number in (1, 2, 3):
        (folder / f"step_{number}.png").write_bytes(picture("osworld", number).png)
    (folder / "traj.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (folder / "result.txt").write_text("1.0", "utf-8")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for method in ("arpo", "grpo"):
        for seed in (0, 1):
            make_run(folder / "compared" / method / f"seed-{seed}", replay=method == "arpo")
    store = RunFolder(folder / "collected")
    store.write_recipe(config())
    for place, score in enumerate((1.0, 0.0)):
        store.add_trajectory(played(f"collect-{place}-0", "pool-040", score))
    store.close()
    make_results(folder / AGENT / "chrome" / "task-1")
    with serving(folder) as found:
        yield found


def tabs(page):
    return page.locator("#tabs a").all_inner_texts()


def test_all_seeds_of_a_method_have_one_colour(visit):
    page = visit.open("/runs")
    lines = page.locator("figure", has_text="Success rate of training episodes").locator("g:has(> polyline)")
    colours = lines.evaluate_all("all => all.map(one => one.getAttribute('class'))")
    assert sorted(colours) == ["c0", "c0", "c1", "c1"]
    expect(page.get_by_role("link", name="arpo, seed 1")).to_be_visible()


def test_two_methods_of_a_comparison_differ_in_their_recipes(visit):
    page = visit.open("/s/compared%2Farpo%2Fseed-0/recipe")
    page.get_by_label("Compare with").select_option(label="grpo, seed 0")
    expect(page.get_by_text("settings differ")).to_be_visible()
    expect(page.locator("tbody tr")).to_contain_text("replay.enabled")
    expect(page.locator("thead")).to_contain_text("arpo, seed 0")


def test_the_page_of_a_comparison(visit):
    page = visit.open("/runs")
    page.get_by_role("link", name="compared", exact=False).first.click()
    expect(page.locator("h1")).to_have_text("Comparison of 2 recipes")
    expect(page.locator("h2").first).to_have_text("Success rate")
    expect(page.get_by_role("slider", name="Success rate of training episodes")).to_be_visible()
    page.get_by_label("Baseline").select_option("grpo")
    expect(page.get_by_role("heading", name="Difference from grpo")).to_be_visible()
    expect(page.get_by_role("img", name="difference in percentage points").first).to_be_visible()


def test_collected_episodes_have_no_batches(visit):
    page = visit.open("/runs")
    page.get_by_role("link", name="collected").click()
    expect(page.locator("h1")).to_have_text("Episodes 2")
    assert tabs(page) == ["Runs", "Report", "Episodes", "Tasks", "Faults", "Recipe"]


def test_an_osworld_episode_of_another_agent_is_shown_step_by_step(visit):
    page = visit.open("/runs")
    page.get_by_role("link", name="agent").click()
    expect(page.locator("h1")).to_have_text("Episodes 1")
    assert tabs(page) == ["Runs", "Episodes", "Tasks", "Faults"]
    page.locator("tbody a").first.click()
    expect(page.locator(".line .badge").first).to_have_text("score 1")
    expect(page.locator(".stage > .screen")).to_contain_text("not stored")
    expect(page.locator(".answer .thought")).to_contain_text("look for item 1")
    page.keyboard.press("ArrowRight")
    ring = page.locator(".stage > .screen circle.mark")
    expect(ring).to_be_visible()
    assert (ring.get_attribute("cx"), ring.get_attribute("cy")) == ("60", "200")
    expect(page.locator(".answer")).to_contain_text("look for item 2")
    expect(page.locator(".answer")).to_contain_text("1.0 s")
