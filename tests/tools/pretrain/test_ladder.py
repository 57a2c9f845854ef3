"""The ladder: stages by share of the updates."""

import pytest

from tools.pretrain.ladder import ACT, LADDER, PAGE, QUESTIONS, SEARCH, stage_at


@pytest.mark.parametrize(
    ("share", "name"),
    [(0.0, "words"), (0.14, "words"), (0.15, "read"), (0.38, "act"), (0.77, "careless"), (1.0, "careless")],
)
def test_stages_follow_each_other(share: float, name: str) -> None:
    assert stage_at(share, LADDER[-1]).name == name


def test_shares_are_percentages_and_only_the_last_stage_is_careless() -> None:
    assert [sum(stage.lessons.values()) for stage in LADDER] == [100, 100, 100, 100]
    assert all(set(stage.lessons) == {PAGE, SEARCH, *QUESTIONS, ACT} for stage in LADDER)
    assert [stage.careless for stage in LADDER] == [False, False, False, True]
    assert LADDER[-1].until == 1
