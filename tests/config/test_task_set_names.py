"""Names and labels of task sets: one list, several lists, halves of Desk's levels."""

import pytest

from arpo.config.task_set_names import heldout_sets, in_order, set_label, split_sources
from arpo.errors import UserError


def test_one_list_is_the_held_out_set() -> None:
    assert heldout_sets("desk:heldout") == {"heldout": "desk:heldout"}
    assert heldout_sets("a/tasks.json") == {"heldout": "a/tasks.json"}
    assert heldout_sets("") == {"heldout": ""}


def test_every_source_of_several_has_a_name_of_its_own() -> None:
    assert heldout_sets(" desk:heldout, a/my tasks.json,desk:families/test ") == {
        "heldout": "desk:heldout",
        "my_tasks": "a/my tasks.json",
        "families_test": "desk:families/test",
    }
    assert heldout_sets("desk:instances/test") == {"instances_test": "desk:instances/test"}


def test_a_half_stands_for_all_levels() -> None:
    levels = ["desk:instances/test", "desk:families/test", "desk:applications/test", "desk:long/test"]
    assert split_sources("desk:test,b.json") == [*levels, "b.json"]
    assert list(heldout_sets("desk:validation")) == [
        "instances_validation",
        "families_validation",
        "applications_validation",
        "long_validation",
    ]
    assert list(heldout_sets("desk:quick")) == list(heldout_sets("desk:validation"))
    assert split_sources("validation") == ["validation"]  # a folder


@pytest.mark.parametrize("text", ["a.json,b/a.json", "desk:32,train.json", "desk:test,desk:families/test"])
def test_two_sets_cannot_have_the_same_name(text: str) -> None:
    with pytest.raises(UserError, match=r"tasks.heldout: \S+: there is another task set with the name"):
        heldout_sets(text)


@pytest.mark.parametrize("name", ["model", "temperature", "skipped"])
def test_a_set_does_not_replace_another_result_of_an_evaluation(name: str) -> None:
    with pytest.raises(UserError, match=rf"tasks.heldout: {name}.json: the name '{name}' is reserved"):
        heldout_sets(f"a.json,{name}.json")
    assert heldout_sets(f"{name}.json") == {"heldout": f"{name}.json"}


def test_labels() -> None:
    names = ["overall", "families_test", "train", "mine", "train"]
    assert in_order(names) == ["train", "families_test", "mine", "overall"]
    assert [set_label(name) for name in in_order(names)] == [
        "training tasks",
        "new goal families (test)",
        "held-out tasks, mine",
        "all tasks",
    ]
