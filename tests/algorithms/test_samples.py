from dataclasses import replace
from random import Random
from typing import Any

import pytest

from arpo.algorithms.replay import ReplayBuffer
from arpo.algorithms.samples import (
    GroupStats,
    count_groups,
    prompt_cost,
    split_by_signal,
    trajectory_samples,
)
from arpo.config import LossConfig, ReplayConfig
from arpo.errors import UserError
from arpo.types import Group, Rescue, Screenshot
from trajectories import SCREEN, Updates, all_updates, group, scored, trajectory, turn


def samples(groups: list[Group], tasks_per_update: int = 8, **loss: Any) -> tuple[Updates, GroupStats]:
    settings = LossConfig(**loss)
    updates = all_updates(groups, settings, tasks_per_update=tasks_per_update, token_budget=100)
    return updates, count_groups(groups, settings, success=0.5)


def test_turns_that_continue_each_other_are_one_sample() -> None:
    second = Screenshot.of(b"second")
    episode = trajectory(
        1.0,
        turn([1, 2, 3], [10, 11], [-0.1, -0.2], restart=True),
        turn([4, 5], [12, 13, 14], [-0.3, -0.4, -0.5], images=[second]),
    )
    ((sample, _),), _ = samples([group(episode, trajectory(0.0))])
    assert sample.token_ids == (1, 2, 3, 10, 11, 4, 5, 12, 13, 14)
    assert sample.mask == bytes((0, 0, 0, 1, 1, 0, 0, 1, 1, 1))
    assert sample.images == (SCREEN, second)
    assert sample.behaviour_logprobs == (-0.1, -0.2, -0.3, -0.4, -0.5)
    assert sample.advantage == 1.0
    assert sample.weight == 1 / (1 * 2 * 5)
    assert not sample.replayed


def test_a_slid_window_begins_another_sample_with_the_weight_of_the_whole_trajectory() -> None:
    episode = trajectory(
        1.0,
        turn([1], [10], restart=True),
        turn([2], [11]),
        turn([7, 8], [12, 13], restart=True, images=[SCREEN, SCREEN]),
    )
    ((first, second, other),), _ = samples([group(episode, trajectory(0.0))])
    assert (first.token_ids, first.mask) == ((1, 10, 2, 11), bytes((0, 1, 0, 1)))
    assert (second.token_ids, second.mask) == ((7, 8, 12, 13), bytes((0, 0, 1, 1)))
    assert (len(first.images), len(second.images)) == (2, 2)
    assert first.weight == second.weight == 1 / (1 * 2 * 4)
    assert first.advantage == second.advantage == 1.0
    assert other.weight == 1 / (1 * 2 * 2)


# One live group of 2 (4 and 2 sampled tokens) and one group of 3 without signal (2 tokens each).
LIVE = group(trajectory(1.0, turn([1], [2, 3, 4, 5], restart=True)), trajectory(0.0), index=0)
DEAD = scored(0, 0, 0, index=1)


@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [
        ("sequence", [1 / (2 * 2 * 4), 1 / (2 * 2 * 2)]),
        ("token", [1 / 12, 1 / 12]),
        ("constant", [1 / (2 * 2 * 100)] * 2),
    ],
)
def test_weights_hold_the_whole_normalisation(aggregation: str, weights: list[float]) -> None:
    (update,), _ = samples([LIVE, DEAD], aggregation=aggregation)
    assert [sample.weight for sample in update] == weights


def rescue(index: int) -> Rescue:
    return Rescue(index=index, replaced_episode="failed", stored_episode="old", age=1)


@pytest.mark.parametrize(
    ("aggregation", "own", "dead"),
    [
        ("sequence", 1 / (2 * 1 * 2), 1 / (2 * 3 * 2)),
        ("token", 1 / 8, 1 / 8),
        ("constant", 1 / (2 * 1 * 100), 1 / (2 * 3 * 100)),
    ],
)
def test_the_kl_term_reaches_all_groups_and_no_replayed_episode(
    aggregation: str, own: float, dead: float
) -> None:
    """A rescued group with one own episode (2 tokens) and a group of 3 without signal (2 tokens each)."""
    rescued = replace(LIVE, rescues=(rescue(0),))
    (update,), stats = samples([rescued, DEAD], aggregation=aggregation, kl=0.1)
    assert [sample.kl_weight for sample in update] == [0.0, own, dead, dead, dead]
    assert [sample.replayed for sample in update] == [True, False, False, False, False]
    assert [sample.advantage for sample in update] == [1.0, -1.0, 0.0, 0.0, 0.0]
    assert [sample.weight for sample in update[2:]] == [0.0, 0.0, 0.0]
    assert stats.without_signal == 1


