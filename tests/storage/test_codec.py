import json

import pytest

from arpo.storage.codec import (
    sample_from_json,
    sample_to_json,
    stored_episode,
    trajectory_from_json,
    trajectory_to_json,
)
from arpo.types import Sample
from stored_episodes import episode, small


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
        staleness=(0, 1),
    )
    assert sample_from_json(json.loads(json.dumps(sample_to_json(sample))), {shot.sha256: shot}) == sample
