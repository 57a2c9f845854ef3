"""Times of calls, lanes of the timeline, and values of tokens in the browser."""

import json
import math
import re
from dataclasses import replace

from playwright.sync_api import expect

from arpo.storage.run_folder import RunFolder
from browsers import serving, visiting
from viewed_runs import config, played

TOKENS = "/s/first/episode/batch-1-0-0?step=1&view=tokens"


def colours(page):
    """The share of the strongest colour of each token."""
    script = "all => all.map(one => Number(one.style.getPropertyValue('--share')))"
    return page.locator(".token").evaluate_all(script)


def test_tokens_are_coloured_by_entropy_ratio_and_clipping(visit):
    page = visit.open(TOKENS)
    page.get_by_label("clipped", exact=True).check()
    page.wait_for_url("**colour=clipped**")
    page.wait_for_selector(".token[title^='clipped']")
    assert colours(page) == [0, 1, 0, 0]
    page.get_by_label("entropy").check()
    page.wait_for_selector(".token[title^='entropy 2']")
    assert colours(page) == [0.25, 1, 0.05, 0]
    page.get_by_label("ratio").check()
    page.wait_for_selector(".token[title^='ratio 1.5']")
    assert colours(page)[1] == 1 and colours(page)[0] == 0


def test_an_answer_that_was_trained_twice_shows_the_chosen_update(visit):
    page = visit.open(TOKENS + "&colour=ratio")
    box = page.get_by_label("Trained in")
    assert box.locator("option").all_inner_texts() == ["batch 1, update 1", "batch 2, update 1, replayed"]
    assert box.input_value() == "1"
    box.select_option("0")
    page.wait_for_url("**trained=0**")
    expect(page.locator(".token[title*='ratio 1.5']")).to_have_count(0)
    assert colours(page) == [0, 0, 0, 0]


def test_other_likely_tokens_stand_beside_the_sampled_ones(browser, tmp_path):
    episode = played("batch-1-0-0", "pool-040", 1.0)
    first = episode.turns[0]
    count = len(first.completion.token_ids)
    answer = replace(first.completion, alternatives=(((7, math.log(0.25)),), *[()] * (count - 1)))
    store = RunFolder(tmp_path / "run")
    store.write_recipe(config())
    store.add_trajectory(replace(episode, turns=(replace(first, completion=answer), *episode.turns[1:])))
    store.close()
    with serving(tmp_path) as address, visiting(browser, address) as visit:
        page = visit.open("/s/run/episode/batch-1-0-0?step=1&view=tokens")
        expect(page.get_by_role("columnheader", name="Other likely tokens")).to_be_visible()
        expect(page.get_by_role("cell", name="25%")).to_be_visible()
        expect(page.locator(".token").first).to_have_attribute("title", re.compile("instead: .* 25%"))


def test_a_run_without_values_says_how_to_store_them(browser, tmp_path):
    store = RunFolder(tmp_path / "plain")
    store.write_recipe(config())
    store.add_trajectory(played("batch-1-0-0", "pool-040", 1.0))
    store.close()
    with serving(tmp_path) as address, visiting(browser, address) as visit:
        page = visit.open("/s/plain/episode/batch-1-0-0?step=1&view=tokens&colour=ratio")
        expect(page.get_by_text("Train with --store.token_stats true to store them.")).to_be_visible()
        assert page.get_by_label("ratio").is_disabled()
        assert page.get_by_label("log-probability", exact=True).is_checked()
        page = visit.open("/s/plain/timeline")
        expect(page.get_by_text("This run has no times of calls yet.")).to_be_visible()
        page = visit.open("/s/plain/episode/batch-1-0-0?step=1")
        expect(page.get_by_text("time per call not stored")).to_be_visible()


def test_each_step_shows_the_time_of_its_calls(visit):
    page = visit.open("/s/first/episode/batch-1-0-0?step=2")
    line = page.get_by_text("answer 200 ms")
    assert line.inner_text().endswith("action 100 ms · began 800 ms after the start of the run · version 0")
    page = visit.open("/s/first/episode/batch-1-0-0?step=5")
    expect(page.get_by_text("start of the environment 500 ms · evaluation 50 ms")).to_be_visible()


