"""The goal families that generated tasks draw."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from arpo.envs.desk.goal_mix import GoalMix, open_goal_mix
from arpo.envs.desk.goals import FAMILIES, INFEASIBLE, compatible
from arpo.envs.desk.heldout import HELDOUT_FAMILIES, TRAINING_FAMILIES
from arpo.errors import UserError


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
