"""The task filter: what it counts, what it keeps, and that a call that was stopped goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arpo.errors import UserError
from arpo.evaluation.finished_episodes import FinishedEpisodes
from arpo.evaluation.screening import run_screening
from arpo.tasks.lists import load_tasks
from clicking_model import clicking_model
from verdicts import (
    NO_VS_CODE,
    A,
    B,
    C,
    D,
    Scripted,
    osworld_config,
    select,
    small_config,
    without_evaluator,
)

HOW = {
    "of": 2,
    "temperature": 1.0,
    "max_steps": 1,
    "max_images": 15,
    "max_answer_tokens": 64,
    "max_pixels": 2116800,
    "prompt": "desk",
    "screen": "224x168",
    "threshold": 0.5,
    "env": "verdicts:Scripted",
    "seed": 0,
}


class Stopped(KeyboardInterrupt):
    """Like Ctrl-C, but it would not end the tests."""


class Stopping(Scripted):
    """Comes to an end when so many verdicts have been given."""

    left = 0

    async def evaluate(self) -> float:
        if Stopping.left == 0:
            raise Stopped
        Stopping.left -= 1
        return await super().evaluate()


def screen(
    folder: Path,
    out: Path,
    *overrides: str,
    tasks: str = "",
    env: str = "Scripted",
    drop_always: bool = False,
    count: int = 0,
) -> int:
    parallel = 1 if env == "Stopping" else 8
    fixed = (f"--env.parallel={parallel}", "--env.attempts=1")
    config = small_config(folder, [A, B, C, D], *fixed, *overrides, env=env)
    return run_screening(config, tasks or config.tasks.train, 2, out, drop_always=drop_always, count=count)


def kept(out: Path) -> dict[str, tuple[int, int]]:
    rows = json.loads(out.read_text("utf-8"))["tasks"]
    return {task: (row["successes"], row["rollouts"]) for task, row in rows.items()}


def test_tasks_with_a_success_are_kept_with_their_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1, 1], B: [0, 0], C: [0, 1], D: [0.5, 0.4]})
    out = tmp_path / "lists" / "kept.json"
    assert screen(tmp_path, out) == 0
    assert kept(out) == {A: (2, 2), C: (1, 2), D: (1, 2)}
    assert [task.id for task in load_tasks(str(out))] == [A, C, D]
    assert sorted(path.name for path in out.parent.iterdir()) == ["kept.json", "kept.json.report.json"]
    said = capsys.readouterr().out.splitlines()
    assert said[-8:] == [
        "solved 50.0% of all rollouts, 66.7% on the 3 tasks that are kept",
        "dropped: 1 never solved, 0 always solved, 0 failed, 0 cannot run here",
        "tasks by successes in 2 rollouts:",
        "0 ████████████████████ 1",
        "1 ████████████████████████████████████████ 2",
        "2 ████████████████████ 1",
        f"result of each task: {out}.report.json",
        f"written to {out}",
    ]


def reported(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(out.with_name(f"{out.name}.report.json").read_text("utf-8"))
    return report


def test_the_report_says_what_became_of_every_task(tmp_path: Path) -> None:
    Scripted.play({B: [1, 1], C: [0, 1], D: [0.4, 0]})
    out = tmp_path / "kept.json"
    assert screen(tmp_path, out, env="Fragile", drop_always=True) == 0
    report = reported(out)
    reason = report["tasks"][A].pop("reason")
    assert reason.startswith(f"failed: task {A}, step: RuntimeError: the screen went dark (")
    assert "verdicts.py:" in reason
    assert report == {
        "terms": {
            "source": str(tmp_path / "train.json"),
            **HOW,
            "model": clicking_model(),
            "env": "verdicts:Fragile",
        },
        "totals": {
            "tasks": 4,
            "kept": 1,
            "dropped": {"never solved": 1, "always solved": 1, "failed": 1, "cannot run here": 0},
            "rollouts": 6,
            "solved": 0.5,
            "solved_of_kept": 0.5,
        },
        "histogram": [1, 1, 1],
        "tasks": {
            A: {"successes": 0, "rollouts": 0, "kept": False},
            B: {"successes": 2, "rollouts": 2, "kept": False, "reason": "always solved: --drop-always"},
            C: {"successes": 1, "rollouts": 2, "kept": True},
            D: {"successes": 0, "rollouts": 2, "kept": False, "reason": "never solved"},
        },
    }


def test_tasks_that_are_always_solved_are_dropped_by_option(tmp_path: Path) -> None:
    Scripted.play({A: [1, 1], B: [1, 0]})
    assert screen(tmp_path, tmp_path / "kept.json", drop_always=True) == 0
    assert kept(tmp_path / "kept.json") == {B: (1, 2)}


def test_a_count_keeps_the_tasks_of_medium_difficulty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1, 1], B: [1, 0], C: [0, 1], D: [0, 0]})
    out = tmp_path / "kept.json"
    assert screen(tmp_path, out, count=1) == 0
    assert kept(out) == {B: (1, 2)}
    assert "dropped: 1 never solved, 1 always solved, 0 failed, 0 cannot run here, 1 farther from 50%" in (
        capsys.readouterr().out
    )
    reasons = {task: row.get("reason") for task, row in reported(out)["tasks"].items()}
    assert reasons == {
        A: "always solved: --count",
        B: None,
        C: "farther from 50%: --count",
        D: "never solved",
    }


def test_another_selection_from_a_finished_screening_plays_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1, 1], B: [1, 0], C: [0, 1]})
    out = tmp_path / "kept.json"
    assert screen(tmp_path, out) == 0
    capsys.readouterr()
    Scripted.play({})
    assert screen(tmp_path, out, count=2) == 0
    assert kept(out) == {B: (1, 2), C: (1, 2)}
    said = capsys.readouterr().out
    assert f"{out}.report.json: has the counts of 4 tasks; they are not played again" in said
    assert "episodes" not in said
    assert screen(tmp_path, out, drop_always=True) == 0
    assert screen(tmp_path, out) == 0
    assert kept(out) == {A: (2, 2), B: (1, 2), C: (1, 2)}


@pytest.mark.slow
def test_a_report_with_other_settings_does_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1, 1]})
    out = tmp_path / "kept.json"
    assert screen(tmp_path, out) == 0
    Scripted.play({B: [1, 1]})
    assert screen(tmp_path, out, "--rollout.temperature=0.5") == 0
    assert kept(out) == {B: (2, 2)}
    assert f"{out}.report.json: has other settings (temperature: 1.0); all tasks are played" in (
        capsys.readouterr().out
    )
    for damaged in (
        "{",
        "[]",
        '{"terms": {}}',
        '{"terms": 1, "tasks": {}}',
        '{"terms": {}, "tasks": {"x": 1}}',
    ):
        (tmp_path / "kept.json.report.json").write_text(damaged)
        Scripted.play({C: [1, 1]})
        assert screen(tmp_path, out) == 0
        assert kept(out) == {C: (2, 2)}


def test_too_few_tasks_of_medium_difficulty_is_an_error_and_the_counts_stay(tmp_path: Path) -> None:
    Scripted.play({A: [1, 1], B: [1, 0]})
    message = (
        r"train\.json: 1 of 4 tasks were solved sometimes, but not always; --count 3 needs more\. "
        r"Screen more tasks, raise --rollouts \(2\), or use --count 1"
    )
    with pytest.raises(UserError, match=message):
        screen(tmp_path, tmp_path / "kept.json", count=3)
    assert not (tmp_path / "kept.json").exists()
    Scripted.play({})
    assert screen(tmp_path, tmp_path / "kept.json", count=1) == 0
    assert kept(tmp_path / "kept.json") == {B: (1, 2)}


def test_what_could_not_be_run_is_not_a_failure_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({B: [1, 0]})
    assert screen(tmp_path, tmp_path / "kept.json", env="Fragile") == 0
    assert kept(tmp_path / "kept.json") == {B: (1, 2)}
    said = capsys.readouterr().out
    assert "solved 16.7% of all rollouts" in said  # 1 of the 6 of B, C and D
    assert "dropped: 2 never solved, 0 always solved, 1 failed, 0 cannot run here" in said


def test_a_screening_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, episodes = tmp_path / "kept.json", tmp_path / "kept.json.episodes"
    monkeypatch.setattr("verdicts.Stopping", Stopping, raising=False)
    Scripted.play({A: [1, 0], B: [1, 1], C: [1, 0]})
    Stopping.left = 5  # both of A, both of B, one of C
    with pytest.raises(Stopped):
        screen(tmp_path, out, env="Stopping")
    assert not out.exists() and episodes.is_dir()

    # Only the missing episodes are played: one of C, both of D.
    Scripted.play({C: [0], D: [1, 1]})
    Stopping.left = 2
    capsys.readouterr()
    with pytest.raises(Stopped):
        screen(tmp_path, out, env="Stopping")
    assert "screening: 8 episodes, 5 already done" in capsys.readouterr().out
    Stopping.left = 1
    Scripted.play({D: [0]})
    assert screen(tmp_path, out, env="Stopping") == 0
    assert "screening: 8 episodes, 7 already done" in capsys.readouterr().out
    assert kept(out) == {A: (1, 2), B: (2, 2), C: (1, 2), D: (1, 2)}
    assert not episodes.exists()


def test_a_task_is_played_the_same_whatever_was_played_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its episodes are named by its place in the whole list, so they draw the same numbers."""
    out = tmp_path / "kept.json"
    Scripted.play({A: [1, 0]})
    assert screen(tmp_path, out) == 0
    report = reported(out)
    for task in (A, C, D):
        del report["tasks"][task]
    out.with_name("kept.json.report.json").write_text(json.dumps(report))
    Scripted.play({A: [1, 0]})
    played: list[str] = []
    monkeypatch.setattr(FinishedEpisodes, "add", lambda _, episode: played.append(episode.episode_id))
    assert screen(tmp_path, out) == 0
    assert sorted(played) == [f"screen-{index}-{n}" for index in (0, 2, 3) for n in (0, 1)]