def test_the_timeline_has_lanes_and_zooms_to_a_batch(visit):
    page = visit.open("/s/first/timeline")
    lanes = page.locator(".lanes")
    assert "8.0 s, 3 environments" in lanes.inner_text()
    label = lanes.locator("canvas").get_attribute("aria-label")
    assert label.startswith("Environments: starting ") and "waiting for an answer" in label
    painted = lanes.locator("canvas").evaluate(
        "one => one.getContext('2d').getImageData(0, 0, one.width, one.height).data.some(value => value > 0)"
    )
    assert painted
    slow = page.get_by_role("table", name="Slowest episodes")
    expect(slow.get_by_role("row")).to_have_count(9)
    lanes.get_by_label("Show").select_option("2")
    page.wait_for_url("**batch=2**")
    expect(lanes).to_contain_text("4.0 s, 3 environments")
    expect(page.get_by_role("table", name="Slowest episodes").get_by_role("row")).to_have_count(5)
    expect(page.get_by_text("Time of the environments")).to_be_visible()


def test_the_pointer_tells_what_an_environment_does_and_a_click_opens_its_episode(visit):
    page = visit.open("/s/first/timeline?batch=1")
    canvas = page.locator(".lanes canvas")
    box = canvas.bounding_box()
    scale = box["height"] / canvas.evaluate("one => one.height")
    first_row = (2 * (16 + 6) + 7) * scale  # below learner and engine
    canvas.hover(position={"x": box["width"] * 0.05, "y": first_row})  # 0.2 s of 4 s
    readout = page.locator(".lanes .readout")
    assert readout.inner_text().split("\n")[1:] == ["starting", "batch-1-0-0"]
    canvas.hover(position={"x": box["width"] * 0.9, "y": 8 * scale})
    assert "learner: learning, 1.0 s" in readout.inner_text()
    canvas.click(position={"x": box["width"] * 0.05, "y": first_row})
    page.wait_for_url("**/episode/batch-1-0-0")


def test_a_thousand_environments_are_drawn_in_few_rows(browser, tmp_path):
    store = RunFolder(tmp_path / "wide")
    store.write_recipe(config())
    for number in range(1024):
        calls = [("start", 0.0, 10.0), ("engine", 10.0, 5.0 + number % 7), ("evaluate", 30.0, 1.0)]
        store.log_calls({"episode": f"batch-1-{number}-0", "host": "", "fault": ""}, calls)
    store.log_calls({"step": 1}, [("rollout", 0.0, 31.0), ("learn", 31.0, 9.0)])
    store.add_trajectory(played("batch-1-0-0", "pool-040", 1.0))
    store.close()
    with serving(tmp_path) as address, visiting(browser, address) as visit:
        page = visit.open("/s/wide/timeline")
        wanted = "40.0 s, 1,024 environments, 8 in each row"  # shown once the index is complete
        expect(page.locator(".lanes")).to_contain_text(wanted)
        assert page.locator(".lanes canvas").evaluate("one => one.height") < 600


def test_an_export_has_lanes_and_values(browser, runs, tmp_path):
    from arpo.viewer.export import write_export
    from arpo.viewer.library import Library

    library = Library([runs / "first"])
    write_export(library, tmp_path / "site", "batch=1")
    library.close()
    assert json.dumps("/api/s/first/lanes") in (tmp_path / "site" / "data" / "0.js").read_text("utf-8")
    with visiting(browser, (tmp_path / "site" / "index.html").as_uri()) as visit:
        page = visit.open("/s/first/timeline")
        assert "3 environments" in page.locator(".lanes").inner_text()
        page = visit.open("/s/first/episode/batch-1-0-0?step=1&view=tokens&colour=clipped")
        assert colours(page) == [0, 1, 0, 0]
