from collections import Counter
from random import Random
from typing import Any

from arpo.config import ReplayConfig
from arpo.replay import ReplayBuffer
from trajectories import group, scored, trajectory


def buffer(**settings: Any) -> ReplayBuffer:
    return ReplayBuffer(ReplayConfig(**settings))


def test_an_all_failed_group_gets_one_stored_success_of_its_task() -> None:
    replay = buffer()
    replay.rescue([scored(1, 0, task="t", version=3)], Random(0), version=3)
    failed = scored(0, 0, 0.4, task="t", index=7, version=5)

    (rescued,) = replay.rescue([failed], Random(0), version=5)

    assert rescued.rescue is not None
    place = rescued.rescue.index
    assert rescued.rescue.replaced_episode == f"t-7-{place}"
    assert rescued.rescue.stored_episode == "t-0-0"
    assert rescued.rescue.age == 2
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
    assert before.rescue is None and success.rescue is None
    assert after.rescue is not None and after.rescue.stored_episode == "t-1-0"


def test_groups_are_taken_by_index_not_by_arrival() -> None:
    groups = [scored(0, 0, index=2), scored(0, 0, index=0), scored(1, 0, index=1)]
    rescued = buffer().rescue(groups, Random(0), version=0)
    assert [one.index for one in rescued] == [0, 1, 2]
    assert [one.rescue is not None for one in rescued] == [False, False, True]


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
        assert rescued.rescue is not None
        draws[rescued.rescue.index, rescued.rescue.stored_episode] += 1
    assert len(draws) == 6
    assert all(240 < count < 360 for count in draws.values())


def test_the_same_generator_gives_the_same_rescue_also_from_a_restored_buffer() -> None:
    replay = buffer(capacity=3)
    replay.rescue([scored(1, 1, 1, 1, task="t"), scored(1, 0, task="u", index=1)], Random(0), version=0)
    held = {t.episode_id: t for t in scored(1, 1, 1, 1, task="t").trajectories}
    held |= {t.episode_id: t for t in scored(1, 0, task="u", index=1).trajectories}

    restored = buffer(capacity=3)
    restored.rescue([scored(1, 1, task="other")], Random(0), version=0)
    restored.restore(held[name] for ids in replay.state().values() for name in ids)

    assert restored.state() == replay.state() == {"t": ["t-0-1", "t-0-2", "t-0-3"], "u": ["u-1-0"]}
    failed = [scored(0, 0, 0, task="t", index=5), scored(0, 0, task="u", index=6)]
    assert replay.rescue(failed, Random("7/5"), 2) == restored.rescue(failed, Random("7/5"), 2)
