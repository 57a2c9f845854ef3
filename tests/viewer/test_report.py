"""report.html: its data, its content policy, and text that cannot become markup."""

import base64
import hashlib
import re
from dataclasses import replace

import pytest

from arpo import actions as act
from arpo.config import Config, PluginsConfig
from arpo.errors import UserError
from arpo.reporting.metrics import METRICS
from arpo.storage.run_folder import RunFolder
from arpo.types import Completion, Failure, StopReason
from arpo.viewer.export import write_report
from markup import answers, parsed, report_of
from stored_episodes import ALL_ACTIONS, episode, small, turn
from viewed_runs import add_group

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
    called = episode("batch0-0-1", **first, score=0.0, stop=StopReason.CALL_USER)
    add_group(store, 1, episode("batch0-0-0", **first), called)
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


def own(path, *parts):
    """The answer about the run of a report: own(path, "tasks")."""
    return answers(path)["/".join((f"/api/s/{path.parent.name}", *parts))]


def test_the_page_is_complete_and_needs_no_other_file(tmp_path):
    make_run(tmp_path)
    path = write_report(tmp_path)
    tags = parsed(path)
    links = [value for _, attrs in tags.seen for name, value in attrs.items() if name in {"src", "href"}]
    assert links and all(link.startswith(("data:image/svg+xml;base64,", "#/")) for link in links)
    pictures = [value["file"] for name, value in answers(path).items() if "/shots/" in name]
    assert len(pictures) == 3 and all(one.startswith("data:image/png;base64,") for one in pictures)
    assert answers(path)["/api/sources"]["start"] == f"/s/{tmp_path.name}/report"


