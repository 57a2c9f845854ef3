import json

import pytest

import stored_episodes
from arpo.storage.codec import (
    StoredCalls,
    check_evaluation,
    check_numbers,
    check_summary,
    failure_from_json,
    sample_from_json,
    sample_to_json,
    stored_episode,
    stored_group,
    trajectory_from_json,
    trajectory_to_json,
)
from arpo.storage.from_json import from_json
from arpo.types import Sample
from damaged_json import damaged
from stored_episodes import ALL_ACTIONS, episode, small


def written(versions_of_first_turn=(3, 3, 4)):
    """An episode of two turns with three tokens each, as JSON; the second turn has versions 3, 3, 4."""
    shots = [small(number) for number in range(3)]
    value = json.loads(json.dumps(trajectory_to_json(episode("e", shots))))
    value["turns"][0]["completion"]["versions"] = list(versions_of_first_turn)
    return value, {shot.sha256: shot for shot in shots}


def test_every_token_keeps_its_policy_version():
    value, shots = written()
    loaded = trajectory_from_json(value, lambda _: shots)
    assert [turn.completion.versions for turn in loaded.turns] == [(3, 3, 4), (3, 3, 4)]
    assert (loaded.policy_version, stored_episode(value).policy_version) == (3, 3)


def test_the_oldest_token_counts():
    value, shots = written([7, 2, 5])
    assert (
        trajectory_from_json(value, lambda _: shots).policy_version
        == stored_episode(value).policy_version
        == 2
    )


def test_equal_versions_are_written_once():
    value, shots = written([[3, 3]])
    assert trajectory_from_json(value, lambda _: shots).turns[0].completion.versions == (3, 3, 3)


def test_an_older_file_has_one_version_per_answer():
    value, shots = written()
    for turn, version in zip(value["turns"], (6, 5), strict=True):
        del turn["completion"]["versions"]
        turn["completion"]["policy_version"] = version
    loaded = trajectory_from_json(value, lambda _: shots)
    assert [turn.completion.versions for turn in loaded.turns] == [(6, 6, 6), (5, 5, 5)]
    assert loaded.policy_version == stored_episode(value).policy_version == 5


@pytest.mark.parametrize("versions", [[], [3, 3], [[3, 4]], [3, 3, "4"], [3, 3, 4.0]])
def test_wrong_versions_are_damage(versions):
    value, shots = written(versions)
    with pytest.raises(ValueError):
        trajectory_from_json(value, lambda _: shots)


def test_other_likely_tokens_are_kept():
    value, shots = written()
    others = [[[7, -1.5], [9, -2.0]], [[8, -0.5]], []]
    value["turns"][0]["completion"]["alternatives"] = others
    loaded = trajectory_from_json(value, lambda _: shots)
    assert loaded.turns[0].completion.alternatives == (((7, -1.5), (9, -2.0)), ((8, -0.5),), ())
    assert loaded.turns[1].completion.alternatives == ()
    again = json.loads(json.dumps(trajectory_to_json(loaded)))
    assert again["turns"][0]["completion"]["alternatives"] == others
    value["turns"][0]["completion"]["alternatives"] = others[1:]
    with pytest.raises(ValueError, match="an answer has 3 tokens, and alternatives of 2"):
        trajectory_from_json(value, lambda _: shots)


def test_the_answer_of_a_teacher_has_neither_versions_nor_log_probabilities():
    value, shots = written([])
    value["turns"][0]["completion"]["logprobs"] = []
    first = trajectory_from_json(value, lambda _: shots).turns[0].completion
    assert (len(first.token_ids), first.logprobs, first.versions) == (3, (), ())
    assert stored_episode(value).has_tokens


def test_a_sample_is_read_as_it_was_written():
    shot = small(1)
    sample = Sample(
        token_ids=(1, 5, 6),
        mask=bytes((0, 1, 1)),
        images=(shot,),
        behaviour_logprobs=(-0.1, -0.7),
        advantage=0.75,
        weight=0.25,
        replayed=False,
        kl_weight=0.125,
        teacher_weight=0.5,
        staleness=(0, 1),
    )
    assert sample_from_json(json.loads(json.dumps(sample_to_json(sample))), {shot.sha256: shot}) == sample


FAILURE = {
    "episode_id": "e", "task_id": "t", "kind": "EnvTimeout", "where": "step", "message": "late", "attempts": 3
}  # fmt: skip
RESCUE = {"index": 1, "replaced_episode": "a", "stored_episode": "b", "age": 3}
GROUP = {
    "step": 1, "group": "batch-1-0", "task": "t", "version": 0, "episodes": ["batch-1-0-0", "b"],
    "versions": [0, 0], "rewards": [0.0, 1.0], "advantages": [-1.0, 1.0], "rescues": [RESCUE],
}  # fmt: skip
SUMMARY = {
    "success": {"base": {"train": 0.5}, "final": {"train": None}},
    "counts": {"base": {"train": [1.0, 2]}},
    "left_out": {"train": ["t"]},
    "groups": {"total": 3},
    "training_episodes": {"batches": 1, "first": [1, 4], "last": [2, 4]},
    "seconds": 1.5,
}
EVALUATION = {
    "step": 2,
    "episodes": 8,
    "landmark": "",
    "sets": {"train": {"a": [1.0]}},
    "failures": {"train": 1},
}
CALLS = {"episode": "e", "host": "", "fault": "", "calls": [["start", 0.0, 1.0], ["step", 1.0, 0.5]]}


def stored(value):
    shots = {shot.sha256: shot for shot in (small(1), small(2))}

    def read(names):
        if not set(names) <= shots.keys():
            raise ValueError("no such screenshot")
        return shots

    stored_episode(value)
    return trajectory_from_json(value, read)


TRAJECTORY = trajectory_to_json(
    episode("e", [small(1), small(2)], turns=(stored_episodes.turn(small(1), actions=ALL_ACTIONS[:4]),))
)


@pytest.mark.parametrize(
    ("record", "read"),
    [
        (TRAJECTORY, stored),
        (GROUP, stored_group),
        (FAILURE, failure_from_json),
        (EVALUATION, check_evaluation),
        (SUMMARY, check_summary),
        ({"step": 1, "loss": 0.5, "reward": None}, check_numbers),
        (CALLS, lambda value: from_json(value, StoredCalls)),
    ],
    ids=["trajectory", "group", "failure", "evaluation", "summary", "numbers", "calls"],
)
def test_every_damaged_record_is_read_or_is_a_value_error(record, read):
    """One key less, or a value of another type, at every place: no other error than ValueError."""
    record = json.loads(json.dumps(record))
    read(record)
    refused = 0
    for value in damaged(record):
        try:
            read(value)
        except ValueError:
            refused += 1
    assert refused > 12


def test_a_turn_that_continues_an_older_one_is_read_back_and_checked():
    value, shots = written()
    assert all("after" not in turn for turn in value["turns"])
    first, second = value["turns"]
    value["turns"] = [first, {**first, "restart": True}, {**second, "restart": False, "after": 1}]
    loaded = trajectory_from_json(value, lambda _: shots)
    assert loaded.sequences() == [[0, 2], [1]]
    assert trajectory_to_json(loaded)["turns"][2]["after"] == 1
    value["turns"][2]["after"] = 3
    with pytest.raises(ValueError, match="ends no sequence"):
        trajectory_from_json(value, lambda _: shots)
