"""The report: data, file, chosen episodes, warnings; text from the model cannot become markup."""

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
from arpo.viewer.pages.report import choose_episodes
from markup import answers, parsed, report_of
from played_episodes import played
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
    called = episode("batch-1-0-1", **first, score=0.0, stop=StopReason.CALL_USER)
    add_group(store, 1, episode("batch-1-0-0", **first), called)
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
    assert report["success"]["heads"] == ["", "before", "after batch 1", "change (95% interval)"]
    assert report["success"]["rows"][0] == [
        "training tasks",
        "0.0% (0/2)",
        "100.0% (2/2)",
        "+100.0 (−12.2 to +100.0)",
    ]
    assert report["totals"] == [["episodes", "2"], ["groups", "1"], ["episodes with a fault", "1"]]


def test_the_summary_of_a_finished_run(tmp_path):
    make_run(tmp_path)
    report = report_of(write_report(tmp_path))
    assert report["finished"] and report["success"]["rows"] == [
        ["training tasks", "25.0%", "60.0%", ""],
        ["held-out tasks", "20.0%", "20.0%", ""],
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
    shown = ["eval0-train-0-0", "batch-1-0-0", "batch-1-0-1", "eval1-train-0-0", "eval0-heldout-0-0"]
    assert found["shown"] == [[name] for name in shown]
    assert [row["episode"] for row in own(path, "episodes")["episodes"]] == shown
    with pytest.raises(UserError, match="--episodes replayed: no episode matches"):
        write_report(tmp_path, "replayed")


def test_a_policy_that_ignores_its_tasks_is_reported(tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    for number in range(8):
        name = f"batch-1-{number}-0"
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
        store.add_trajectory(episode(f"batch-1-0-{number}", [small(2 * number), small(2 * number + 1)]))
    store.prune(["batch-1-0-2"])
    store.close()
    found = report_of(write_report(tmp_path))["episodes"]
    assert found["shown"] == [["batch-1-0-2"]]
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


def ids(*arguments):
    return [tuple(one.episode for one in shown) for shown in choose_episodes(*arguments)]


def evaluated(task, before, after):
    return [
        played(f"eval0-train-{task}-0", task, solved=before),
        played(f"eval4-train-{task}-0", task, solved=after),
    ]


RUN = [
    played("eval0-train-0-0", "a"),
    *(played(f"batch-{number + 1}-0-0", "a", solved=number % 2 == 1) for number in range(20)),
    played("batch-21-0-0", "b", stop=StopReason.PARSE_ERROR),
    played("batch-21-1-0", "a", solved=True, shown=False),
]


def test_by_default_the_same_tasks_before_and_after():
    run = [one for task in "abc" for one in evaluated(task, False, True)]
    run += [one for task in "de" for one in evaluated(task, True, False)]
    run += evaluated("f", False, False) + evaluated("g", True, True)
    pairs = [(f"eval0-train-{task}-0", f"eval4-train-{task}-0") for task in "adbfce"]
    assert ids(run) == pairs  # learned, forgotten, learned, never solved; then again
    assert ids(run, "before-after:7")[-1] == ("eval0-train-g-0", "eval4-train-g-0")


def test_without_a_second_evaluation_the_newest_batch_is_after():
    run = [played("eval0-train-0-0"), played("batch-1-0-0"), played("batch-4-0-0"), played("batch-4-0-1")]
    assert ids(run) == [("eval0-train-0-0", "batch-4-0-0")]


def test_without_pairs_the_first_and_last_of_each_outcome():
    run = [played(f"collect-{number}-0", str(number), solved=number % 2 == 1) for number in range(40)]
    assert ids(run) == [(f"collect-{number}-0",) for number in (1, 3, 5, 35, 37, 39, 0, 2, 4, 34, 36, 38)]
    assert ids([]) == []


def test_episodes_are_chosen_by_id_task_and_kind():
    assert ids(RUN, "batch-4-0-0") == [("batch-4-0-0",)]
    assert ids(RUN, "task:a:2") == [("eval0-train-0-0",), ("batch-20-0-0",)]
    assert ids(RUN, "task:b") == [("batch-21-0-0",)]
    assert ids(RUN, "solved:3") == [("batch-2-0-0",), ("batch-4-0-0",), ("batch-20-0-0",)]
    assert len(ids(RUN, "failed")) == 6
    assert ids(RUN, "parse-errors,batch-21-0-0, batch-1-0-0") == [("batch-21-0-0",), ("batch-1-0-0",)]
    assert ids([*RUN, played("batch-10-9-9", replayed_in=(11,))], "replayed") == [("batch-10-9-9",)]


def test_an_id_of_a_task_may_contain_a_colon():
    assert ids([played("batch-1-0-0", "web:1"), played("batch-1-0-1", "web:1")], "task:web:1:1") == [
        ("batch-1-0-0",)
    ]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("batch-100-0-0", "--episodes batch-100-0-0: no such episode (did you mean batch-10-0-0?)"),
        ("batch-21-1-0", "--episodes batch-21-1-0: its screenshots were deleted (store.prune_every)"),
        ("task:pool", "--episodes task:pool: no episode of this task (there are 2: a, b, …)"),
        ("replayed", "--episodes replayed: no episode matches. The run has episodes of 2 tasks: 10 solved, "
         "12 failed, 0 replayed, 1 parse-errors; 1 tasks before-after. 1 more have no screenshots"),
        ("faild", "--episodes 'faild': unknown. Write an episode id, task:ID, solved, failed, replayed,"),
        ("failed:0", "--episodes 'failed:0': the number after the colon must be an integer from 1 to 9999"),
        ("failed:x", "must be an integer from 1 to 9999"),
        ("failed,", "--episodes '': unknown"),
    ],
)  # fmt: skip
def test_a_choice_without_episodes_is_one_clear_error(wanted, message):
    with pytest.raises(UserError) as raised:
        choose_episodes(RUN, wanted)
    assert message in str(raised.value)


def test_a_run_without_episodes_says_so():
    with pytest.raises(UserError, match="the run has no episodes with screenshots yet"):
        choose_episodes([], "task:a")
