"""report.html: contents, escaping, numbers, reasons, before and after, drawings of actions."""

import re
from dataclasses import replace
from html import escape

import pytest

from arpo import actions as act
from arpo.config import Config, PluginsConfig
from arpo.errors import UserError
from arpo.reporting.metrics import METRICS
from arpo.storage.run_folder import RunFolder
from arpo.types import Completion, Failure, StopReason
from arpo.viewer.charts import Series, line_chart
from arpo.viewer.episodes import action_label, action_svg
from arpo.viewer.report import write_report
from markup import parsed
from stored_episodes import ALL_ACTIONS, desktop, episode, small, turn

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


def completion(text):
    return Completion(token_ids=(1,), logprobs=(-0.5,), text=text, finish="stop", versions=(0,))


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


def evaluation(step, landmark, train, heldout):
    return {
        "step": step,
        "episodes": 0,
        "landmark": landmark,
        "sets": {"train": train, "heldout": heldout},
        "failures": {"train": 0, "heldout": 0},
    }


def make_evaluated_run(folder, *, complete=True):
    """Two tasks of Desk: pool-040 is learned; heldout-006 is forgotten, and its environment breaks once."""
    store = RunFolder(folder)
    store.write_recipe(Config())
    store.log_metrics(0, {"eval_train": 0.0, "eval_heldout": 1.0})
    store.log_evaluation(evaluation(0, "base", {"pool-040": [0, 0]}, {"heldout-006": [1]}))
    first = {"shots": [small(1), small(2)], "task_id": "pool-040"}
    other = {"shots": [small(1), small(2)], "task_id": "heldout-006"}
    store.add_trajectory(episode("eval0-train-0-0", **first, score=0.0, stop=StopReason.MAX_STEPS))
    store.add_trajectory(episode("eval0-heldout-0-0", **other))
    store.add_trajectory(episode("batch0-0-0", **first))
    store.add_trajectory(episode("batch0-0-1", **first, score=0.0, stop=StopReason.CALL_USER))
    store.log_metrics(1, {"success": 0.5, "tokens": 1536.0, "episodes": 2, "groups": 1, "failures": 1})
    store.log_evaluation(
        evaluation(1, "final" if complete else "", {"pool-040": [1, 1]}, {"heldout-006": [0]})
    )
    store.add_trajectory(episode("eval1-train-0-0", **first, stop=StopReason.FAIL))
    store.add_trajectory(episode("eval1-heldout-0-0", **other, score=0.0))
    store.add_failure(
        Failure(
            episode_id="eval1-heldout-0-1",
            task_id="heldout-006",
            kind="EnvError",
            where="step",
            message=f"the screen went dark {EVIL}",
            attempts=3,
        )
    )
    store.close()


def text_of(path):
    return " ".join(" ".join(parsed(path).text).split())


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


def test_each_curve_has_an_explanation_and_readable_numbers(tmp_path):
    make_evaluated_run(tmp_path)
    page = write_report(tmp_path).read_text("utf-8")
    for name in ("eval_train", "eval_heldout", "success", "tokens"):
        assert f"<code>{name}</code> {escape(METRICS[name].explanation)}</p>" in page
    assert "<b>1,536</b>" in page and "step 1: 1,536<" in page
    assert not re.search(r"\d\.?\d*e\+\d|\bnan\b", page.partition("<h2>Recipe</h2>")[0])


def test_success_by_task_before_and_after(tmp_path):
    make_evaluated_run(tmp_path)
    page = text_of(write_report(tmp_path))
    assert "pool-040 training 0.0% (0/2) 100.0% (2/2) +100.0 points 1 of 2" in page
    assert "heldout-006 held-out 100.0% (1/1) 0.0% (0/1) −100.0 points –" in page
    assert "Evaluations in this run: before training, after batch 1." in page


def test_a_run_that_was_stopped_shows_its_newest_evaluation(tmp_path):
    make_evaluated_run(tmp_path, complete=False)
    page = text_of(write_report(tmp_path))
    assert "not finished yet" in page and "has not reached its last evaluation" in page
    assert "before after batch 1 change training tasks 0.0% (0/2) 100.0% (2/2) +100.0 points" in page
    assert "episodes 2 groups 1 episodes with a fault 1" in page


def test_the_same_task_before_and_after_with_the_reason_of_each_score(tmp_path):
    make_evaluated_run(tmp_path)
    path = write_report(tmp_path)
    page = text_of(path)
    assert "Before: the conversation no longer fitted" in page or "Before: ran out of steps" in page
    assert "After: correctly judged infeasible: the model called error_env()" in page
    assert "evaluation before training, 1 step, episode eval0-train-0-0" in page
    assert "evaluation after batch 1, 1 step, episode eval1-heldout-0-0" in page
    assert "the model called finished(), but the goal was not reached" in page
    assert sum("pair" in attrs.get("class", "") for _, attrs in parsed(path).seen) == 2
    assert "the model called call_user() instead of doing the task failed 50.0% (1/2)" in page


def test_faults_are_apart_with_their_message(tmp_path):
    make_evaluated_run(tmp_path)
    path = write_report(tmp_path)
    assert f"1 step 1 for example heldout-006 the screen went dark {EVIL}" in text_of(path)
    assert "<script" not in path.read_text("utf-8")


def test_chosen_episodes_replace_the_pairs(tmp_path):
    make_evaluated_run(tmp_path)
    page = text_of(write_report(tmp_path, "task:pool-040,solved:1"))
    assert "chosen with --episodes task:pool-040,solved:1" in page
    shown = ("eval0-train-0-0", "batch0-0-0", "batch0-0-1", "eval1-train-0-0", "eval0-heldout-0-0")
    assert tuple(re.findall(r"episode ([\w-]+-\d+) ", page)) == shown
    with pytest.raises(UserError, match="--episodes replayed: no episode matches"):
        write_report(tmp_path, "replayed")


def test_a_policy_that_ignores_its_tasks_is_reported(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    for number in range(8):
        name = f"batch0-{number}-0"
        store.add_trajectory(episode(name, [small(1), small(2)], task_id=f"t{number}", score=0.0))
    store.close()
    assert "Warning: The model nearly always gives the same answer." in text_of(write_report(tmp_path))


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


def test_pruned_episodes_are_counted_in_words(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    for number in range(3):
        store.add_trajectory(episode(f"batch0-0-{number}", [small(2 * number), small(2 * number + 1)]))
    store.prune(["batch0-0-2"])
    store.close()
    said = "2 of 3 stored episodes cannot be shown: their screenshots were deleted (store.prune_every)"
    assert said in text_of(write_report(tmp_path))


def test_metrics_of_the_user_are_explained(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(replace(Config(), plugins=PluginsConfig(callback="my_callback:callback")))
    store.log_metrics(1, {"click_share": 0.5})
    store.close()
    said = "Returned by plugins.callback = my_callback:callback."
    assert said in text_of(write_report(tmp_path))


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
