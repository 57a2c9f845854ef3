"""Results lie where OSWorld's tools look for them, are whole or absent, and are never mixed."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from arpo.actions import CallUser, Click, Fail, Finished, Point, Type, Wait
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.errors import UserError
from arpo.evaluation import osworld_results
from arpo.evaluation.osworld_results import Played, Trial, action_text, model_folder
from arpo.evaluation.osworld_summary import NOT_OSWORLD, summarise, table
from arpo.testing import screenshot, task
from arpo.types import Action, Completion, Failure, StopReason, Trajectory, Turn

TERMS = {"temperature": 0.6, "max_steps": 15}


def turn(shade: int, text: str, *actions: Action, error: str = "") -> Turn:
    completion = Completion(token_ids=(), logprobs=(), text=text, finish="stop", versions=())
    return Turn(
        screenshot=screenshot(shade),
        context=(),
        images=(),
        restart=True,
        completion=completion,
        actions=actions,
        error=error,
    )


def played(
    score: float = 1.0, *turns: Turn, stop: StopReason = StopReason.FINISHED, max_steps: int = 15
) -> Played:
    turns = turns or (turn(0, "Action: finished()", Finished()),)
    return Played(
        trajectory=Trajectory(
            episode_id="e",
            task_id="t",
            turns=turns,
            final=screenshot(len(turns)),
            score=score,
            malformed=bool(turns[-1].error),
            stop=stop,
        ),
        times=tuple(datetime(2026, 5, 4, 3, 2, second, 1) for second in range(len(turns) + 2)),
        max_steps=max_steps,
    )


def failure(name: str, message: str = "gone\nand more", where: str = "step") -> Failure:
    return Failure(episode_id="e", task_id=name, kind="EnvError", where=where, message=message, attempts=3)


def show_result(action_space: str, model: str, observation: str, folder: str) -> dict[str, list[float]]:
    """The scores as OSWorld's show_result.py finds them: domains, then examples that have a result.txt."""
    target = os.path.join(folder, action_space, observation, model)
    found: dict[str, list[float]] = {}
    for domain in os.listdir(target):
        domain_path = os.path.join(target, domain)
        if os.path.isdir(domain_path):
            for example in os.listdir(domain_path):
                example_path = os.path.join(domain_path, example)
                if os.path.isdir(example_path) and "result.txt" in os.listdir(example_path):
                    text = Path(example_path, "result.txt").read_text()
                    found.setdefault(domain, []).append(float(text))
    return found


def test_osworlds_own_tool_finds_the_scores(tmp_path: Path) -> None:
    with Trial(tmp_path, "ui-tars", "0") as trial:
        trial.begin(TERMS, {"server": {"model": "ui-tars"}})
        trial.add(("chrome", "a"), played(1.0))
        trial.add(("chrome", "b"), played(0.0))
        trial.add(("os", "c"), played(0.25))
        trial.add_failure(("os", "d"), failure("d"))
    found = show_result("pyautogui", "ui-tars/0", "screenshot", str(tmp_path))
    assert {domain: sorted(scores) for domain, scores in found.items()} == {"chrome": [0, 1], "os": [0.25]}
    arguments = json.loads((trial.folder / "args.json").read_text("utf-8"))
    assert arguments == {"server": {"model": "ui-tars"}, "terms": TERMS}
    assert not (tmp_path / ".partial" / "ui-tars" / "0").exists()


