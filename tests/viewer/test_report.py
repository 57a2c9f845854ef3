"""report.html: contents, escaping, selection of episodes, drawings of actions."""

import re

import pytest

from arpo import actions as act
from arpo.config import Config
from arpo.errors import UserError
from arpo.storage.run_folder import RunFolder
from arpo.types import Completion
from arpo.viewer.charts import Series, line_chart
from arpo.viewer.episodes import action_label, action_svg
from arpo.viewer.report import write_report
from markup import parsed
from stored_episodes import ALL_ACTIONS, desktop, episode, small, turn

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


def completion(text):
    return Completion(token_ids=(1,), logprobs=(-0.5,), text=text, finish="stop", policy_version=0)


def make_run(folder):
    store = RunFolder(folder)
    store.write_recipe(Config())
    for step in range(5):
        store.log_metrics(step, {"success": step / 10, "loss": -0.1, "rescued": 2.0, "grad_norm": 0.3})
    store.log_metrics(5, {"eval_train": 0.5, "eval_heldout": 0.25, "loss": float("nan")})
    turns = (
        turn(small(1), completion=completion(f"Thought: {EVIL}\nAction: click()"), actions=ALL_ACTIONS),
        turn(small(2), completion=completion(EVIL), actions=(act.Type(text=EVIL),), error=EVIL),
    )
    store.add_trajectory(episode("e0", [small(1), small(2), small(3)], turns=turns, task_id=EVIL))
    store.add_trajectory(episode("e1", [small(1), small(4)], score=0.0))
    store.write_summary(
        {"success": {"base": {"train": 0.25, "heldout": 0.2}, "final": {"train": 0.6, "heldout": 0.2}}}
    )
    store.close()


def test_the_page_is_complete_and_needs_no_other_file(tmp_path):
    make_run(tmp_path)
    tags = parsed(write_report(tmp_path))
    text = " ".join(tags.text)
    for words in (
        "+35.0 points",
        "Success rate in evaluations",
        "Loss",
        "grad_norm",
        "score 0",
        "Step 2",
        "Final screenshot",
    ):
        assert words in text
    links = [value for _, attrs in tags.seen for name, value in attrs.items() if name in {"src", "href"}]
    assert links and all(link.startswith("data:image/png;base64,") for link in links)
    assert sum(tag == "img" for tag, _ in tags.seen) == 3 + 2


def test_text_from_the_model_is_escaped(tmp_path):
    make_run(tmp_path)
    path = write_report(tmp_path)
    tags = parsed(path)
    assert not any(tag == "script" for tag, _ in tags.seen)
    assert not any(name.startswith("on") for _, attrs in tags.seen for name in attrs)
    assert "<script" not in path.read_text("utf-8")
    assert EVIL in "".join(tags.text)
    policies = [a["content"] for t, a in tags.seen if t == "meta" and "http-equiv" in a]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_a_run_that_has_just_started_has_a_report(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    assert "not finished yet" in write_report(tmp_path).read_text("utf-8")
    store.close()


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        write_report(tmp_path)


def test_pruned_episodes_are_left_out(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    store.add_trajectory(episode("gone", [small(1), small(2)]))
    store.add_trajectory(episode("kept", [small(3), small(4)]))
    store.prune(["kept"])
    page = write_report(tmp_path).read_text("utf-8")
    assert "episode kept<" in page and "episode gone<" not in page


def test_screenshots_up_to_the_maximum_width_stay_png(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    store.add_trajectory(episode("e", [desktop(0), small(1)]))
    assert "data:image/webp" not in write_report(tmp_path).read_text("utf-8")


def test_every_action_is_drawn_or_named():
    for action in ALL_ACTIONS:
        assert action_svg(action, 224, 168) or action_label(action), action
    assert 'cx="30" cy="40"' in action_svg(act.Click(point=act.Point(30, 40)), 224, 168)
    assert "M 1 2 L 3 4" in action_svg(act.Drag(start=act.Point(1, 2), end=act.Point(3, 4)), 224, 168)
    assert action_label(act.Type(text="hi", submit=True)) == "type “hi” ⏎"


def test_a_line_chart_maps_points_to_pixels():
    chart = line_chart("t", [Series(label="a", points=[(0, 0.0), (10, 1.0)])], percent=True)
    points = re.search(r'polyline points="([^"]*)"', chart)
    assert points is not None and points[1] == "54.0,166.0 348.0,12.0"
    assert "100%" in chart
    assert line_chart("t", [Series(label="a", points=[])]) == ""
    assert "polyline" in line_chart("t", [Series(label="a", points=[(3, 0.0)])])
