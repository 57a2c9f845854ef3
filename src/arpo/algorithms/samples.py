"""Groups to training samples: who takes part in an update, with which advantage and which weight.

A sample's weight holds the objective's whole normalisation, so a loss is a plain weighted sum over tokens and
its gradient does not depend on how samples are packed or spread. A group is never split across updates.
Groups without signal are counted, and never become samples. What was sampled is trained as it is; text that
came without tokens is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from arpo.algorithms.advantages import advantages, has_signal
from arpo.algorithms.rewards import reward
from arpo.config import LossConfig
from arpo.errors import UserError
from arpo.types import Group, Sample, Screenshot, Trajectory

Updates = tuple[tuple[Sample, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """What became of a batch's groups. All successes and all failures are those of a group's own episodes."""

    total: int
    too_small: int  # failures left fewer than two episodes: no part in the update
    without_signal: int  # every reward the same, after replay
    rescued: int  # got at least one stored success
    all_success: int
    all_fail: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    group: Group
    advantages_G: tuple[float, ...]
    live: bool

    @property
    def sampled_tokens(self) -> int:
        return sum(trajectory.sampled_tokens for trajectory in self.group.trajectories)


def samples_of(
    groups: Sequence[Group], loss: LossConfig, *, tasks_per_update: int, token_budget: int, success: float
) -> tuple[Updates, GroupStats]:
    """The samples of each update, `tasks_per_update` groups each in the order of their index; and the counts.

    `token_budget` is the most that one episode may sample, the divisor of aggregation "constant"; `success`
    the score from which an episode counts as one. An update none of whose groups has signal is empty.
    """
    _refuse_text(groups)
    in_order = sorted(groups, key=lambda group: group.index)
    scored = [_score(group, loss) for group in in_order if len(group.trajectories) >= 2]
    updates = tuple(
        tuple(_update_samples(scored[start : start + tasks_per_update], loss, token_budget))
        for start in range(0, len(scored), tasks_per_update)
    )
    return updates, _stats(groups, scored, success)


def _refuse_text(groups: Sequence[Group]) -> None:
    """What a text server answered has no tokens, and its words are never tokenised again."""
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        if not all(turn.completion.token_ids for turn in trajectory.turns):
            raise UserError(
                f"episode {trajectory.episode_id}: an answer in it has no tokens, as those of a text server: "
                "such episodes are for evaluation; train with an engine that gives tokens"
            )


def split_by_signal(groups: Sequence[Group], loss: LossConfig) -> tuple[list[Group], list[Group]]:
    """Dynamic sampling's choice: (the groups that teach something, those to drop and sample others for)."""
    live = [group for group in groups if has_signal(_rewards(group, loss))]
    dropped = [group for group in groups if not has_signal(_rewards(group, loss))]
    return live, dropped


def _rewards(group: Group, loss: LossConfig) -> list[float]:
    return [reward(trajectory, loss.format_weight) for trajectory in group.trajectories]


def _score(group: Group, loss: LossConfig) -> _Scored:
    rewards_G = _rewards(group, loss)
    return _Scored(
        group=group, advantages_G=advantages(rewards_G, loss.advantage), live=has_signal(rewards_G)
    )


def _update_samples(scored: Sequence[_Scored], loss: LossConfig, token_budget: int) -> Iterator[Sample]:
    counted = [one for one in scored if one.live or loss.denominator == "all"]
    counted_tokens = sum(one.sampled_tokens for one in counted)
    for one in filter(lambda one: one.live, scored):
        trajectories = one.group.trajectories
        injected = {rescue.index for rescue in one.group.rescues}
        for index, (trajectory, advantage) in enumerate(zip(trajectories, one.advantages_G, strict=True)):
            divisor = {
                "sequence": len(counted) * len(trajectories) * trajectory.sampled_tokens,
                "token": counted_tokens,
                "constant": len(counted) * len(trajectories) * token_budget,
            }[loss.aggregation]
            yield from trajectory_samples(trajectory, advantage, 1.0 / divisor, index in injected)


@dataclass(slots=True)
class _Sequence:
    token_ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    images: list[Screenshot] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


def trajectory_samples(
    trajectory: Trajectory, advantage: float, weight: float, replayed: bool
) -> Iterator[Sample]:
    """One sample while turns continue each other; another from each turn at which the sequence began anew."""
    sequences: list[_Sequence] = []
    for turn in trajectory.turns:
        if turn.restart:
            sequences.append(_Sequence())
        sequence, sampled = sequences[-1], turn.completion.token_ids
        sequence.token_ids += [*turn.context, *sampled]
        sequence.mask += [False] * len(turn.context) + [True] * len(sampled)
        sequence.images += turn.images
        sequence.logprobs += turn.completion.logprobs
    for sequence in sequences:
        yield Sample(
            token_ids=tuple(sequence.token_ids),
            mask=tuple(sequence.mask),
            images=tuple(sequence.images),
            behaviour_logprobs=tuple(sequence.logprobs),
            advantage=advantage,
            weight=weight,
            replayed=replayed,
        )


def _stats(groups: Sequence[Group], scored: Sequence[_Scored], success: float) -> GroupStats:
    own = [_own_successes(one.group, success) for one in scored]
    return GroupStats(
        total=len(groups),
        too_small=len(groups) - len(scored),
        without_signal=sum(not one.live for one in scored),
        rescued=sum(bool(one.group.rescues) for one in scored),
        all_success=sum(map(all, own)),
        all_fail=sum(not any(group) for group in own),
    )


def _own_successes(group: Group, success: float) -> list[bool]:
    """Of each episode, whether it was one; what gave way to a stored success was not."""
    injected = {rescue.index for rescue in group.rescues}
    return [
        trajectory.score >= success and index not in injected
        for index, trajectory in enumerate(group.trajectories)
    ]