def test_the_files_of_an_episode(tmp_path: Path) -> None:
    turns = (
        turn(0, "Action: click(start_box='(3,4)')", Click(point=Point(3, 4))),
        turn(1, "Action: wait()", Wait()),
        turn(2, "Action: explode()", error="unknown function 'explode'"),
    )
    with Trial(tmp_path, "m", "0") as trial:
        trial.add(("os", "a"), played(0.5, *turns, stop=StopReason.PARSE_ERROR))
    folder = trial.folder / "os" / "a"
    names = [f"step_{n}_20260504@03020{n}000001.png" for n in range(4)]
    assert sorted(path.name for path in folder.iterdir()) == ["result.txt", *names, "traj.jsonl"]
    assert [(folder / name).read_bytes() for name in names] == [screenshot(n).png for n in range(4)]
    assert (folder / "result.txt").read_text() == "0.5\n"
    lines = [json.loads(line) for line in (folder / "traj.jsonl").read_text("utf-8").splitlines()]
    assert lines[0] == {
        "step_num": 1,
        "action_timestamp": "20260504@030201000001",
        "action": "import time\nimport pyautogui\npyautogui.click(3, 4)",
        "response": "Action: click(start_box='(3,4)')",
        "reward": 0,
        "done": False,
        "info": {},
        "screenshot_file": names[1],
    }
    assert (lines[1]["action"], lines[1]["screenshot_file"]) == ("WAIT", names[2])
    assert lines[2]["info"] == {"error": "unknown function 'explode'", "stop": "parse_error"}
    assert (lines[2]["action"], lines[2]["done"]) == ("", True)


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ((Finished(),), "DONE"),
        ((Fail(),), "FAIL"),
        ((CallUser(),), "FAIL"),
        ((Wait(), Wait()), "WAIT"),
        ((Wait(), Finished()), "WAIT\nDONE"),
        (
            (Click(point=Point(1, 2)), Finished()),
            "import time\nimport pyautogui\npyautogui.click(1, 2)\nDONE",
        ),
        ((), ""),
    ],
)
def test_actions_in_osworlds_words(actions: tuple[Action, ...], text: str) -> None:
    assert action_text(actions) == text


def test_what_a_model_types_is_a_literal_in_the_program() -> None:
    assert "'); import os #" in action_text((Type(text="'); import os #"),)).replace('"', "")


def test_why_an_episode_ended_is_counted(tmp_path: Path) -> None:
    waits = tuple(turn(n, "Action: wait()", Wait()) for n in range(2))
    with Trial(tmp_path, "m", "0") as trial:
        trial.add(("os", "a"), played())
        trial.add(("os", "b"), played(0, *waits, stop=StopReason.MAX_STEPS, max_steps=2))
        trial.add(("os", "c"), played(0, *waits, stop=StopReason.MAX_STEPS, max_steps=3))
    assert osworld_results.stops(trial.folder) == {
        ("os", "a"): "finished",
        ("os", "b"): "max_steps",
        ("os", "c"): "context",
    }


def test_a_half_written_episode_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = KeyboardInterrupt

    def dies(*_: Any) -> None:
        raise killed

    trial = Trial(tmp_path, "m", "0")
    with pytest.raises(killed), trial:
        monkeypatch.setattr(os, "replace", dies)
        trial.add(("os", "a"), played())
    monkeypatch.undo()
    assert osworld_results.scores(trial.folder) == {}
    (tmp_path / ".partial" / "m" / "0" / "os" / "a").mkdir(parents=True)  # as after kill -9
    with Trial(tmp_path, "m", "0") as trial:
        trial.add(("os", "a"), played(0.5))
    assert osworld_results.scores(trial.folder) == {("os", "a"): 0.5}


def test_what_a_stopped_runner_left_is_replaced(tmp_path: Path) -> None:
    with Trial(tmp_path, "m", "0") as trial:
        left = trial.folder / "os" / "a"
        left.mkdir(parents=True)
        (left / "traj.jsonl").write_text("half")
        trial.add(("os", "a"), played())
        assert sorted(path.name for path in left.glob("*.*"))[0] == "result.txt"


def test_a_disk_that_is_full_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with Trial(tmp_path, "m", "0") as trial:
        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(UserError, match="os/a: cannot write: No space left on device"):
            trial.add(("os", "a"), played())


