from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.algorithms.replay import ReplayBuffer
from arpo.config import ReplayConfig
from arpo.config.recipe import load_config
from arpo.types import Group, Trajectory
from trajectories import group, scored, trajectory

PAPER = load_config("paper")


def buffer(load: Callable[[str], Trajectory] | None = None, **settings: Any) -> ReplayBuffer:
    return ReplayBuffer(ReplayConfig(**settings), load)


def taken(rescued: Group) -> list[tuple[int, str]]:
    """The places that were taken, and by whom."""
    return [(rescue.index, rescue.stored_episode) for rescue in rescued.rescues]


def test_an_all_failed_group_gets_one_stored_success_of_its_task() -> None:
    replay = buffer()
    replay.rescue([scored(1, 0, task="t", version=3)], Random(0), version=3)
    failed = scored(0, 0, 0.4, task="t", index=7, version=5)

    (rescued,) = replay.rescue([failed], Random(0), version=5)

    (rescue,) = rescued.rescues
    place = rescue.index
    assert rescue.replaced_episode == f"t-7-{place}"
    assert rescue.stored_episode == "t-0-0"
    assert rescue.age == 2
    assert rescued.trajectories[place].score == 1
    others = [i for i in range(3) if i != place]
    assert [rescued.trajectories[i] for i in others] == [failed.trajectories[i] for i in others]


def test_a_group_without_a_stored_success_or_with_one_of_its_own_is_left_alone() -> None:
    replay = buffer()
    first = [scored(0, 0, task="a"), scored(1, 0, task="b", index=1), scored(1, 1, task="c", index=2)]
    assert replay.rescue(first, Random(0), version=0) == first
    second = [scored(0, 0, task="a"), scored(0.5, 0, task="b", index=1), scored(1, 1, task="c", index=2)]
    assert replay.rescue(second, Random(0), version=1) == second


def test_successes_are_stored_only_after_their_own_group_was_looked_at() -> None:
    replay = buffer()
    groups = [
        scored(0, 0, task="t", index=0),
        scored(1, 0, task="t", index=1),
        scored(0, 0, task="t", index=2),
    ]
    before, success, after = replay.rescue(groups, Random(0), version=0)
    assert before.rescues == success.rescues == ()
    assert [rescue.stored_episode for rescue in after.rescues] == ["t-1-0"]


def test_groups_are_taken_by_index_not_by_arrival() -> None:
    groups = [scored(0, 0, index=2), scored(0, 0, index=0), scored(1, 0, index=1)]
    rescued = buffer().rescue(groups, Random(0), version=0)
    assert [one.index for one in rescued] == [0, 1, 2]
    assert [len(one.rescues) for one in rescued] == [0, 0, 1]


def test_what_is_stored_reaches_the_threshold_and_is_well_formed() -> None:
    replay = buffer(threshold=0.5)
    replay.rescue(
        [
            group(
                trajectory(0.5, name="half"),
                trajectory(0.49, name="below"),
                trajectory(1.0, name="malformed", malformed=True),
                trajectory(1.0, name="whole"),
            )
        ],
        Random(0),
        version=0,
    )
    assert replay.state() == {"t": ["half", "whole"]}


def test_a_malformed_success_keeps_its_group_from_rescue() -> None:
    replay = buffer()
    replay.rescue([scored(1, 0)], Random(0), version=0)
    solved_then_garbled = group(trajectory(1.0, malformed=True), trajectory(0.0))
    assert replay.rescue([solved_then_garbled], Random(0), version=1) == [solved_then_garbled]


def test_capacity_is_per_task_first_in_first_out() -> None:
    replay = buffer(capacity=2)
    for index in range(3):
        replay.rescue(
            [scored(1, task="t", index=index), scored(1, task="u", index=9)], Random(0), version=index
        )
    assert replay.state() == {"t": ["t-1-0", "t-2-0"], "u": ["u-9-0", "u-9-0"]}


def test_own_successes_push_seeds_out() -> None:
    replay = buffer(capacity=2)
    replay.restore(scored(1, 1, task="t").trajectories)
    (rescued,) = replay.rescue([scored(0, 0, 0, task="t", index=1)], Random(0), version=4)
    assert [one.age for one in rescued.rescues] == [4]  # one of three, as old as the run
    for index in (2, 3):
        replay.rescue([scored(1, 0, task="t", index=index)], Random(0), version=5)
    assert replay.state() == {"t": ["t-2-0", "t-3-0"]}


def test_a_rescued_group_does_not_store_the_replayed_success_again() -> None:
    replay = buffer()
    replay.rescue([scored(1, 0)], Random(0), version=0)
    replay.rescue([scored(0, 0, index=1)], Random(0), version=1)
    assert replay.state() == {"t": ["t-0-0"]}


def test_a_lone_trajectory_is_not_rescued_but_may_be_stored() -> None:
    replay = buffer()
    lone_success = group(trajectory(1.0, name="lone"), failures=1)
    assert replay.rescue([lone_success], Random(0), version=0) == [lone_success]
    assert replay.state() == {"t": ["lone"]}
    lone_failure, nothing = group(trajectory(0.0), failures=1), group(failures=2, index=1)
    assert replay.rescue([lone_failure, nothing], Random(0), version=1) == [lone_failure, nothing]


def test_off_changes_and_stores_nothing() -> None:
    replay = buffer(enabled=False)
    groups = [scored(1, 0), scored(0, 0, index=1)]
    assert replay.rescue(groups, Random(0), version=0) == groups
    assert replay.rescue([scored(0, 0)], Random(0), version=1) == [scored(0, 0)]
    assert replay.state() == {}


