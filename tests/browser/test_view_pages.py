"""Every page of `arpo view` in Chromium: its content, its links, and the numbers of a known run."""

import re

import pytest
from playwright.sync_api import expect

from browsers import choose_replayed_success
from viewed_runs import VIEWS


def texts(page, selector):
    return [" ".join(text.split()) for text in page.locator(selector).all_inner_texts()]


def test_every_page_opens_by_its_address(visit):
    for fragment, heading in VIEWS.items():
        page = visit.open(fragment)
        expect(page.get_by_role("heading", level=1)).to_contain_text(heading)
        expect(page.get_by_role("alert")).to_have_count(0)


def test_runs_show_success_before_and_after(visit):
    page = visit.open("/runs")
    row = page.get_by_role("row", name="first")
    expect(row).to_contain_text("25% → 75%")
    expect(row).to_contain_text("50% → 0%")
    expect(row).to_contain_text("finished")
    heads = texts(page, "thead th")
    assert heads[-2:] == ["Training tasks", "Held-out tasks"]


def test_curves_of_two_runs_share_a_chart_and_a_point_opens_its_batch(visit):
    page = visit.open("/runs")
    chart = page.locator("figure", has_text="Success rate of training episodes")
    expect(chart.locator("polyline")).to_have_count(2)
    page.get_by_role("checkbox", name="Show second in the charts").uncheck()
    expect(chart.locator("polyline")).to_have_count(1)
    assert "runs=first" in page.url
    box = chart.locator("svg").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.96, box["y"] + box["height"] / 2)
    expect(page.get_by_role("heading", level=1)).to_have_text("Batch 2")


def test_the_evaluation_before_training_opens_its_episodes(visit):
    page = visit.open("/runs?metrics=eval_train&runs=first")
    page.get_by_role("slider").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Episodes 1")
    expect(page.locator("tbody tr")).to_contain_text("evaluation before training")


def test_metrics_are_added_and_removed(visit):
    page = visit.open("/runs")
    expect(page.locator("figcaption span", has_text=re.compile("^Loss$"))).to_have_count(1)
    page.get_by_role("button", name="Remove the curve of loss").click()
    expect(page.locator("figcaption span", has_text=re.compile("^Loss$"))).to_have_count(0)
    page.get_by_label("Add a metric").select_option("loss")
    expect(page.locator("figcaption span", has_text=re.compile("^Loss$"))).to_have_count(1)


def test_a_batch_shows_groups_as_dots_with_advantages(visit):
    page = visit.open("/s/first/batch/2")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    rescued = rows.nth(0)
    expect(rescued).to_contain_text("rescued by replay")
    assert sorted(texts(rescued, ".advantage")) == ["+1.0", "−1.0"]
    replayed = rescued.locator("a.dot-link:has(.replayed)")
    label = replayed.get_attribute("aria-label")
    assert "batch-1-0-0: replayed success, score 1" in label
    assert "from batch 1, 1 batch old, instead of batch-2-0-" in label
    expect(rows.nth(1).locator(".dot-link").nth(1)).to_have_attribute(
        "aria-label", re.compile("malformed answer")
    )
    expect(rows.nth(2)).to_contain_text("none")


def test_a_group_with_an_episode_that_was_not_played_says_why_it_is_dropped(visit):
    page = visit.open("/s/first/batch/1")
    row = page.locator("tbody tr", has_text="pool-021")
    expect(row).to_contain_text("not trained on: fewer than two episodes")
    expect(row.get_by_role("img")).to_have_attribute("aria-label", re.compile("no answer within 60 s"))


def test_groups_are_sorted_by_task_success_and_signal(visit):
    page = visit.open("/s/first/batch/2")
    first = page.locator("tbody tr .task small").nth(0)
    for name, tops in (("Task", ("pool-013", "pool-040")), ("Solved", ("pool-040", "pool-021"))):
        for top, arrow in zip(tops, "↑↓", strict=True):
            page.get_by_role("button", name=name, exact=False).click()
            expect(page.locator("th[aria-sort]")).to_have_text(f"{name} {arrow}")
            expect(first).to_have_text(top)
    page.get_by_role("button", name="Signal").click()
    expect(first).to_have_text("pool-013")  # rewards 1 and -1
    expect(page.locator("th[aria-sort]")).to_contain_text("Signal")


def test_a_group_shows_its_episodes_step_by_step_beside_each_other(visit):
    page = visit.open("/s/first/group/batch-2-0")
    expect(page.locator(".aligned tbody tr")).to_have_count(4)
    expect(page.locator(".aligned tbody tr").nth(0).locator("td")).to_have_count(2)
    expect(page.locator(".aligned thead")).to_contain_text(
        "Replayed from batch 1, 1 batch old. It replaced batch-2-0-"
    )
    expect(page.locator(".aligned thead")).to_contain_text("advantage +1.00")
    expect(page.locator(".aligned thead")).to_contain_text("advantage −1.00")
    images = page.locator(".aligned img")
    images.nth(0).scroll_into_view_if_needed()
    assert images.nth(0).evaluate("image => image.decode().then(() => image.naturalWidth)") == 320