def test_failures_are_of_tasks_without_a_result(tmp_path: Path) -> None:
    with Trial(tmp_path, "m", "0") as trial:
        for name in ("a", "b", "a"):
            trial.add_failure(("os", name), failure(name, message=f"{name} is gone"))
        trial.add(("os", "b"), played())
    with (trial.folder / "failures.jsonl").open("a") as file:
        file.write('{"torn')
    assert {place: record["message"] for place, record in osworld_results.failures(trial.folder).items()} == {
        ("os", "a"): "a is gone"
    }


def test_a_trial_belongs_to_one_process(tmp_path: Path) -> None:
    with Trial(tmp_path, "m", "0"), pytest.raises(UserError, match="another process"):
        Trial(tmp_path, "m", "0").__enter__()
    with Trial(tmp_path, "m", "0"), Trial(tmp_path, "m", "1"):
        pass


def test_results_of_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    with Trial(tmp_path, "m", "0") as trial:
        trial.begin(TERMS, {})
        trial.begin(TERMS | {"temperature": 1.0}, {})  # nothing was played yet
        trial.begin(TERMS, {})
        trial.add(("os", "a"), played())
        trial.begin(TERMS, {})
        with pytest.raises(UserError, match=r"another evaluation \(temperature 0\.6, now 1\.0\)"):
            trial.begin(TERMS | {"temperature": 1.0}, {})
        (trial.folder / "args.json").unlink()
        with pytest.raises(UserError, match="arpo did not write them"):
            trial.begin(TERMS, {})


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/x", "a/../b", ".partial", "a/.b", "x\0"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of a results folder"):
        model_folder(tmp_path, name)
    with pytest.raises(UserError, match="--trial-id"):
        Trial(tmp_path, "m", name)
    with Trial(tmp_path, "m", "0") as trial, pytest.raises(UserError, match="task id"):
        trial.add(("os", name), played())


def test_a_model_may_be_named_with_a_slash(tmp_path: Path) -> None:
    with Trial(tmp_path, "ByteDance/UI-TARS", "0") as trial:
        trial.add(("os", "a"), played())
    assert show_result("pyautogui", "ByteDance/UI-TARS/0", "screenshot", str(tmp_path)) == {"os": [1.0]}


def test_a_result_that_is_no_number_is_named(tmp_path: Path) -> None:
    with Trial(tmp_path, "m", "0") as trial:
        trial.add(("os", "a"), played())
    (trial.folder / "os" / "a" / "result.txt").write_text("oops")
    with pytest.raises(UserError, match=r"os/a/result\.txt: is not a score. Remove its folder"):
        osworld_results.scores(trial.folder)


KEYS = {("os", "a"), ("os", "b"), ("chrome", "c"), ("chrome", "d")}


def play_trials(root: Path, *trials: dict[str, float], terms: dict[str, Any] = TERMS) -> Path:
    """Each trial's scores by "domain/task"."""
    first = len(osworld_results.trials(model_folder(root, "m")))
    for number, scores in enumerate(trials, start=first):
        with Trial(root, "m", str(number)) as trial:
            trial.begin(terms, {})
            for place, score in scores.items():
                domain, _, name = place.partition("/")
                trial.add((domain, name), played(score))
    return model_folder(root, "m")


def summary_of(folder: Path, *names: str, config: Config | None = None, **others: Any) -> dict[str, Any]:
    given = {"keys": KEYS, "skipped": []} | others
    return summarise(folder, config or Config(), TERMS, source="tasks.json", names=names, **given)