def test_the_episodes_of_another_screening_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "kept.json"
    monkeypatch.setattr("verdicts.Stopping", Stopping, raising=False)
    Scripted.play({A: [1, 0]})
    Stopping.left = 2
    with pytest.raises(Stopped):
        screen(tmp_path, out, env="Stopping")
    for other in ("--rollout.temperature=0.5", "--rollout.max_steps=2", "--model.max_pixels=4000"):
        with pytest.raises(UserError, match=r"episodes: has the episodes of an interrupted evaluation"):
            screen(tmp_path, out, other, env="Stopping")
    assert (tmp_path / "kept.json.episodes").is_dir()


def test_nothing_solved_is_an_error_and_the_counts_stay(tmp_path: Path) -> None:
    Scripted.play({})
    with pytest.raises(UserError, match=r"no task was solved in 2 rollouts\. Screen with a better model"):
        screen(tmp_path, tmp_path / "kept.json")
    assert not (tmp_path / "kept.json").exists()
    assert reported(tmp_path / "kept.json")["histogram"] == [4, 0, 0]


def test_nothing_left_by_the_option_is_an_error_too(tmp_path: Path) -> None:
    Scripted.play({A: [1, 1]})
    with pytest.raises(UserError, match=r"each task was solved always or never\. Leave out --drop-always"):
        screen(tmp_path, tmp_path / "kept.json", drop_always=True)
    Scripted.play({})  # what was counted is not played again
    assert screen(tmp_path, tmp_path / "kept.json") == 0
    assert kept(tmp_path / "kept.json") == {A: (2, 2)}