def test_an_episode_draws_the_action_on_the_screenshot(visit):
    page = visit.open("/s/first/episode/batch-1-0-0?step=1")
    ring = page.locator(".stage > .screen circle.mark")
    assert (ring.get_attribute("cx"), ring.get_attribute("cy")) == ("60", "200")
    page = visit.open("/s/first/episode/batch-1-0-0?step=2")
    assert page.locator(".stage > .screen path.mark").get_attribute("d").startswith("M 40 40 L 200 90")
    page = visit.open("/s/first/episode/batch-1-0-0?step=3")
    expect(page.locator(".stage > .screen .chip")).to_have_text("type “Greek”")
    expect(page.locator(".answer .thought")).to_have_text("Type the language")
    page.get_by_role("button", name="Raw answer").click()
    expect(page.locator(".answer pre")).to_have_text(
        "Thought: Type the language\nAction: type(content='Greek')"
    )
    expect(page.locator(".line")).to_contain_text("replayed in batch 2")


def test_an_answer_that_does_not_parse_shows_the_reason(visit):
    page = visit.open("/s/first/episode/batch-2-1-1?step=2")
    expect(page.get_by_role("note")).to_have_text("Does not parse: unknown action: jump()")
    expect(page.locator(".strip a").nth(1)).to_have_attribute("aria-label", "Step 2, does not parse")


def test_the_difference_shows_changed_pixels(visit):
    page = visit.open("/s/first/episode/batch-1-0-0?step=2&difference=1")
    expect(page.locator(".difference img")).to_have_count(2)
    # The window has moved to the right: its left part and its right part have changed, in both pictures.
    expect(page.locator(".difference")).to_contain_text("9.5% of the pixels changed, in 2 areas")
    expect(page.locator(".difference rect.mark")).to_have_count(4)
    page.get_by_role("button", name="Difference").click()
    expect(page.locator(".difference")).to_have_count(0)


def test_the_transcript_has_all_steps_beside_the_screenshot(visit):
    page = visit.open("/s/first/episode/batch-1-0-0?step=2")
    steps = page.locator(".transcript li")
    expect(steps).to_have_count(5)
    expect(steps.nth(2)).to_contain_text("Type the language")
    expect(steps.nth(4)).to_contain_text("solved: the model called finished()")
    expect(page.locator(".transcript li[aria-current]")).to_contain_text("Drag the window")
    page.get_by_role("link", name="Step 4").first.click()
    expect(page.locator(".where")).to_have_text("step 4 of 4")
    page.get_by_role("button", name="Prompt", exact=True).click()
    expect(page.locator(".message").last).to_contain_text("assistant (step 3)")


def test_an_episode_plays_to_its_end(visit):
    page = visit.open("/s/first/episode/batch-1-0-0?step=3")
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.locator(".where")).to_have_text("final screenshot")
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_tokens_are_coloured_by_their_probability(visit):
    page = visit.open("/s/first/episode/batch-1-0-0?step=1&view=tokens")
    tokens = page.locator(".token")
    expect(tokens).to_have_count(4)
    shares = tokens.evaluate_all("all => all.map(one => Number(one.style.getPropertyValue('--share')))")
    assert shares == pytest.approx([0.1 / 3, 2.3 / 3, 0.02 / 3, 0.001 / 3])
    assert "log-probability −2.3 (10.0%), token 22" in tokens.nth(1).get_attribute("title")
    colours = tokens.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert colours[0] != colours[1]
    expect(page.locator(".rare tbody tr").nth(0)).to_contain_text("10.0%")


def test_episodes_are_filtered_sorted_and_found_by_text(visit):
    page = visit.open("/s/first/episodes")
    choose_replayed_success(page)
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Text in thought or answer").fill("jump")
    page.keyboard.press("Enter")
    expect(page.locator("h1 small")).to_have_text("1")
    expect(page.locator("tbody tr")).to_contain_text("batch-2-1-1")
    assert "text=jump" in page.url


def test_tasks_are_grouped_by_kind_with_before_and_after(visit):
    page = visit.open("/s/first/tasks")
    expect(page.locator("h1")).to_have_text(re.compile(r"Tasks 4 of \d kinds"))
    row = page.get_by_role("row", name="SetLanguage")
    expect(row).to_contain_text("+100")
    row.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("Tasks 1")
    expect(page.locator("tbody tr")).to_contain_text("pool-040")


