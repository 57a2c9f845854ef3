"""report.html in Chromium: one file, opened from the disk, with the pages of `arpo view`."""

import re

import pytest
from playwright.sync_api import expect

from arpo.storage.run_folder import RunFolder
from arpo.viewer.export import write_report
from browsers import serving, violations, visiting
from viewed_runs import config, make_run, played

EVIL = "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "desk"
    make_run(folder)
    return write_report(folder).rename(tmp_path_factory.mktemp("moved") / "report.html")


@pytest.fixture
def visit(browser, report):
    with visiting(browser, report.as_uri()) as opened:
        opened.page.wait_for_selector("main:not([aria-busy]) > *")
        yield opened


def test_the_first_view_has_all_of_the_run(visit):
    page = visit.page
    expect(page.get_by_role("heading", level=1)).to_have_text("desk")
    headings = page.locator("main h2").evaluate_all("all => all.map(one => one.firstChild.textContent)")
    assert headings == [
        "Success rate before and after training",
        "What it learned",
        "Same tasks before and after training",
        "Curves",
        "Where time goes",
        "Success rate by task",
        "How episodes ended",
        "Groups",
        "Faults",
        "Recipe",
    ]
    expect(page.get_by_role("row", name="training tasks")).to_contain_text("+50.0")
    chart = page.locator("figure", has_text="Success rate of training episodes")
    expect(chart.locator(".note")).to_contain_text("success Share of this batch's episodes")
    expect(page.get_by_role("row", name=re.compile("answer was not in the action language"))).to_contain_text(
        "unknown action: jump()"
    )
    assert sorted(page.locator(".groups tr", has_text="Greek").locator(".advantage").all_inner_texts()) == [
        "+1.0",
        "−1.0",
    ]


def test_episodes_before_and_after_have_drawn_actions_and_screenshots(visit):
    pair = visit.page.locator("details[open]")
    expect(pair.locator("summary")).to_contain_text("before: score 0")
    expect(pair.locator("thead")).to_contain_text("evaluation after batch 2: eval2-train-0-0")
    assert pair.locator("tbody tr").count() == 5  # four steps and the final screenshot
    ring = pair.locator("circle.mark").nth(0)
    assert (ring.get_attribute("cx"), ring.get_attribute("cy")) == ("60", "200")
    image = pair.locator("img").nth(0)
    image.scroll_into_view_if_needed()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 320
    assert image.get_attribute("src").startswith("data:image/png;base64,")


def test_the_keyboard_opens_an_episode_and_goes_through_its_steps(visit):
    page = visit.page
    page.locator("summary", has_text="Delete the file report").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")  # the scrolling region
    page.keyboard.press("Tab")  # the first episode
    page.keyboard.press("Enter")
    expect(page.locator(".where")).to_have_text("step 1 of 4")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".where")).to_have_text("step 2 of 4")
    expect(page.locator(".strip a[aria-current]")).to_have_attribute("aria-label", "Step 2")


def test_a_link_to_a_view_outside_of_the_file_leads_nowhere(visit):
    page = visit.page
    tasks = page.locator("tr", has=page.locator("small", has_text="heldout-006")).locator("a")
    assert tasks.get_attribute("href") is None and tasks.get_attribute("aria-disabled") == "true"
    page.get_by_role("link", name="Batches").click()
    page.get_by_role("link", name="batch 1").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Batch 1")


def test_the_report_is_accessible(browser, report):
    with visiting(browser, report.as_uri(), bypass_csp=True) as visit:
        visit.page.wait_for_selector("main:not([aria-busy]) > *")
        assert violations(visit.page) == []


def test_text_of_a_model_never_becomes_markup(browser, tmp_path):
    store = RunFolder(tmp_path / "run")
    store.write_recipe(config())
    store.add_trajectory(played("batch-1-0-0", "pool-040", 1.0, thought=EVIL))
    store.log_metrics(1, {EVIL: 1.0})
    store.close()
    with visiting(browser, write_report(tmp_path / "run").as_uri()) as visit:
        visit.page.wait_for_selector("main:not([aria-busy]) > *")
        expect(visit.page.locator("details[open] .thought").nth(0)).to_have_text(EVIL)
        assert visit.page.evaluate("window.hit") is None


def test_an_episode_that_cannot_be_read_leaves_the_rest_of_the_report(browser, tmp_path):
    make_run(tmp_path / "desk")
    with serving(tmp_path / "desk") as address, visiting(browser, address) as visit:
        error = '{"error": "trajectories.jsonl: line 1 was changed"}'
        visit.page.route("**/api/s/desk/episodes/*", lambda route: route.fulfill(status=400, body=error))
        page = visit.open("/s/desk/report")
        expect(page.get_by_text("trajectories.jsonl: line 1 was changed").first).to_be_visible()
        expect(page.get_by_role("heading", name="Recipe")).to_be_visible()
        visit.faults.clear()  # Chromium reports the refused requests


def test_another_script_is_refused(browser, report, tmp_path):
    page = report.read_text("utf-8").replace("</body>", "<script>window.hit = 1</script></body>")
    (tmp_path / "report.html").write_text(page, "utf-8")
    with visiting(browser, (tmp_path / "report.html").as_uri()) as visit:
        visit.page.wait_for_selector("main:not([aria-busy]) > *")
        assert visit.page.evaluate("window.hit") is None
        assert any("Content Security Policy" in fault for fault in visit.faults)
        visit.faults.clear()
