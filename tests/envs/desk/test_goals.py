"""All goal families: the solver reaches them from any state, and any other change scores 0."""

import copy
import hashlib
import json
import random
from typing import Any

import pytest

from arpo.actions import CallUser, Fail, Finished, Wait, render
from arpo.envs.desk.canvas import PALETTE
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.env import perform, set_up
from arpo.envs.desk.goals import FAMILIES, FEASIBLE, INFEASIBLE, compatible, from_json, next_step, to_json
from arpo.envs.desk.goals.base import Goal
from arpo.envs.desk.goals.files import MoveFile, RenameFile, ReplaceText, WriteNote
from arpo.envs.desk.goals.mail import AnswerMail, FlagMail, SendFileText
from arpo.envs.desk.goals.sheet import PutValue, SumColumn
from arpo.envs.desk.goals.web import PlaceOrder
from arpo.envs.desk.random_tasks import random_task, rng_for
from arpo.envs.desk.words import vocabulary
from arpo.types import Task
from desks import WORLD, cell, click, desk, score, solution, task_of
from tools.pretrain.reading import list_elements


def tasks(family: str, count: int = 8) -> list[Task]:
    return [
        task_of(random_task(rng_for("pretrain", seed), [FAMILIES[family]], f"{family}-{seed}"))
        for seed in range(700_000, 700_000 + count)
    ]


def mixed(rng: random.Random, number: int) -> Task:
    while True:
        families = rng.sample(list(FEASIBLE.values()), number)
        if compatible(families):
            return task_of(random_task(rng, families, "mixed"))


def done(task: Task) -> Desktop:
    desktop = set_up(task)
    solution(task, desktop)
    return desktop


def test_there_are_enough_families() -> None:
    assert len(FEASIBLE) == 22 and len(INFEASIBLE) == 3
    assert {family.app for family in FAMILIES.values()} == {"File", "Note", "Mail", "Conf", "Calc", "Web"}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_solver_scores_and_doing_nothing_does_not(family: str) -> None:
    for task in tasks(family):
        desktop = set_up(task)
        thoughts = solution(task, desktop)
        last = thoughts[-1][1]
        assert isinstance(last, Fail if family in INFEASIBLE else Finished)
        assert score(task, desktop, last) == 1.0, task.instruction
        for idle in (Finished(), Wait(), CallUser()):
            assert score(task, set_up(task), idle) == 0.0, task.instruction


@pytest.mark.parametrize("family", FEASIBLE)
def test_fail_on_a_feasible_task_scores_0(family: str) -> None:
    for task in tasks(family, 4):
        assert score(task, done(task), Fail()) == 0.0
        assert score(task, set_up(task), Fail()) == 0.0


@pytest.mark.parametrize("family", INFEASIBLE)
def test_an_infeasible_task_requires_fail(family: str) -> None:
    for task in tasks(family, 4):
        assert score(task, set_up(task), Fail()) == 1.0
        for last in (Finished(), Finished(content="done"), CallUser(), Wait()):
            assert score(task, done(task), last) == 0.0


DAMAGE: dict[str, Any] = {
    "a deleted file": lambda world: world["files"][""].popitem(),
    "a deleted folder": lambda world: world["files"].popitem(),
    "a new folder": lambda world: world["files"].update(Scratch={}),
    "a changed text": lambda world: world["files"][""].update({next(iter(world["files"][""])): "mud"}),
    "a deleted mail": lambda world: world["mail"]["Trash"].append(world["mail"]["In"].pop()),
    "a mail sent": lambda world: world["mail"]["Sent"].append({"to": "Zoe", "subject": "", "body": ""}),
    "a flag": lambda world: world["mail"]["In"][0].update(flag=not world["mail"]["In"][0]["flag"]),
    "a switch": lambda world: world["conf"].update(Wifi=not world["conf"]["Wifi"]),
    "a setting": lambda world: world["conf"].update(Volume=5),
    "a cell": lambda world: world["calc"].update(D5="mud"),
    "an order": lambda world: world["orders"].append({}),
}


@pytest.mark.parametrize("family", FEASIBLE)
def test_damage_beside_the_goal_scores_0(family: str) -> None:
    for task in tasks(family, 2):
        desktop = done(task)
        reached = desktop.world
        for name, damage in DAMAGE.items():
            desktop.world = copy.deepcopy(reached)
            damage(desktop.world)
            assert score(task, desktop, Finished()) == 0.0, name