def test_tasks_are_listed_hardest_first_with_before_and_after(visit):
    page = visit.open("/s/first/tasks?all=1")
    names = texts(page, "tbody tr .task small")
    assert names.index("heldout-006") < names.index("pool-040")
    row = page.locator("tbody tr", has_text="pool-040")
    expect(row).to_contain_text("training")
    expect(row).to_contain_text("+100")
    points = row.locator(".spark polyline").get_attribute("points")
    assert points == "3.0,12.0 97.0,21.0"  # 1 of 2 solved in batch 1, none in batch 2
    row.get_by_role("link").click()
    heads = page.locator(".aligned thead")
    expect(heads).to_contain_text("evaluation before training: eval0-train-0-0")
    expect(heads).to_contain_text("evaluation after batch 2: eval2-train-0-0")


def test_failures_are_counted_by_kind_and_host(visit):
    page = visit.open("/s/first/failures")  # as in links of earlier versions
    expect(page.get_by_role("heading", level=1)).to_contain_text("Faults")
    row = page.locator("table").nth(0).locator("tbody tr")
    expect(row).to_contain_text("EnvTimeout")
    expect(row).to_contain_text("no answer within 60 s")
    expect(page.locator("table").nth(1)).to_contain_text("batch-1-2-1")


def test_the_timeline_adds_shares_of_time(visit):
    page = visit.open("/s/first/timeline")
    environments = page.locator("figure", has_text="Time of the environments")
    expect(environments).to_contain_text("idle or closing 25%")
    loop = page.locator("figure", has_text="Time of the training loop")
    expect(loop).to_contain_text("learning 37.5%")  # 3 of 8 seconds


def test_two_recipes_differ_in_one_setting(visit):
    page = visit.open("/s/first/recipe")
    page.get_by_label("Compare with").select_option("second")
    expect(page.get_by_text("settings differ")).to_have_text(re.compile("^1 of "))
    row = page.locator("tbody tr")
    expect(row).to_contain_text("replay.enabled")
    assert row.locator("td").all_inner_texts()[:2] == ["true", "false"]


def test_a_recipe_lists_the_settings_that_differ_from_the_default(visit):
    page = visit.open("/s/first/recipe")
    page.get_by_label("only settings that differ").check()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.locator("tbody tr code").all_inner_texts()[:2] == ["tasks.train", "desk:pool"]


def test_search_finds_a_batch_and_an_evaluation_by_their_names(visit):
    page = visit.open("/runs")
    page.get_by_role("searchbox").fill("batch 2")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="batch 2").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Batch 2")
    page = visit.open("/search?text=evaluation before")
    page.get_by_role("link", name="evaluation before training").first.click()
    expect(page.locator("h1")).to_have_text("Episodes 1")


def test_an_episode_is_saved_as_a_gif(visit):
    page = visit.open("/s/first/episode/batch-1-0-0")
    with page.expect_download() as started:
        page.get_by_role("link", name="Save as GIF").click()
    assert started.value.suggested_filename == "batch-1-0-0.gif"
    assert started.value.path().read_bytes().startswith(b"GIF89a")


def test_search_covers_all_runs(visit):
    page = visit.open("/runs")
    page.get_by_role("searchbox").fill("jump")
    page.keyboard.press("Enter")
    # The page of runs has two rows too.
    expect(page.get_by_role("heading", level=1)).to_contain_text("Search 2 episodes")
    expect(page.locator("tbody tr")).to_have_count(2)
    assert sorted(row.split()[0] for row in texts(page, "tbody tr")) == ["first", "second"]


def test_a_view_is_copied_as_a_link_and_as_a_command(visit, runs):
    page = visit.open("/s/first/episode/batch-1-0-0?step=2")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy command").click()
    expect(page.locator("#status")).to_have_text("Command copied")
    command = page.evaluate("navigator.clipboard.readText()")
    assert command == f"arpo view {runs} --at '/s/first/episode/batch-1-0-0?step=2'"
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#status")).to_have_text("Link copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_an_unknown_address_is_explained(visit):
    page = visit.open("/s/nowhere/batch/1")
    expect(page.get_by_role("alert")).to_contain_text("There is no run nowhere.")


def test_an_episode_shows_the_votes_of_a_judge(visit):
    page = visit.open("/s/first/episode/batch-1-0-0")
    judged = page.get_by_role("region", name="Judge judge-vlm")
    expect(judged).to_contain_text("success (2 of 3 votes)")
    assert texts(page, ".judged li") == ["success: reason 0", "failure: reason 1", "success: reason 2"]
    visit.open("/s/first/episode/batch-1-0-1")
    expect(page.locator(".judged")).to_have_count(0)