def test_the_policy_allows_the_own_script_and_style_alone(tmp_path):
    make_run(tmp_path)
    path = write_report(tmp_path)
    (policy,) = [a["content"] for t, a in parsed(path).seen if t == "meta" and "http-equiv" in a]
    page = path.read_text("utf-8")
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        ((attributes, text),) = re.findall(rf"<{tag}([^>]*)>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert attributes == "" and f"{kind} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';") and "img-src data:;" in policy
    assert "unsafe" not in policy and "http" not in policy


def test_text_from_the_model_stays_data(tmp_path):
    make_run(tmp_path)
    path = write_report(tmp_path)
    page = path.read_text("utf-8")
    assert page.count("<script") == 1 and not any(
        name.startswith("on") for _, attrs in parsed(path).seen for name in attrs
    )
    first, second = own(path, "episodes", "e0")["steps_list"]
    assert first["thought"] == EVIL and second["error"] == EVIL and second["labels"] == [f"type “{EVIL}”"]


def test_each_curve_has_an_explanation(tmp_path):
    make_evaluated_run(tmp_path)
    metrics = own(write_report(tmp_path), "metrics")
    for name in ("eval_train", "eval_heldout", "success", "tokens"):
        assert metrics["explained"][name]["explanation"] == METRICS[name].explanation
    assert metrics["rows"][1]["tokens"] == 1536


def test_success_by_task_before_and_after(tmp_path):
    make_evaluated_run(tmp_path)
    path = write_report(tmp_path)
    rows = {row["task"]: row for row in own(path, "tasks")["tasks"]}
    pool, heldout = rows["pool-040"], rows["heldout-006"]
    assert (pool["task_set"], pool["before"], pool["after"], pool["change"]) == ("training", 0, 1, 1)
    assert (pool["solved"], pool["trained"]) == (1, 2)
    assert (heldout["task_set"], heldout["before"], heldout["after"]) == ("held-out", 1, 0)
    assert report_of(path)["evaluations"] == "Evaluations in this run: before training, after batch 1."


def test_a_run_that_was_stopped_shows_its_newest_evaluation(tmp_path):
    make_evaluated_run(tmp_path, complete=False)
    report = report_of(write_report(tmp_path))
    assert not report["finished"] and "has not reached its last evaluation" in report["evaluations"]
    assert report["success"]["heads"] == ["", "before", "after batch 1", "change"]
    assert report["success"]["rows"][0] == ["training tasks", "0.0% (0/2)", "100.0% (2/2)", "+100.0 points"]
    assert report["totals"] == [["episodes", "2"], ["groups", "1"], ["episodes with a fault", "1"]]


def test_the_summary_of_a_finished_run(tmp_path):
    make_run(tmp_path)
    report = report_of(write_report(tmp_path))
    assert report["finished"] and report["success"]["rows"] == [
        ["training tasks", "25.0%", "60.0%", "+35.0 points"],
        ["held-out tasks", "20.0%", "20.0%", "+0.0 points"],
    ]
    titles = {chart["title"]: chart["metrics"] for chart in report["charts"]}
    assert titles["Success rate in evaluations"] == {
        "eval_train": "training tasks",
        "eval_heldout": "held-out tasks",
    }


def test_the_same_task_before_and_after_with_the_reason_of_each_score(tmp_path):
    make_evaluated_run(tmp_path)
    path = write_report(tmp_path)
    report = report_of(path)
    assert report["episodes"]["title"] == "Same tasks before and after training"
    assert report["episodes"]["shown"] == [
        ["eval0-train-0-0", "eval1-train-0-0"],
        ["eval0-heldout-0-0", "eval1-heldout-0-0"],
    ]
    ends = [own(path, "episodes", name)["end"] for pair in report["episodes"]["shown"] for name in pair]
    assert ends[1:] == [
        "correctly judged infeasible: the model called error_env()",
        "solved: the model called finished()",
        "the model called finished(), but the goal was not reached",
    ]
    assert report["endings"]["phases"] == ["training batch 1"]
    assert report["endings"]["rows"][0] == {
        "end": "the model called call_user() instead of doing the task",
        "detail": "",
        "solved": False,
        "rates": ["50.0% (1/2)"],
    }


def test_faults_are_apart_and_the_groups_of_the_first_and_last_batch_are_there(tmp_path):
    make_evaluated_run(tmp_path)
    path = write_report(tmp_path)
    (fault,) = own(path, "failures")["by_kind"]
    assert (fault["count"], fault["where"], fault["message"]) == (1, "step", f"the screen went dark {EVIL}")
    (group,) = own(path, "batches", "1")["groups"]
    assert [dot["advantage"] for dot in group["dots"]] == pytest.approx([1, -1])


def test_chosen_episodes_replace_the_pairs(tmp_path):
    make_evaluated_run(tmp_path)
    path = write_report(tmp_path, "task:pool-040,solved:1")
    found = report_of(path)["episodes"]
    assert found["note"] == "chosen with --episodes task:pool-040,solved:1"
    shown = ["eval0-train-0-0", "batch0-0-0", "batch0-0-1", "eval1-train-0-0", "eval0-heldout-0-0"]
    assert found["shown"] == [[name] for name in shown]
    assert [row["episode"] for row in own(path, "episodes")["episodes"]] == shown
    with pytest.raises(UserError, match="--episodes replayed: no episode matches"):
        write_report(tmp_path, "replayed")


def test_a_policy_that_ignores_its_tasks_is_reported(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    for number in range(8):
        name = f"batch0-{number}-0"
        store.add_trajectory(episode(name, [small(1), small(2)], task_id=f"t{number}", score=0.0))
    store.close()
    (warning,) = report_of(write_report(tmp_path))["warnings"]
    assert warning.startswith("The model nearly always gives the same answer.")


def test_a_run_that_has_just_started_has_a_report(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    report = report_of(write_report(tmp_path))
    assert not report["finished"] and report["episodes"]["note"] == "none is stored with screenshots"
    store.close()


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        write_report(tmp_path)


def test_a_damaged_line_is_named_and_the_rest_is_shown(tmp_path):
    make_run(tmp_path)
    with (tmp_path / "trajectories.jsonl").open("a") as file:
        file.write("{}\n")
    (entry,) = answers(write_report(tmp_path))["/api/sources"]["sources"]
    assert entry["episodes"] == 2 and "trajectories.jsonl: byte" in entry["errors"][0]


def test_pruned_episodes_are_left_out_and_counted_in_words(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    for number in range(3):
        store.add_trajectory(episode(f"batch0-0-{number}", [small(2 * number), small(2 * number + 1)]))
    store.prune(["batch0-0-2"])
    store.close()
    found = report_of(write_report(tmp_path))["episodes"]
    assert found["shown"] == [["batch0-0-2"]]
    said = "2 of 3 stored episodes cannot be shown: their screenshots were deleted (store.prune_every)"
    assert said in found["note"]


def test_metrics_of_the_user_are_explained(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(replace(Config(), plugins=PluginsConfig(callback="my_callback:callback")))
    store.log_metrics(1, {"click_share": 0.5})
    store.close()
    explained = own(write_report(tmp_path), "metrics")["explained"]["click_share"]
    assert explained["explanation"] == "Returned by plugins.callback = my_callback:callback."


def test_the_report_does_not_depend_on_time(tmp_path):
    make_evaluated_run(tmp_path)
    first = write_report(tmp_path).read_bytes()
    (tmp_path / ".view-index.sqlite").unlink()
    assert write_report(tmp_path).read_bytes() == first