def test_without_a_kl_term_a_group_without_signal_gives_no_samples() -> None:
    with_kl, _ = samples([DEAD, scored(1, 1, index=2)], kl=0.1, tasks_per_update=1)
    assert [len(update) for update in with_kl] == [3, 2]
    assert samples([DEAD, scored(1, 1, index=2)], kl=0.0)[0] == ((),)


def test_a_group_of_replayed_episodes_alone_has_no_part_in_the_kl_term() -> None:
    replayed = replace(scored(1, 1), rescues=(rescue(0), rescue(1)))
    (update,), _ = samples([replayed, scored(0, 0, index=1)], kl=0.1)
    assert [sample.kl_weight for sample in update] == [1 / (1 * 2 * 2)] * 2


def test_failures_leave_a_smaller_group_and_fewer_than_two_leave_none() -> None:
    partial = group(trajectory(1.0), trajectory(0.0), trajectory(0.0), failures=5)
    lone = group(trajectory(1.0), index=1, failures=7)
    nothing = group(index=2, failures=8)
    (update,), stats = samples([partial, lone, nothing])
    assert [sample.weight for sample in update] == [1 / (1 * 3 * 2)] * 3
    assert stats.total == 3 and stats.too_small == 2 and stats.without_signal == 0


def test_updates_are_whole_groups_by_index() -> None:
    groups = [scored(1, 0, index=i) for i in (4, 2, 0, 3, 1)]
    updates, _ = samples(groups, tasks_per_update=2)
    assert [len(update) for update in updates] == [4, 4, 2]
    assert [update[0].weight for update in updates] == [1 / (2 * 2 * 2), 1 / (2 * 2 * 2), 1 / (1 * 2 * 2)]


def test_an_update_without_any_signal_is_empty_and_keeps_its_place() -> None:
    updates, stats = samples([scored(0, 0), scored(1, 0, index=1), scored(1, 1, index=2)], tasks_per_update=1)
    assert [len(update) for update in updates] == [0, 2, 0]
    assert stats.without_signal == 2


def test_format_weight_makes_signal_among_failures() -> None:
    garbled = group(trajectory(0.0, malformed=True), trajectory(0.0))
    (update,), _ = samples([garbled], format_weight=1.0)
    assert [sample.advantage for sample in update] == [-1.0, 1.0]
    assert samples([garbled], format_weight=0.0)[0] == ((),)


def test_a_group_rescued_by_replay_end_to_end() -> None:
    buffer = ReplayBuffer(ReplayConfig())
    success = trajectory(
        1.0, turn([1, 2], [3, 4, 5], [-0.5, -0.6, -0.7], restart=True, version=2), name="old"
    )
    buffer.rescue([group(success, trajectory(0.0))], Random(0), version=2)
    failed = scored(0, 0, 0, 0, 0, 0, 0, 0, version=6)
    assert samples([failed])[0] == ((),)

    (rescued,) = buffer.rescue([failed], Random(1), version=6)
    (update,), stats = samples([rescued])

    (rescue,) = rescued.rescues
    assert rescue.age == 4
    place = rescue.index
    assert [sample.replayed for sample in update] == [i == place for i in range(8)]
    assert [round(sample.advantage, 2) for sample in update] == [
        2.65 if i == place else -0.38 for i in range(8)
    ]
    assert update[place].token_ids == (1, 2, 3, 4, 5)
    assert update[place].behaviour_logprobs == (-0.5, -0.6, -0.7)
    assert update[place].weight == 1 / (1 * 8 * 3)
    assert stats == GroupStats(total=1, too_small=0, without_signal=0, rescued=1, all_success=0, all_fail=1)


def test_counts() -> None:
    replayed = ReplayBuffer(ReplayConfig()).rescue(
        [scored(1, 1), scored(0, 0, index=1)], Random(0), version=0
    )
    groups = [*replayed, scored(0, 0, task="u", index=2), scored(1, 0, index=3), scored(0.5, 1, index=4)]
    _, stats = samples(groups)
    assert stats == GroupStats(total=5, too_small=0, without_signal=2, rescued=1, all_success=2, all_fail=2)


def test_dynamic_sampling_drops_what_teaches_nothing() -> None:
    live, partial = scored(1, 0), scored(0.5, 1, index=1)
    dead, solved, lone = (
        scored(0, 0, index=2),
        scored(1, 1, index=3),
        group(trajectory(1.0), index=4, failures=1),
    )
    groups = [dead, live, solved, partial, lone]
    assert split_by_signal(groups, LossConfig()) == ([live, partial], [dead, solved, lone])


