"""`arpo view` without a mouse: arrow keys, shortcuts, and the Tab key from the list of runs to an episode."""

import re

from playwright.sync_api import expect


def heading(page):
    return page.get_by_role("heading", level=1)


def where(page):
    return page.locator(".where")


def test_arrow_keys_step_through_an_episode(visit):
    page = visit.open("/s/first/episode/batch-1-0-0")
    for key, text in (
        ("ArrowRight", "step 2 of 4"),
        ("ArrowRight", "step 3 of 4"),
        ("ArrowLeft", "step 2 of 4"),
        ("End", "final screenshot"),
        ("ArrowRight", "final screenshot"),
        ("Home", "step 1 of 4"),
        ("ArrowLeft", "step 1 of 4"),
    ):
        page.keyboard.press(key)
        expect(where(page)).to_have_text(text)
    expect(page.locator(".strip a[aria-current]")).to_have_attribute("aria-label", "Step 1")


def test_going_back_leaves_the_episode_at_once(visit):
    page = visit.open("/s/first/batch/1")
    page.locator("a.dot-link").first.press("Enter")
    expect(where(page)).to_have_text("step 1 of 4")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(where(page)).to_have_text("step 4 of 4")
    page.go_back()
    expect(heading(page)).to_have_text("Batch 1")


def test_letters_open_difference_tokens_neighbours_and_group(visit):
    page = visit.open("/s/first/episode/batch-1-0-0?step=2")
    page.keyboard.press("d")
    expect(page.locator(".difference")).to_have_count(1)
    page.keyboard.press("d")
    expect(page.locator(".difference")).to_have_count(0)
    page.keyboard.press("t")
    expect(page.locator(".token")).to_have_count(4)
    page.keyboard.press("]")
    expect(page).to_have_title(re.compile("Episode batch-1-0-1"))
    page.keyboard.press("[")
    expect(page).to_have_title(re.compile("Episode batch-1-0-0"))
    page.keyboard.press("g")
    expect(page).to_have_title(re.compile("Group batch-1-0"))
    page.keyboard.press("ArrowRight")
    expect(page).to_have_title(re.compile("Group batch-1-1"))


def test_a_chart_has_a_cursor_and_enter_opens_the_batch(visit):
    page = visit.open("/runs?runs=first")
    plot = page.get_by_role("slider", name="Success rate of training episodes")
    plot.focus()
    expect(plot).to_have_attribute("aria-valuetext", "batch 2: first 50%")
    page.keyboard.press("ArrowLeft")
    expect(plot).to_have_attribute("aria-valuetext", "batch 1: first 40%")
    page.keyboard.press("Enter")
    expect(heading(page)).to_have_text("Batch 1")
    page.keyboard.press("ArrowRight")
    expect(heading(page)).to_have_text("Batch 2")


def tab_to(page, name):
    """Press Tab until the focused element has this name."""
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "(document.activeElement.ariaLabel || document.activeElement.innerText || '').trim()"
        )
        if re.match(name, focused):
            return
    raise AssertionError(f"Tab does not reach {name}")


def test_the_tab_key_reaches_an_episode_from_the_list_of_runs(visit):
    page = visit.open("/runs")
    tab_to(page, "^first$")
    page.keyboard.press("Enter")
    expect(heading(page)).to_contain_text("Batches")
    tab_to(page, "^batch 2$")
    page.keyboard.press("Enter")
    expect(heading(page)).to_have_text("Batch 2")
    tab_to(page, "batch-1-0-0: replayed success")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(where(page)).to_have_text("step 1 of 4")


def test_the_first_tab_skips_to_the_content(visit):
    page = visit.open("/s/first/tasks")
    page.reload()
    expect(heading(page)).to_contain_text("Tasks")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_slash_searches_and_question_mark_explains_the_keys(visit):
    page = visit.open("/s/first/episode/batch-1-0-0")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("d?")
    expect(page.get_by_role("searchbox")).to_have_value("d?")
    expect(page.locator(".difference")).to_have_count(0)
    page.locator("main").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_the_focus_stays_on_a_filter_after_it_was_used(visit):
    page = visit.open("/s/first/episodes")
    page.get_by_label("Solved").focus()
    page.get_by_label("Solved").select_option("1")
    expect(page.locator("h1 small")).to_have_text("6")
    expect(page.get_by_label("Solved")).to_be_focused()
