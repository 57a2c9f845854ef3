"""Turns groups into training samples with advantages and weights.

The weight of a sample contains the whole normalisation of the objective. So the loss is a weighted sum over
tokens, and its gradient does not depend on micro-batches or ranks. A group is never split across updates.
Groups without signal are counted, but they give samples only for the KL term (loss.kl). Sampled tokens are
trained unchanged. Episodes without tokens are refused, and those without log-probabilities unless replay put
them into a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from arpo.algorithms.credit import Credit
from arpo.config import LossConfig
from arpo.errors import UserError
from arpo.types import Answer, Group, Sample, Screenshot, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """Counts of a batch's groups, after replay. `all_success` and `all_fail` ignore replayed episodes."""

    total: int
    too_small: int  # fewer than two episodes were played: not trained
    without_signal: int  # all advantages are 0, as with equal rewards
    rescued: int  # received a stored success
    all_success: int
    all_fail: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scored:
    group: Group
    advantages_G: tuple[float, ...]

    @property
    def live(self) -> bool:
        return any(self.advantages_G)

    @property
    def injected(self) -> set[int]:
        """Indices of the replayed episodes."""
        return {rescue.index for rescue in self.group.rescues}

    @property
    def own(self) -> list[Trajectory]:
        """The episodes of the current policy."""
        injected = self.injected
        return [each for index, each in enumerate(self.group.trajectories) if index not in injected]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mean:
    """A mean over the tokens of groups, normalised as in loss.aggregation."""

    aggregation: str
    token_budget: int
    groups: int
    tokens: int

    def weight(self, trajectory: Trajectory, group_size: int) -> float:
        """Factor of each token of a trajectory whose group contributes `group_size` trajectories."""
        divisor = {
            "sequence": self.groups * group_size * trajectory.sampled_tokens,
            "token": self.tokens,
            "constant": self.groups * group_size * self.token_budget,
        }[self.aggregation]
        return 1.0 / divisor


def build_updates(
    groups: Sequence[Group],
    loss: LossConfig,
    *,
    tasks_per_update: int,
    token_budget: int,
    version: int = 0,
    credit: Credit | None = None,
) -> Iterator[Iterator[Sample]]:
    """The samples of each update: `tasks_per_update` groups per update, in the order of their index.

    A sample is made when it is taken. `token_budget` is the maximum number of tokens per episode, the divisor
    of aggregation "constant". `version` is the policy version that learns: tokens of older versions are
    marked as stale. `credit` gives rewards and advantages; None: the built-in ones of `loss`. Without a KL
    term, an update is empty if none of its groups has signal. Raises UserError for episodes of other models.
    """
    _refuse_others(groups)
    scored = _scored(groups, credit or Credit(loss))
    for start in range(0, len(scored), tasks_per_update):
        yield _update_samples(scored[start : start + tasks_per_update], loss, token_budget, version)


def count_groups(
    groups: Sequence[Group], loss: LossConfig, *, success: float, credit: Credit | None = None
) -> GroupStats:
    """Count the groups of a batch. A score of at least `success` is a success."""
    scored = _scored(groups, credit or Credit(loss))
    own = [_own_successes(one.group, success) for one in scored]
    return GroupStats(
        total=len(groups),
        too_small=len(groups) - len(scored),
        without_signal=sum(not one.live for one in scored),
        rescued=sum(bool(one.group.rescues) for one in scored),
        all_success=sum(map(all, own)),
        all_fail=sum(not any(group) for group in own),
    )


def _scored(groups: Sequence[Group], credit: Credit) -> list[_Scored]:
    """Groups of two or more episodes, in the order of their index."""
    in_order = sorted(groups, key=lambda group: group.index)
    return [
        _Scored(group=group, advantages_G=credit.advantages(group))
        for group in in_order
        if len(group.trajectories) >= 2
    ]


def _refuse_others(groups: Sequence[Group]) -> None:
    """Refuse answers of other models: a ratio needs the tokens and log-probabilities of the policy.

    Seeds of replay need no log-probabilities: their ratio starts at the policy of the batch (`losses`).
    """
    for group in groups:
        replayed = {rescue.index for rescue in group.rescues}
        for index, trajectory in enumerate(group.trajectories):
            if not all(turn.completion.token_ids for turn in trajectory.turns):
                raise UserError(
                    f"episode {trajectory.episode_id}: an answer has no tokens, like those of a chat server. "
                    "Such episodes are for evaluation only. Train with an engine that returns tokens"
                )
            if index not in replayed and not all(turn.completion.logprobs for turn in trajectory.turns):
                raise UserError(
                    f"episode {trajectory.episode_id}: its answers are those of a teacher, without "
                    "log-probabilities of the policy. Train on them offline, for example train.method = sft, "
                    "or name their folder as replay.seeds"
                )


def split_by_signal(
    groups: Sequence[Group], loss: LossConfig, credit: Credit | None = None
) -> tuple[list[Group], list[Group]]:
    """(groups with signal, groups without). Dynamic sampling drops the latter and plays others."""
    credit = credit or Credit(loss)
    live: list[Group] = []
    dropped: list[Group] = []
    for group in groups:
        (live if any(credit.advantages(group)) else dropped).append(group)
    return live, dropped


