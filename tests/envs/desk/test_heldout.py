"""Held-out goal families and applications: disjoint from those of training, and complete with them."""

from __future__ import annotations

from arpo.envs.desk.goals import FAMILIES
from arpo.envs.desk.heldout import APPLICATION_FAMILIES, HELDOUT_FAMILIES, TRAINING_FAMILIES


def test_every_family_is_in_exactly_one_part() -> None:
    parts = (*TRAINING_FAMILIES, *HELDOUT_FAMILIES, *APPLICATION_FAMILIES)
    assert sorted(parts) == sorted(FAMILIES)
    assert (len(TRAINING_FAMILIES), len(HELDOUT_FAMILIES), len(APPLICATION_FAMILIES)) == (17, 4, 4)


def test_training_families_use_no_held_out_application() -> None:
    assert {FAMILIES[name].app for name in TRAINING_FAMILIES} == {"Conf", "File", "Note", "Mail", "Web"}
    assert APPLICATION_FAMILIES == ("PutValue", "ClearCell", "SumColumn", "CopyValue")