def test_the_source_is_found_from_the_selections_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scripted.play({A: [1, 0], B: [1, 0]})
    for name in ("lists", "out", "elsewhere"):
        (tmp_path / name).mkdir()
    select(tmp_path / "lists" / "two.json", "desk:pool", [A, B])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert screen(tmp_path, Path("out/kept.json"), tasks="lists/two.json") == 0
    assert json.loads(Path("out/kept.json").read_text("utf-8"))["source"] == "../lists/two.json"
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert [task.id for task in load_tasks("../out/kept.json")] == [A, B]


@pytest.mark.slow
def test_a_shipped_source_keeps_its_name(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A], "--rollout.max_answer_tokens=1")
    Scripted.play({task.id: [1] for task in load_tasks("desk:32")[:3]})
    assert run_screening(config, "desk:32", 1, tmp_path / "kept.json") == 0
    written = json.loads((tmp_path / "kept.json").read_text("utf-8"))
    assert written["source"] == "desk:32"
    assert len(load_tasks(str(tmp_path / "kept.json"))) == 3


def test_tasks_that_cannot_run_are_not_played_and_not_counted_as_unsolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1, 1], B: [0, 1], C: [0, 0]})
    config = osworld_config(monkeypatch, tmp_path, {A: "vscode", B: "os", C: "os"})
    out = tmp_path / "kept.json"
    assert run_screening(config, config.tasks.train, 2, out) == 0
    assert kept(out) == {B: (1, 2)}
    assert Scripted.script[A] == [1, 1]
    skipped = json.loads((tmp_path / "kept.json.skipped.json").read_text("utf-8"))
    assert skipped == {A: NO_VS_CODE}
    said = capsys.readouterr().out
    assert "skipping 1 task that cannot run here" in said
    assert "dropped: 1 never solved, 0 always solved, 0 failed, 1 cannot run here" in said
    assert reported(out)["tasks"][A] == {
        "successes": 0,
        "rollouts": 0,
        "kept": False,
        "reason": f"cannot run here: {NO_VS_CODE}",
    }


def test_tasks_without_an_evaluator_are_not_counted_as_unsolved(tmp_path: Path) -> None:
    Scripted.play({A: [0, 1]})
    config = small_config(tmp_path, [A, B])
    without_evaluator(tmp_path, B)
    out = tmp_path / "kept.json"
    assert run_screening(config, config.tasks.train, 2, out) == 0
    assert kept(out) == {A: (1, 2)}
    assert reported(out)["tasks"][B]["reason"] == "cannot run here: it has no evaluator"


def test_a_list_whose_tasks_lie_elsewhere_is_screened_and_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scripted.play({A: [1, 0], B: [1, 0]})
    config = osworld_config(monkeypatch, tmp_path, {A: "os", B: "os"})
    for entry in json.loads(Path(config.tasks.train).read_text("utf-8")):
        path = tmp_path / "upstream" / "examples" / "notes" / f"{entry['id']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(entry))
    (tmp_path / "few.json").write_text(json.dumps({"notes": [B, A]}))
    examples = replace(config.tasks, examples=str(tmp_path / "upstream" / "examples"), ids=B)
    out = tmp_path / "out" / "kept.json"
    assert run_screening(replace(config, tasks=examples), str(tmp_path / "few.json"), 2, out) == 0
    written = json.loads(out.read_text("utf-8"))
    assert (written["source"], written["examples"]) == ("../few.json", "../upstream/examples")
    assert [(task.id, task.domain) for task in load_tasks(str(out))] == [(B, "notes")]
