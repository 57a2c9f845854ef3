"""`arpo view RUN --export FOLDER`: the same pages from a file, without a server."""

import re
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from browsers import choose_replayed_success, visiting


@pytest.fixture(scope="module")
def site(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "site"
    command = [sys.executable, "-m", "arpo", "view", str(runs), "--export", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture
def visit(browser, site):
    with visiting(browser, (site / "index.html").as_uri()) as opened:
        yield opened


def test_every_page_opens_from_a_file(visit):
    for fragment, heading in {
        "/runs": "Runs",
        "/s/first/batches": "Batches",
        "/s/first/batch/2": "Batch 2",
        "/s/first/group/batch-2-0": "Set the language to Greek",
        "/s/first/episodes": "Episodes",
        "/s/first/episode/batch-1-0-0": "Set the language to Greek",
        "/s/first/tasks": "Tasks",
        "/s/first/task/pool-040": "Set the language to Greek",
        "/s/first/faults": "Faults",
        "/s/first/timeline": "Timeline",
        "/s/first/recipe?against=second": "Recipe",
    }.items():
        page = visit.open(fragment)
        expect(page.get_by_role("heading", level=1)).to_contain_text(heading)
        assert page.get_by_role("alert").count() == 0, fragment


def test_an_exported_episode_has_screenshots_tokens_and_difference(visit):
    page = visit.open("/s/first/episode/batch-1-0-0?step=2")
    image = page.locator(".stage > .screen img")
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 320
    assert image.get_attribute("src").startswith("shots/")
    page.keyboard.press("t")
    expect(page.locator(".token")).to_have_count(4)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".where")).to_have_text("step 3 of 4")
    page.keyboard.press("d")
    expect(page.locator(".difference")).to_have_count(1)


def test_filters_of_an_export_work_in_the_browser(visit):
    choose_replayed_success(visit.open("/s/first/episodes"))
    page = visit.open("/s/first/episodes?max_score=0.5&stop=parse_error")
    expect(page.locator("tbody tr")).to_contain_text("batch-2-1-1")


def test_recipes_are_compared_and_missing_parts_are_explained(visit):
    page = visit.open("/s/first/recipe?against=second")
    expect(page.locator("tbody tr")).to_contain_text("replay.enabled")
    page = visit.open("/s/first/episode/batch-10-0-0")
    expect(page.get_by_role("alert")).to_contain_text("This export does not contain it")
    expect(page.get_by_role("searchbox")).to_be_hidden()


def test_a_point_of_a_curve_opens_only_a_batch_that_was_exported(visit):
    page = visit.open("/s/first/timeline")
    page.get_by_role("slider").first.focus()
    page.evaluate("delete window.ARPO_EXPORT['/api/s/first/batches/1']")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert page.url.endswith("#/s/first/timeline")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Batch 2")


def test_an_export_forbids_requests_to_other_places(visit):
    page = visit.open("/runs")
    policy = page.locator("meta[http-equiv]").get_attribute("content")
    assert re.match("default-src 'none'", policy)
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    visit.faults.clear()  # Chromium reports the refused request
