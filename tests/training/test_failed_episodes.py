"""The line about failed episodes at the end of a run, and the exit code."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from arpo.reporting.display import PlainDisplay
from arpo.storage.run_folder import RunFolder
from arpo.training.reporting import report_failed_episodes
from arpo.types import Failure

ROOM = {"where": "step", "message": "KeyError: 'room'\nmore", "place": "my_env.py:14"}
SCORE = {"where": "evaluate", "message": "returned 100, not a number in [0, 1]", "place": "my_env.py:30"}
ENGINE = {"where": "generate", "message": "out of memory", "kind": "EngineError"}
LATE = {
    "where": "evaluate",
    "message": "no answer within 60 s",
    "place": "my_env.py:30",
    "kind": "EnvTimeout",
}
QUARANTINED = {"where": "start", "message": "quarantined", "kind": "Quarantined"}


def report(folder: Path, failures: list[dict[str, str]], scores: list[float]) -> tuple[int, str]:
    """Exit code and line of a run with these failures and evaluated scores."""
    store = RunFolder(folder)
    for number, changes in enumerate(failures):
        fields = {"kind": "EnvError", "place": "", **changes}
        store.add_failure(Failure(episode_id=f"f{number}", task_id="a", attempts=3, **fields))
    store.log_evaluation({"step": 0, "episodes": 0, "landmark": "base", "sets": {"train": {"a": scores}}})
    written = io.StringIO()
    code = report_failed_episodes(store, PlainDisplay(written))
    store.close()
    return code, written.getvalue()


def test_without_failures_there_is_no_line(tmp_path: Path) -> None:
    assert report(tmp_path, [], [0.0]) == (0, "")


def test_a_few_failures_are_counted_with_the_most_frequent_reason(tmp_path: Path) -> None:
    code, line = report(tmp_path, [SCORE, ROOM, ROOM], [0.0, 0.5, 1.0, 1.0])
    assert (code, line) == (
        0,
        "3 episodes failed, most often step: KeyError: 'room' (my_env.py:14). See "
        f"{tmp_path / 'failures.jsonl'}\n",
    )


def test_more_than_half_of_all_episodes(tmp_path: Path) -> None:
    code, line = report(tmp_path, [QUARANTINED, QUARANTINED, ROOM], [1.0, 0.0])
    assert (code, line) == (
        1,
        "most episodes failed because of the environment (3 of 5), most often step: KeyError: 'room' "
        "(my_env.py:14). Correct it (`arpo check-env` helps), then start again in another --run.dir\n",
    )


def test_refused_successes(tmp_path: Path) -> None:
    code, line = report(tmp_path, [SCORE], [0.0] * 99)
    assert (code, line) == (
        1,
        "most successes were refused: evaluate() failed in 1 episode, 0 scored above 0, most often evaluate: "
        "returned 100, not a number in [0, 1] (my_env.py:30). Correct it (`arpo check-env` helps), then "
        "start again in another --run.dir\n",
    )


def test_refused_successes_name_the_fault_of_evaluate(tmp_path: Path) -> None:
    code, line = report(tmp_path, [SCORE, ROOM, ROOM], [0.0] * 99)
    assert code == 1
    assert "0 scored above 0, most often evaluate: returned 100, not a number in [0, 1] (my_env.py:" in line


@pytest.mark.parametrize(
    ("failures", "scores"),
    [
        ([ROOM, ROOM], [0.0, 0.0]),  # half, and none at evaluate()
        ([ENGINE] * 3, [0.0]),  # not of the environment
        ([LATE], [0.0, 0.0]),  # a timeout is no refused score
        ([SCORE], [0.0, 0.25]),  # as many scored above 0
        ([SCORE | {"place": ""}], [0.0, 0.0]),  # not in the user's code
    ],
)
def test_other_runs_succeed(tmp_path: Path, failures: list[dict[str, str]], scores: list[float]) -> None:
    assert report(tmp_path, failures, scores)[0] == 0


def test_failures_of_older_runs_have_no_place(tmp_path: Path) -> None:
    RunFolder(tmp_path).close()
    line = '{"episode_id":"f","task_id":"a","kind":"EnvError","where":"step","message":"gone","attempts":3}\n'
    (tmp_path / "failures.jsonl").write_text(line, "utf-8")
    code, said = report(tmp_path, [], [0.0, 0.0])
    assert (code, said) == (
        0,
        f"1 episode failed, most often step: gone. See {tmp_path / 'failures.jsonl'}\n",
    )