def test_place_and_success_are_both_drawn_evenly() -> None:
    replay, rng = buffer(), Random(0)
    replay.rescue([scored(1, 1, 1)], rng, version=0)
    draws: Counter[tuple[int, str]] = Counter()
    for _ in range(1800):
        (rescued,) = replay.rescue([scored(0, 0, index=1)], rng, version=1)
        (rescue,) = rescued.rescues
        draws[rescue.index, rescue.stored_episode] += 1
    assert len(draws) == 6
    assert all(240 < count < 360 for count in draws.values())


def test_the_same_generator_gives_the_same_rescue_also_from_a_restored_buffer() -> None:
    replay = buffer(capacity=3)
    replay.rescue([scored(1, 1, 1, 1, task="t"), scored(1, 0, task="u", index=1)], Random(0), version=0)
    held = {t.episode_id: t for t in scored(1, 1, 1, 1, task="t").trajectories}
    held |= {t.episode_id: t for t in scored(1, 0, task="u", index=1).trajectories}

    restored = buffer(held.__getitem__, capacity=3)
    restored.rescue([scored(1, 1, task="other")], Random(0), version=0)
    restored.restore(held[name] for ids in replay.state().values() for name in ids)

    assert restored.state() == replay.state() == {"t": ["t-0-1", "t-0-2", "t-0-3"], "u": ["u-1-0"]}
    failed = [scored(0, 0, 0, task="t", index=5), scored(0, 0, task="u", index=6)]
    assert replay.rescue(failed, Random("7/5"), 2) == restored.rescue(failed, Random("7/5"), 2)


@pytest.mark.parametrize("restored", [False, True])
def test_a_buffer_loads_only_what_it_replays(restored: bool) -> None:
    whole = {t.episode_id: t for task in "tu" for t in scored(1, 1, 1, task=task).trajectories}
    loaded: list[str] = []

    def load(name: str) -> Trajectory:
        loaded.append(name)
        return whole[name]

    replay = buffer(load, capacity=1)
    if restored:
        replay.restore(whole.values())
    else:
        replay.rescue([scored(1, 1, 1, task=task) for task in "tu"], Random(0), version=0)
    assert replay.state() == {"t": ["t-0-2"], "u": ["u-0-2"]}
    groups = [
        scored(0, 0, task="t", index=1),
        scored(1, 0, task="u", index=2),
        scored(0, 0, task="v", index=3),
    ]
    rescued = replay.rescue(groups, Random(0), version=1)
    assert loaded == ["t-0-2"]
    assert whole["t-0-2"] in rescued[0].trajectories


def one_for_one(
    stored: Sequence[str], groups: Sequence[Group], rng: Random
) -> list[tuple[int, tuple[int, str] | None]]:
    """The published rule, said once more: (group, (place, stored success)), the place drawn first."""
    held, rescued = list(stored), []
    for one in groups:
        record = None
        if held and len(one.trajectories) > 1 and not any(t.score >= 0.5 for t in one.trajectories):
            place = rng.randrange(len(one.trajectories))
            record = place, held[rng.randrange(len(held))]
        rescued.append((one.index, record))
        held = [*held, *(t.episode_id for t in one.trajectories if t.score >= 0.5)][-8:]
    return rescued


@given(
    batches=st.lists(
        st.lists(st.lists(st.sampled_from([0, 0, 0, 0.4, 1]), max_size=4), max_size=5), max_size=4
    ),
    seed=st.integers(0, 9),
)
def test_the_paper_recipe_has_the_published_rule(batches: list[list[list[float]]], seed: int) -> None:
    replay, held = ReplayBuffer(PAPER.replay), list[str]()
    for version, batch in enumerate(batches):
        groups = [
            group(
                *(trajectory(score, name=f"{version}-{index}-{n}") for n, score in enumerate(scores)),
                index=index,
            )
            for index, scores in enumerate(batch)
        ]
        expected = one_for_one(held, groups, Random(seed))
        found = replay.rescue(groups, Random(seed), version)
        assert [(one.index, taken(one)) for one in found] == [(i, [r] if r else []) for i, r in expected]
        held = replay.state().get("t", [])


def test_a_group_with_rare_successes_is_rescued_too_and_keeps_them() -> None:
    replay = buffer()  # at most a quarter
    replay.rescue([scored(1, task="t")], Random(0), version=0)
    scores = (0, 1, 0, 0, 0, 1, 0, 0)  # 2 of 8
    for seed in range(20):
        (rescued,) = replay.rescue([scored(*scores, index=1)], Random(seed), version=1)
        ((place, _),) = taken(rescued)
        assert scores[place] == 0
        assert [t.score for t in rescued.trajectories] == [
            1 if n == place else score for n, score in enumerate(scores)
        ]
    three_of_8 = scored(0, 1, 0, 1, 0, 1, 0, 0, index=2)
    assert replay.rescue([three_of_8], Random(0), version=2) == [three_of_8]


def test_the_last_failure_of_a_group_stays() -> None:
    replay = buffer(rare=0.9)
    replay.rescue([scored(1, 1, 1, 1, 1)], Random(0), version=0)
    groups = [
        scored(1, 0, index=1),
        scored(1, 1, 0, index=2),
        scored(1, 1, index=3),
        scored(0, 0, 0, index=4),
    ]
    *left_alone, failed = replay.rescue(groups, Random(0), version=1)
    assert left_alone == groups[:3]
    assert sorted(t.score for t in failed.trajectories) == [0, 0, 1]