@pytest.mark.parametrize("number", [2, 3, 4])
def test_several_goals_are_solved_one_after_the_other(number: int) -> None:
    lengths = []
    for seed in range(12):
        task = mixed(random.Random(seed), number)
        desktop = set_up(task)
        steps = solution(task, desktop, max_steps=120)
        lengths.append(len(steps))
        assert score(task, desktop, steps[-1][1]) == 1.0, task.instruction
        assert task.instruction.count(", then ") == number - 1
        half_way = set_up(task)
        for _, action in steps[: len(steps) // 3]:
            perform(half_way, action)
        assert score(task, half_way, Finished()) == 0.0
    assert max(lengths) > 10


@pytest.mark.parametrize("family", FAMILIES)
def test_the_solver_reaches_the_goal_from_any_state(family: str) -> None:
    """After random clicks the solver still reaches the goal, without side effects."""
    solved = 0
    for i, task in enumerate(tasks(family)):
        rng = random.Random(i)
        desktop = set_up(task)
        for _ in range(6):
            x, y = rng.choice(desktop.visible_elements()).centre
            rng.choice((desktop.click, desktop.double_click, desktop.right_click))(x, y)
        if desktop.world == task.config[0]["parameters"]:
            steps = solution(task, desktop)
            assert score(task, desktop, steps[-1][1]) == 1.0, task.instruction
            solved += 1
    assert solved >= 3


def test_tasks_take_from_one_step_to_more_than_ten() -> None:
    lengths = {family: [len(solution(task)) - 1 for task in tasks(family)] for family in FEASIBLE}
    assert min(lengths["TurnSwitch"]) == 1
    assert max(lengths["SendFileText"]) >= 10
    assert max(max(each) for each in lengths.values()) <= 15


@pytest.mark.parametrize("family", FAMILIES)
def test_a_goal_survives_json(family: str) -> None:
    goal = FAMILIES[family].sample(random.Random(3), copy.deepcopy(WORLD))
    assert from_json(json.loads(json.dumps(to_json([goal])))) == [goal]


@pytest.mark.parametrize("family", FAMILIES)
def test_applying_a_goal_gives_the_checkers_target(family: str) -> None:
    for task in tasks(family):
        world = copy.deepcopy(task.config[0]["parameters"])
        for goal in from_json(task.evaluator["solution"]):
            goal.apply(world)
        expected = task.config[0]["parameters"] | task.evaluator.get("expected", {}).get("rules", {})
        assert world == expected
        assert (world == task.config[0]["parameters"]) == (family in INFEASIBLE)


def answers(desktop: Desktop, goal: Goal, limit: int = 20) -> list[str]:
    """All steps of the solver as text, up to the end of the episode."""
    texts: list[str] = []
    while len(texts) < limit:
        step = next_step(desktop, [goal])
        texts.append(render([step.action], step.thought))
        if isinstance(step.action, (Fail, Finished)):
            return texts
        perform(desktop, step.action)
    raise AssertionError(f"no end after {limit} steps: {texts}")


REMOVED: dict[str, tuple[Goal, Any]] = {
    "moved file": (MoveFile(file="report", folder="Work"), lambda world: world["files"][""].pop("report")),
    "folder": (MoveFile(file="report", folder="Work"), lambda world: world["files"].pop("Work")),
    "taken name": (
        MoveFile(file="report", folder="Work"),
        lambda world: world["files"]["Work"].update(report="tea"),
    ),
    "renamed file": (RenameFile(file="report", name="menu"), lambda world: world["files"][""].pop("report")),
    "new name": (
        RenameFile(file="report", name="menu"),
        lambda world: world["files"][""].update(menu="tea"),
    ),
    "text": (ReplaceText(file="report", text="tea"), lambda world: world["files"][""].pop("report")),
    "read file": (
        SendFileText(file="report", to="Anna", subject="exam", body="milk"),
        lambda world: world["files"][""].pop("report"),
    ),
    "flagged mail": (FlagMail(sender="Anna"), lambda world: world["mail"]["In"].clear()),
    "answered mail": (
        AnswerMail(sender="Anna", subject="lunch", body="tea"),
        lambda world: world["mail"]["In"].clear(),
    ),
}


@pytest.mark.parametrize("case", REMOVED)
def test_the_solver_gives_up_if_its_target_is_gone(case: str) -> None:
    goal, remove = REMOVED[case]
    desktop = desk()
    remove(desktop.world)
    assert answers(desktop, goal)[-1].endswith("error_env()")


def test_a_note_with_another_text_is_not_saved_under_the_name() -> None:
    desktop = desk("Note")
    desktop.type("tea")
    click(desktop, "Save")
    goal = WriteNote(text="milk", file="novel")
    assert answers(desktop, goal)[0].startswith("Thought: Click Cancel")
    assert desktop.world["files"][""]["novel"] == "milk"


def test_a_note_saved_with_another_text_is_corrected() -> None:
    desktop = desk("Note")
    desktop.world["files"][""]["novel"] = "tea"
    answers(desktop, WriteNote(text="milk", file="novel"))
    assert desktop.world["files"][""]["novel"] == "milk"


@pytest.mark.parametrize("compose", [False, True])
def test_the_text_of_a_file_is_read_before_it_is_sent(compose: bool) -> None:
    desktop = desk("Mail")
    if compose:
        click(desktop, "New")
    steps = answers(desktop, SendFileText(file="report", to="Anna", subject="exam", body="milk"))
    thoughts = [step.splitlines()[0] for step in steps]
    assert thoughts.index("Thought: Open report") < thoughts.index("Thought: Type milk")


def test_text_pending_in_another_cell_is_not_stored() -> None:
    desktop = desk("Calc")
    desktop.click(*cell(desktop, "A1"))
    desktop.type("99")
    assert "Thought: Press esc" in answers(desktop, PutValue(cell="B2", value=40))[0]
    assert desktop.world["calc"] == {**WORLD["calc"], "B2": 40}


def test_goals_that_could_undo_each_other_are_not_combined() -> None:
    families = FEASIBLE
    assert compatible([families["TurnSwitch"], families["SetTheme"], families["DeleteFile"]])
    assert not compatible([families["DeleteFile"], families["RenameFile"]])
    assert not compatible([families["WriteNote"], families["MoveFile"]])
    assert not compatible([families["PutValue"], families["SumColumn"]])
    assert not compatible([families["TurnSwitch"], families["TurnSwitch"]])
    assert compatible([SendFileText]) and not compatible([SendFileText, families["TurnSwitch"]])


def test_instructions_of_a_few_goals() -> None:
    order = PlaceOrder(name="Nora", item="Sofa", city="Lima", size="Small", gift=True)
    assert order.instruction == "Order a Small Sofa for Nora in Lima as a gift"
    assert MoveFile(file="report", folder="Work").instruction == "Move the file report to the folder Work"
    assert PutValue(cell="B2", value=40).instruction == "Put 40 in cell B2"
    total = SumColumn.sample(random.Random(0), {"calc": {"A1": 3, "A2": 4, "A5": 9}})
    assert (total.column, total.total) == ("A", 7)
    assert total.instruction == "Put the sum of column A in cell A5"


def test_the_steps_of_one_task_word_by_word() -> None:
    desktop = desk("Conf")
    goals: list[Goal] = [MoveFile(file="report", folder="Work"), PutValue(cell="B2", value=40)]
    answers: list[str] = []
    while not answers or not answers[-1].endswith("finished()"):
        step = next_step(desktop, goals)
        answers.append(render([step.action], step.thought))
        perform(desktop, step.action)
    assert answers == [
        "Thought: Open File\nAction: click(start_box='(14,161)')",
        "Thought: Drag report to Work\nAction: drag(start_box='(105,77)', end_box='(105,49)')",
        "Thought: Open Calc\nAction: click(start_box='(126,161)')",
        "Thought: Click B2\nAction: click(start_box='(84,77)')",
        "Thought: Type 40\nAction: type(content='40\\n')",
        "Thought: Done\nAction: finished()",
    ]


def test_screens_and_words_are_those_of_the_base_model() -> None:
    """If this fails, the base model must be pretrained again: it knows these pixels and words."""
    digest = hashlib.sha256(PALETTE.tobytes())
    digest.update(" ".join(vocabulary()).encode())
    for number, family in enumerate(FAMILIES.values()):
        task = task_of(random_task(rng_for("pretrain", 900_000 + number), [family], "look"))
        desktop = set_up(task)
        digest.update(task.instruction.encode())
        for thought, action in solution(task):
            digest.update(desktop.draw(224, 168).pixels.tobytes())
            digest.update((list_elements(desktop) + render([action], thought)).encode())
            perform(desktop, action)
    assert digest.hexdigest() == "f9f81587a4b3befbcb672d6d233db185a63ccef49855049ea239de19b1f2f46c"
