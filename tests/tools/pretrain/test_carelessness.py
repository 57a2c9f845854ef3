"""The careless demonstrator: each kind of fault, and its success rate against a formula."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from arpo.actions import render
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.goals import FEASIBLE, Goal
from arpo.envs.desk.goals.conf import SetTheme, TurnSwitch
from arpo.envs.desk.goals.files import DeleteFile
from arpo.envs.desk.random_tasks import random_task, rng_for
from desks import desk, task_of
from tools.pretrain.carelessness import Carelessness, demonstrate, solves

pytestmark = pytest.mark.slow

NONE = Carelessness.of(0)
WIFI = TurnSwitch(name="Wifi", on=True)


def answers(desktop: Desktop, goals: list[Goal], faults: Carelessness, seed: int = 0) -> list[str]:
    turns = demonstrate(random.Random(seed), desktop, goals, faults, look=lambda _: None, max_steps=16)
    return [render([step.action], step.thought).replace("Thought: ", "") for _, step in turns]


def test_without_faults_it_is_the_solver() -> None:
    assert answers(desk("Conf"), [WIFI], NONE) == [
        "Click Wifi\nAction: click(start_box='(84,63)')",
        "Done\nAction: finished()",
    ]


def test_levels_scale_all_rates() -> None:
    assert Carelessness.of(1) == Carelessness()
    half = Carelessness.of(0.5)
    assert (half.early_finish, half.giving_up, half.skipped_goal) == (0.2, 0.05, 0.125)
    assert Carelessness.of(10).early_finish == 1


def test_an_early_finish_leaves_out_the_last_step() -> None:
    faults = replace(NONE, early_finish=1)
    assert answers(desk("Conf"), [WIFI], faults) == ["Done\nAction: finished()"]
    assert answers(desk("File"), [DeleteFile(file="report")], faults) == [
        "Click report\nAction: click(start_box='(105,77)')",
        "Click Del\nAction: click(start_box='(70,35)')",
        "Done\nAction: finished()",  # the question "Delete report" is still open
    ]


def test_giving_up_names_the_target_that_it_did_not_look_for() -> None:
    assert answers(desk(), [WIFI], replace(NONE, giving_up=1)) == ["no Conf\nAction: error_env()"]


def test_one_of_several_goals_is_skipped_but_never_the_only_one() -> None:
    faults = replace(NONE, skipped_goal=1)
    assert answers(desk(), [WIFI, SetTheme(theme="Dark")], faults) == ["Done\nAction: finished()"]
    assert answers(desk("Conf"), [WIFI], faults)[0].startswith("Click Wifi")


def test_a_slip_hits_one_of_the_two_nearest_elements_with_the_same_thought() -> None:
    """Wifi (row 63) is below the tabs at 35 and above VPN at 77, Hotspot at 91 and Flight at 105."""
    firsts = {answers(desk("Conf"), [WIFI], replace(NONE, neighbour=1), seed)[0] for seed in range(20)}
    assert firsts == {
        "Click Wifi\nAction: click(start_box='(84,77)')",
        "Click Wifi\nAction: click(start_box='(84,91)')",
    }


def test_after_a_slip_the_solver_recovers_from_the_real_state() -> None:
    """The slip selects another file. The next step selects the right one."""
    goal = DeleteFile(file="report")
    recovered = [
        found
        for seed in range(40)
        if (found := answers(desk("File"), [goal], replace(NONE, neighbour=0.3), seed))[0]
        != "Click report\nAction: click(start_box='(105,77)')"
    ]
    assert recovered and any(each[-1] == "Done\nAction: finished()" for each in recovered)
    assert all(len(each) > 4 for each in recovered if each[-1].endswith("finished()"))


def test_a_detour_opens_another_application_and_comes_back() -> None:
    detours = 0
    for seed in range(10):
        found = answers(desk("Conf"), [WIFI], replace(NONE, detour=0.5), seed)
        thoughts = [answer.split("\n")[0] for answer in found]
        assert thoughts[-2:] == ["Click Wifi", "Done"]
        away = [each for each in thoughts if each.startswith("Open ") and each != "Open Conf"]
        assert set(away) <= {"Open File", "Open Note", "Open Mail", "Open Calc", "Open Web"}
        assert not away or "Open Conf" in thoughts
        detours += len(away)
    assert detours > 0


@pytest.mark.parametrize(
    ("faults", "goals", "expected"),
    [
        (Carelessness.of(0), 1, 1.0),
        (replace(NONE, early_finish=0.4), 1, 0.6),
        (replace(NONE, giving_up=0.1, early_finish=0.4), 1, 0.54),  # 0.9 · 0.6
        (replace(NONE, skipped_goal=0.25), 2, 0.5625),  # 0.75²
    ],
)
def test_success_follows_the_rates(faults: Carelessness, goals: int, expected: float) -> None:
    families = ["TurnSwitch", "DeleteMail"][:goals]
    solved = []
    for number in range(300):
        rng = rng_for("pretrain", 700_000 + number)
        task = task_of(random_task(rng, [FEASIBLE[family] for family in families], "task"))
        solved.append(solves(task, faults, rng, max_steps=15))
    assert sum(solved) / 300 == pytest.approx(expected, abs=0.0 if expected == 1 else 0.08)


def test_a_perfect_imitation_solves_about_half_of_the_tasks_with_one_goal() -> None:
    solved = []
    for number in range(300):
        rng = rng_for("pretrain", 710_000 + number)
        task = task_of(random_task(rng, [list(FEASIBLE.values())[number % len(FEASIBLE)]], "task"))
        solved.append(solves(task, Carelessness(), rng, max_steps=15))
    assert 0.45 <= sum(solved) / 300 <= 0.6