def test_a_stored_success_beside_one_of_the_groups_own() -> None:
    buffer = ReplayBuffer(ReplayConfig(rare=0.25))
    buffer.rescue([scored(1, 1, version=2)], Random(0), version=2)
    rare, failed, solved = scored(1, 0, 0, 0, index=1), scored(0, 0, 0, index=2), scored(1, 1, index=3)

    groups = buffer.rescue([rare, failed, solved], Random(1), version=6)
    (update,), stats = samples(groups)

    injected = [{rescue.index for rescue in one.rescues} for one in groups]
    assert [len(places) for places in injected] == [1, 1, 0]
    assert [sample.replayed for sample in update] == [n in injected[0] for n in range(4)] + [
        n in injected[1] for n in range(3)
    ]
    assert [round(sample.advantage, 2) for sample in update[:4]] == [
        -1.0 if n and n not in injected[0] else 1.0 for n in range(4)
    ]
    assert stats == GroupStats(total=3, too_small=0, without_signal=1, rescued=2, all_success=1, all_fail=1)


def test_estimators_reach_the_samples() -> None:
    for estimator, expected in {"grpo": 1.0, "mean": 0.5, "rloo": 1.0}.items():
        (update,), _ = samples([scored(1, 0)], advantage=estimator)
        assert update[0].advantage == expected


def test_the_order_of_arrival_does_not_matter() -> None:
    groups = [scored(1, 0, index=0), replace(LIVE, index=1), replace(DEAD, index=2)]
    assert samples(groups) == samples(groups[::-1])


def test_text_without_tokens_is_refused() -> None:
    spoken = trajectory(1.0, turn([], [], restart=True), name="through-a-server")
    with pytest.raises(UserError, match="episode through-a-server: an answer has no tokens"):
        samples([group(spoken, trajectory(0.0))])


def test_the_answers_of_a_teacher_have_no_log_probabilities_and_are_refused_online() -> None:
    own = turn([1], [10, 11], [-0.5, -0.7], restart=True)
    taught = replace(turn([2], [12]), completion=replace(own.completion, logprobs=(), versions=()))
    mixed = trajectory(1.0, own, taught, name="mixed")
    (sample,) = trajectory_samples(mixed, 1.0, 0.25, replayed=False)
    assert (sample.behaviour_logprobs, sample.sampled_tokens, sample.mask) == ((), 4, b"\0\1\1\0\1\1")
    with pytest.raises(UserError, match="episode mixed: its answers are those of a teacher"):
        samples([group(mixed, trajectory(0.0))])
    ((seeded, _),), _ = samples([replace(group(mixed, trajectory(0.0)), rescues=(rescue(0),))])
    assert (seeded.behaviour_logprobs, seeded.replayed, seeded.weight) == ((), True, 1 / 8)


def test_each_sampled_token_is_as_old_as_the_tokens_before_it() -> None:
    """The engine may have cached their keys and values: μ is that of no single version."""
    first = turn([1], [10, 11, 12], restart=True, version=7)
    across = replace(first, completion=replace(first.completion, versions=(7, 6, 7)))
    later, restarted = turn([2], [13], version=7), turn([3], [14], restart=True, version=7)
    groups = [group(trajectory(1.0, across, later, restarted), trajectory(0.0, version=7))]
    ((old, slid, current),) = all_updates(groups, LossConfig(), tasks_per_update=1, token_budget=9, version=7)
    assert old.staleness == (0, 1, 1, 1)
    assert slid.staleness == (1,)
    assert current.staleness == ()


def test_a_replayed_episode_has_no_staleness() -> None:
    rescue = Rescue(index=0, replaced_episode="x", stored_episode="e", age=7)
    rescued = replace(group(trajectory(1.0, version=0), trajectory(0.0, version=7)), rescues=(rescue,))
    (samples_U,) = all_updates([rescued], LossConfig(), tasks_per_update=1, token_budget=9, version=7)
    assert [(sample.replayed, sample.staleness) for sample in samples_U] == [(True, ()), (False, ())]


def test_each_sample_names_the_answers_of_its_tokens() -> None:
    """Three turns of 2, 1 and 3 tokens; the third starts a new sequence."""
    played = trajectory(
        1,
        turn([1], [3, 4], restart=True),
        turn([2], [5]),
        turn([1, 2], [6, 7, 8], restart=True),
        name="batch-1-0-1",
    )
    groups = [group(played, trajectory(0))]
    first, second, _ = all_updates(groups, LossConfig(), tasks_per_update=1, token_budget=9)[0]
    assert [(one.episode_id, one.turn, one.tokens) for one in first.answers] == [
        ("batch-1-0-1", 1, 2),
        ("batch-1-0-1", 2, 1),
    ]
    assert [(one.turn, one.tokens) for one in second.answers] == [(3, 3)]


def test_the_cost_of_prompts_counts_what_continues_the_prompt_before() -> None:
    """Prompts of 4, then 4 + 2 + 3 = 9, then 5 tokens after a restart. Cached: the 6 tokens before the 3."""
    episode = trajectory(
        1.0, turn([1] * 4, [2, 2], restart=True), turn([1] * 3, [2]), turn([1] * 5, [2], restart=True)
    )
    assert prompt_cost([episode]) == (18 / 3, 6 / 18)
    assert prompt_cost([]) == (0.0, 0.0)