def test_the_summary_of_one_trial(tmp_path: Path) -> None:
    folder = play_trials(tmp_path, {"os/a": 1, "os/b": 0, "chrome/c": 0.5, "gimp/x": 1})
    summary = summary_of(folder, "0")
    assert summary["domains"].keys() == {"chrome", "os"}  # gimp is not in the list
    assert summary["domains"]["os"]["success"] == 0.5
    assert summary["total"]["score"] == 1.5 and summary["total"]["episodes"] == 3
    assert summary["total"]["interval"] == pytest.approx([0.12533, 0.87467], abs=1e-5)
    assert (summary["missing"], summary["failures"], summary["remark"]) == (1, [], "")
    assert summary["best_of"]["pass_at"] == {}
    assert table(summary) == [
        "domain  success  95% interval     episodes",
        "chrome    50.0%  5.5% to 94.5%           1",
        "os        50.0%  9.5% to 90.5%           2",
        "total     50.0%  12.5% to 87.5%          3",
        "ended: finished 3",
    ]


def test_the_best_of_trials_counts_all_of_the_same_settings(tmp_path: Path) -> None:
    folder = play_trials(
        tmp_path,
        {"os/a": 1, "os/b": 0, "chrome/c": 0},
        {"os/a": 0, "os/b": 0, "chrome/c": 1},
        {"os/a": 0, "os/b": 0},
    )
    play_trials(tmp_path, {"os/b": 1}, terms=TERMS | {"temperature": 1.0})
    summary = summary_of(folder, "0")
    assert summary["total"]["episodes"] == 3
    assert summary["best_of"]["trials"] == ["0", "1", "2"]
    # of a: 1/3, 2/3, 1; of b: 0; of c, played twice: 1/2, 1
    assert summary["best_of"]["pass_at"] == {
        "1": {"rate": pytest.approx((1 / 3 + 1 / 2) / 3), "tasks": 3},
        "2": {"rate": pytest.approx((2 / 3 + 1) / 3), "tasks": 3},
        "3": {"rate": pytest.approx(1 / 2), "tasks": 2},
    }
    line = "over trials 0, 1, 2: pass@1 27.8% (3 tasks), pass@2 55.6% (3 tasks), pass@3 50.0% (2 tasks)"
    assert line in table(summary)
    both = table(summary_of(folder, "0", "1"))
    assert "by trial: 0: 33.3%, 1: 33.3%" in both and both[3].split() == [
        *("total", "33.3%", "9.7%", "to", "70.0%", "6")
    ]


def test_what_was_not_played_is_told_with_reasons(tmp_path: Path) -> None:
    folder = play_trials(tmp_path, {"os/a": 1})
    with Trial(tmp_path, "m", "0") as trial:
        for name in ("c", "d", "z"):
            trial.add_failure(("chrome", name), failure(name))
    skipped = [
        (task("p"), "file p/1_x 1.odt (https://h/x) is not in the cache osworld-cache: fetch it"),
        (task("q"), "file q/2_y (https://h/y z) is not in the cache osworld-cache: fetch it"),
        (task("r"), "needs VS Code, which light desktops do not have"),
    ]
    config = load_config(None, ["--env.name=osworld"])
    summary = summary_of(folder, "0", config=config, skipped=skipped)
    assert [record["task_id"] for record in summary["failures"]] == ["c", "d"]
    assert summary["skipped"] == {
        "a file is not in the cache osworld-cache: fetch it": ["p", "q"],
        "needs VS Code, which light desktops do not have": ["r"],
    }
    assert table(summary)[1] == "chrome        –                          0"
    assert table(summary)[-6:] == [
        "2 episodes failed, not because of the model. Run the same command to retry them:",
        "  2 x step: gone",
        "3 tasks were skipped. They are not in the success rates:",
        "  2 x a file is not in the cache osworld-cache: fetch it",
        "  1 x needs VS Code, which light desktops do not have",
        NOT_OSWORLD,
    ]


def test_only_local_desktops_are_said_not_to_be_osworld(tmp_path: Path) -> None:
    folder = play_trials(tmp_path, {"os/a": 1})
    real = load_config(None, ["--env.name=osworld", "--osworld.provider=docker"])
    assert summary_of(folder, "0", config=real)["remark"] == ""
