"""The report on the base model: marks of answers, tables, and one small report of the shipped model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from arpo.actions import Click, Point
from arpo.config.recipe import load_config
from arpo.dialects.ui_tars import parse
from arpo.envs.desk.desktop import Element
from arpo.errors import UserError
from arpo.models.loading import resolve_model
from tools.pretrain.card import CARD, with_report
from tools.pretrain.reading import Question
from tools.pretrain.report import (
    _tasks,
    points_at,
    reading_accuracy,
    report_table,
    write_report,
)

SAVE = Element(label="Save", kind="Button", column=8, row=2, columns=4, rows=1)  # (56,28) to (83,41)
WIFI = Element(label="Wifi", kind="Check", column=6, row=4, columns=12, rows=1, on=True)


def click(x: int, y: int, kind: str = "click") -> str:
    return f"Thought: Click Save\nAction: {kind}(start_box='({x},{y})')"


@pytest.mark.parametrize(
    ("answer", "label", "place"),
    [
        ("Save(70,35)Wifi on(84,63)", 1, 1),
        ("Save(83,41)", 1, 1),
        ("Save(84,41)", 1, 0),  # one unit to the right of the element
        ("Del(70,35)", 0, 0),
        ("Save(10,35)Save(70,35)", 1, 1),  # two elements with the same label
        ("no list at all", 0, 0),
    ],
)
def test_an_element_is_read_by_label_and_place(answer: str, label: float, place: float) -> None:
    assert reading_accuracy([[SAVE]], [answer]) == {"Button": {"elements": 1, "label": label, "place": place}}


def test_the_state_is_part_of_a_label() -> None:
    found = reading_accuracy([[SAVE, WIFI], [SAVE]], ["Save(70,35)Wifi(84,63)", ""])
    assert found == {
        "Button": {"elements": 2, "label": 0.5, "place": 0.5},
        "Check": {"elements": 1, "label": 0.0, "place": 0.0},
    }


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (click(70, 35), True),
        (click(56, 28), True),
        (click(55, 28), False),
        (click(70, 35, "left_double"), False),
        ("Done", False),
    ],
)
def test_a_pointer_hits_inside_the_element(answer: str, right: bool) -> None:
    question = Question(
        instruction="Click Save", action=Click(point=Point(70, 35)), kind="Button", element=SAVE
    )
    assert points_at(question, answer, parse) is right


def test_a_slider_needs_the_right_mark() -> None:
    slider = Element(label="Volume", kind="Slider", column=6, row=5, columns=12, rows=1)
    question = Question(
        instruction="Set 30", action=Click(point=Point(66, 77)), kind="Slider", element=slider
    )
    assert points_at(question, click(69, 77), parse)
    assert not points_at(question, click(70, 77), parse)


def test_a_second_report_replaces_the_first_on_the_card() -> None:
    card = "# Card\n\nfingerprint: `abc`\n"
    once = with_report(card, "| old |")
    assert once.startswith(card) and "| old |" in once
    twice = with_report(once, "| new |")
    assert twice == with_report(card, "| new |")


def test_the_table_has_a_line_per_kind_and_temperature() -> None:
    report = {
        "reading": {"Button": {"elements": 4, "label": 1.0, "place": 0.75}},
        "pointing": {"Button": {"questions": 2, "right": 0.5}, "close": {"questions": 1, "right": 1.0}},
        "state": {},
        "acting": {"1": {"infeasible": 1, "one goal": 0.5, "two goals": 0.25, "three goals": 0.125}},
    }
    lines = report_table(report).splitlines()
    assert lines[2:4] == ["| Button | 100.0% | 75.0% | 50.0% |  |", "| close |  |  | 100.0% |  |"]
    assert lines[-1] == "| 1 | 100.0% | 50.0% | 25.0% | 12.5% |"


@pytest.mark.slow
def test_tasks_are_solvable_within_the_limit() -> None:
    """No task with three goals has a solution of two steps and finished()."""
    assert [len(task.snapshot.split("+")) for task in _tasks(3, 2, max_steps=15)] == [3, 3]
    with pytest.raises(UserError, match="too few for the report's tasks with 3 goals"):
        next(_tasks(3, 1, max_steps=3))


@pytest.mark.slow
def test_a_report_of_the_shipped_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("desk", ["--model.device=cpu", "--rollout.max_steps=8", "--run.threads=1"])
    with pytest.raises(UserError, match="has no folder 'model'"):
        write_report(config, tmp_path, size=1)
    shutil.copytree(resolve_model("base"), tmp_path / "model")
    write_report(config, tmp_path, size=1)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["size"] == 1
    assert list(report["acting"]) == ["1", "0.6"]
    assert set(report["acting"]["1"]) == {"infeasible", "one goal", "two goals", "three goals", "families"}
    assert sum(kind["questions"] for kind in report["pointing"].values()) == 4
    table = report_table(report)
    assert table in capsys.readouterr().out and table in (tmp_path / "model" / CARD).read_text()