def _update_samples(
    scored: Sequence[_Scored], loss: LossConfig, token_budget: int, version: int
) -> Iterator[Sample]:
    """The samples of one update.

    The KL term is a mean over all groups and their own episodes: its estimate needs tokens of the current
    policy.
    """
    objective, kl = (
        _Mean(
            aggregation=loss.aggregation,
            token_budget=token_budget,
            groups=sum(map(bool, groups)),
            tokens=sum(trajectory.sampled_tokens for group in groups for trajectory in group),
        )
        for groups in ([one.group.trajectories for one in scored], [one.own for one in scored])
    )
    for one in scored:
        trajectories, injected, own = one.group.trajectories, one.injected, len(one.own)
        for index, (trajectory, advantage) in enumerate(zip(trajectories, one.advantages_G, strict=True)):
            replayed = index in injected
            if one.live or (loss.kl and not replayed):
                yield from trajectory_samples(
                    trajectory,
                    advantage,
                    objective.weight(trajectory, len(trajectories)) if one.live else 0.0,
                    replayed,
                    kl_weight=0.0 if replayed else kl.weight(trajectory, own),
                    version=version,
                )


@dataclass(slots=True)
class _Sequence:
    token_ids: list[int] = field(default_factory=list)
    mask: bytearray = field(default_factory=bytearray)
    images: list[Screenshot] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # the oldest so far, for each sampled token
    answers: list[Answer] = field(default_factory=list)


def trajectory_samples(
    trajectory: Trajectory,
    advantage: float,
    weight: float,
    replayed: bool,
    kl_weight: float = 0.0,
    version: int = 0,
) -> Iterator[Sample]:
    """Yield one sample per token sequence (`Trajectory.sequences`).

    `version` is the policy version that learns. A token is as stale as the oldest token of its episode so
    far: an engine may have sampled it with cached keys and values of that version. Replayed samples have no
    staleness: they have an age of their own, and a ratio mode of their own.
    """
    indices = trajectory.sequences()
    sequences = [_Sequence() for _ in indices]
    of_turn = {index: sequences[number] for number, own in enumerate(indices) for index in own}
    oldest = version
    for number, turn in enumerate(trajectory.turns, 1):
        sequence, sampled = of_turn[number - 1], turn.completion.token_ids
        sequence.token_ids += turn.context
        sequence.token_ids += sampled
        sequence.mask += b"\0" * len(turn.context) + b"\1" * len(sampled)
        sequence.images += turn.images
        sequence.logprobs += turn.completion.logprobs
        sequence.answers.append(Answer(episode_id=trajectory.episode_id, turn=number, tokens=len(sampled)))
        oldest_so_far = list(accumulate(turn.completion.versions, min, initial=oldest))
        oldest = oldest_so_far[-1]
        sequence.versions += oldest_so_far[1:]
    for sequence in sequences:
        known = len(sequence.logprobs) == sequence.mask.count(1)
        yield Sample(
            token_ids=tuple(sequence.token_ids),
            mask=bytes(sequence.mask),
            images=tuple(sequence.images),
            behaviour_logprobs=tuple(sequence.logprobs) if known else (),
            advantage=advantage,
            weight=weight,
            replayed=replayed,
            kl_weight=kl_weight,
            staleness=() if replayed else _staleness(version, sequence.versions),
            answers=tuple(sequence.answers),
        )


def teacher_samples(episodes: Sequence[Trajectory]) -> Iterator[Sample]:
    """The teacher's samples of one update (loss.teacher).

    Their loss is the mean of −log π over the tokens of these episodes, whatever else is in the update.
    """
    tokens = sum(episode.sampled_tokens for episode in episodes)
    for episode in episodes:
        for sample in trajectory_samples(episode, advantage=0.0, weight=0.0, replayed=True):
            yield replace(sample, teacher_weight=1 / tokens)


def prompt_cost(trajectories: Iterable[Trajectory]) -> tuple[float, float]:
    """Mean length (tokens) of a prompt, and the cached share of all prompt tokens.

    A prompt after an answer finds the prompt before and the answer in the cache. After a restart, it finds
    nothing.
    """
    lengths: list[int] = []
    cached = 0
    for trajectory in trajectories:
        for sequence in trajectory.sequences():
            length = 0
            for turn in (trajectory.turns[index] for index in sequence):
                cached += length
                lengths.append(length + len(turn.context))
                length = lengths[-1] + len(turn.completion.token_ids)
    total = sum(lengths)
    return (total / len(lengths), cached / total) if total else (0.0, 0.0)


def scored_answer(
    question: Sequence[int],
    images: Sequence[Screenshot],
    answer: Sequence[int],
    logprobs: Sequence[float],
) -> Sample:
    """A sample to be scored, not trained on: one answer with the engine's log-probabilities of its tokens."""
    return Sample(
        token_ids=(*question, *answer),
        mask=b"\0" * len(question) + b"\1" * len(answer),
        images=tuple(images),
        behaviour_logprobs=tuple(logprobs),
        advantage=0.0,
        weight=0.0,
        replayed=False,
    )


def _staleness(version: int, versions: Sequence[int]) -> tuple[int, ...]:
    """Age of each token, () if none is older than `version`. `versions` never grow."""
    return tuple(version - one for one in versions) if versions and versions[-1] < version else ()


def _own_successes(group: Group, success: float) -> list[bool]:
    """For each episode, whether it is a success of the group itself. A replayed episode is not."""
    injected = {rescue.index for rescue in group.rescues}
    return [
        trajectory.score >= success and index not in injected
        for index, trajectory in enumerate(group.trajectories)
    ]
