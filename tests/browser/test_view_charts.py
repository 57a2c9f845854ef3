"""Curves, lanes and tables of `arpo view`: zoom, smoothing, colours, and widths of phones."""

import pytest
from playwright.sync_api import expect

from browsers import visiting
from viewed_runs import VIEWS

PHONE = 360  # pixels


@pytest.fixture(scope="module")
def phone(browser, address):
    with visiting(browser, address) as visit:
        visit.page.set_viewport_size({"width": PHONE, "height": 760})
        yield visit


@pytest.mark.parametrize("fragment", VIEWS)
def test_no_page_is_wider_than_a_phone(phone, fragment):
    page = phone.open(fragment)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


def test_a_phone_shows_results(phone):
    page = phone.open("/runs")
    for text in ("25% → 75%", "50% → 0%"):
        box = page.locator("tbody tr", has_text="first").get_by_text(text).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE
    page = phone.open("/s/first/tasks?all=1")
    for name in ("Before", "After", "Change"):
        box = page.get_by_role("columnheader", name=name).bounding_box()
        assert box["x"] + box["width"] <= PHONE


def test_evaluations_and_explanations_are_on_the_page_of_runs(visit):
    page = visit.open("/runs")
    titles = page.locator("figcaption").all_inner_texts()
    assert [title.split("\n")[0] for title in titles[:2]] == [
        "Success rate on training tasks",
        "Success rate on held-out tasks",
    ]
    expect(page.locator("figure").nth(0)).to_contain_text("eval_train")


def test_a_chart_is_enlarged_zoomed_and_smoothed(visit):
    page = visit.open("/runs?metrics=success&runs=first")
    page.get_by_role("button", name="Enlarge: Success rate of training episodes").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("circle:not(.cursor circle)")).to_have_count(2)
    dialog.get_by_label("From").fill("2")
    dialog.get_by_label("To").focus()
    expect(dialog.get_by_role("button", name="Whole range")).to_have_count(0)  # one batch is no range
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page = visit.open("/runs?metrics=eval_train&runs=first")
    plot = page.get_by_role("slider")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.15 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 40)
    page.mouse.up()
    expect(page.get_by_role("button", name="Whole range")).to_be_visible()
    page.get_by_role("button", name="Whole range").click()
    expect(page.get_by_role("button", name="Whole range")).to_have_count(0)
    page.get_by_label("Smoothing").select_option("3")
    expect(page.locator("polyline.raw")).to_have_count(1)
    # 0.25 and 0.75 become their mean, 0.5: a level line.
    points = page.locator("polyline:not(.raw)").get_attribute("points").split()
    assert len({point.split(",")[1] for point in points}) == 1


def test_lanes_have_names_and_each_colour_one_meaning(visit):
    page = visit.open("/s/first/timeline")
    names = page.locator(".lane-names span").all_inner_texts()
    assert names[:3] == ["learner", "engine", "environment 1"]
    page.mouse.move(0, 0)
    keys = page.locator(".lanes .readout .swatch").evaluate_all("keys => keys.map((key) => key.className)")
    assert len(keys) == len(set(keys)) == 6  # rollouts, learning; start, step, evaluate, wait


def test_a_slow_page_says_so(visit):
    page = visit.open("/runs")
    page.route("**/api/s/first/tasks", lambda route: (page.wait_for_timeout(600), route.continue_()))
    page.evaluate("location.hash = '#/s/first/tasks'")
    expect(page.locator("#loading")).to_have_text("Loading: Tasks …")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Tasks")
    expect(page.locator("#loading")).to_be_hidden()
