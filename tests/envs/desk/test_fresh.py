"""Tasks made on demand: decided by seed and number, rebuilt from their id, solvable."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import asdict

import pytest

from arpo.envs.desk.env import set_up
from arpo.envs.desk.fresh import FreshTasks, GoalMix, fresh_families, fresh_task, open_goal_mix
from arpo.envs.desk.goals import FAMILIES, INFEASIBLE, compatible
from arpo.envs.desk.heldout import HELDOUT_FAMILIES, TRAINING_FAMILIES
from arpo.errors import UserError
from arpo.tasks.lists import load_tasks
from desks import score, solution


def fresh(*, seed: int = 7, count: int = 10**6, goals: str = "1,2", max_steps: int = 15) -> FreshTasks:
    mix = open_goal_mix("", goals)
    return FreshTasks(mix, seed=seed, count=count, max_steps=max_steps, endless=True)


def test_a_task_is_decided_by_seed_and_number_alone() -> None:
    tasks = fresh()
    later = [tasks[number] for number in (999_999, 5, 0)]
    assert later == [fresh()[number] for number in (999_999, 5, 0)]
    assert fresh(count=6)[5] == tasks[5]  # a longer run has the same first tasks
    contents = {json.dumps([task.instruction, task.config]) for task in (*tasks[:100], *fresh(seed=8)[:100])}
    assert len(contents) == 200


def test_a_task_is_rebuilt_from_its_id() -> None:
    for task in fresh(goals="1,2,3")[:100]:
        assert fresh_task(task.id) == task
        assert fresh_families(task.id) == tuple(task.snapshot.split("+"))
        assert json.loads(json.dumps(asdict(task)))["config"] == list(task.config)  # plain JSON
        assert task.domain == task.related_apps[0] == FAMILIES[fresh_families(task.id)[0]].app


@pytest.mark.parametrize(
    "other",
    [
        "pool-001", "fresh-7-1", "fresh-7-1-Fly", "fresh-07-1-SetTheme", "fresh-7-1.0.1-SetTheme",
        "fresh-7-1-SetTheme+SetTheme", "fresh-7-1-", "fresh-7-1-SetTheme+", "",
    ],
)  # fmt: skip
def test_other_ids_have_no_task(other: str) -> None:
    assert fresh_task(other) is None


@pytest.mark.slow
def test_the_solver_finishes_every_task_within_the_limit() -> None:
    for task in (*fresh(max_steps=6)[:60], *fresh()[:60]):
        desktop = set_up(task)
        steps = solution(task, desktop)
        assert score(task, desktop, steps[-1][1]) == 1.0, task.id
        assert len(steps) <= 15
    assert max(len(solution(task)) for task in fresh(max_steps=6)[:60]) <= 6


def test_a_candidate_that_takes_too_many_steps_is_skipped() -> None:
    short, long = fresh(max_steps=3, goals="1")[:40], fresh(goals="1")[:40]
    skipped = [task for task in short if "." in task.id]
    assert skipped and all(fresh_task(task.id) == task for task in skipped)
    kept = [(one, other) for one, other in zip(short, long, strict=True) if one not in skipped]
    assert kept and all(one == other for one, other in kept)
    with pytest.raises(UserError, match=r"rollout.max_steps = 1 steps: raise it, or choose other tasks"):
        fresh(max_steps=1, goals="2")[0]


def test_no_task_contains_a_held_out_family_or_application() -> None:
    for task in fresh()[:300]:
        assert set(fresh_families(task.id)) <= set(TRAINING_FAMILIES)
        assert "Calc" not in task.related_apps
        windows = [step["parameters"]["app"] for step in task.config if step["type"] == "open"]
        assert "Calc" not in windows


def test_a_slice_is_a_list_and_the_end_is_an_error() -> None:
    tasks = fresh(count=3)
    assert len(tasks) == len(tasks[:]) == len(list(tasks)) == 3 and tasks[-1] == tasks[2]
    with pytest.raises(IndexError):
        tasks[3]


def test_it_is_no_task_list() -> None:
    with pytest.raises(UserError, match=r"desk:fresh: makes tasks on demand for tasks.train"):
        load_tasks("desk:fresh")


def draws(mix: GoalMix, count: int = 2000) -> list[tuple[str, ...]]:
    rng = random.Random(0)
    return [mix.draw(rng) for _ in range(count)]


def refusal(families: str = "", goals: str = "1", domains: str = "") -> str:
    with pytest.raises(UserError) as caught:
        open_goal_mix(families, goals, domains)
    return str(caught.value)


def test_by_default_no_held_out_family_or_application_is_drawn() -> None:
    found = draws(open_goal_mix("", "1,2,3"))
    assert {name for families in found for name in families} == set(TRAINING_FAMILIES)
    assert not {FAMILIES[name].app for families in found for name in families} & {"Calc"}
    for families in found:
        assert compatible([FAMILIES[name] for name in families])
        assert len(families) == 1 or not set(families) & INFEASIBLE.keys()


def test_numbers_of_goals_are_drawn_as_often_as_they_are_listed() -> None:
    counts = Counter(map(len, draws(open_goal_mix("", "1,1,2"), 3000)))
    assert counts.keys() == {1, 2}
    assert 1900 < counts[1] < 2100


def test_families_and_domains_restrict_every_goal() -> None:
    assert set(draws(open_goal_mix("SetTheme, FlagMail", "1"), 100)) == {("SetTheme",), ("FlagMail",)}
    found = draws(open_goal_mix("", "1,2", "Mail,Web"), 300)
    assert {FAMILIES[name].app for families in found for name in families} == {"Mail", "Web"}
    assert set(draws(open_goal_mix("SetTheme,FlagMail", "1", "Mail"), 20)) == {("FlagMail",)}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"families": "SetTeme"}, "tasks.families: no 'SetTeme' (did you mean SetTheme?)"),
        ({"families": HELDOUT_FAMILIES[0]}, "tasks.families: SetLanguage is held out, so desk:fresh never"),
        ({"families": "SumColumn"}, "tasks.families: SumColumn is held out"),
        ({"domains": "Mial"}, "tasks.domains: no 'Mial' (did you mean Mail?)"),
        ({"domains": "Calc"}, "tasks.domains: Calc is held out, so desk:fresh never has it; it has: File, "),
        ({"families": "SetTheme", "domains": "Mail"}, "tasks.families: none of these is in tasks.domains"),
        ({"goals": "1,4"}, "tasks.goals: is '1,4', must be numbers from 1 to 3, separated by commas"),
        ({"goals": ""}, "tasks.goals: is '', must be numbers"),
        ({"goals": "one"}, "tasks.goals: is 'one', must be numbers"),
        ({"families": "FlagMail", "goals": "2"}, "tasks.goals: no 2 of these families fit together in one"),
    ],
)
def test_bad_settings_are_refused_with_the_remedy(settings: dict[str, str], says: str) -> None:
    assert refusal(**settings).startswith(says)
