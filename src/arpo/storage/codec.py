"""Converts trajectories and training samples to plain JSON values and back, without loss.

A screenshot is written as its sha256. There is no pickle; only action classes are looked up by name.
Repeated token ids, such as image placeholders, are run-length encoded.

Reading checks every type (`from_json`). A wrong value raises ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite
from typing import Any

from arpo.actions import Action, action_from_json, action_to_json
from arpo.config.changes import Change
from arpo.storage.from_json import INTEGER_LIMIT, Readers, from_json
from arpo.types import Completion, Failure, Group, Rescue, Sample, Screenshot, StopReason, Trajectory, Turn

# An episode id begins with one of these: batch-4-0-1 (lock step), group-17-1 (asynchronous training),
# eval12-train-0-0, collect-7-0, seed-collect-7-0 (replay.seeds). The episode of `arpo play` is play.
BATCH, GROUP, EVALUATED, COLLECTED, PLAYED = "batch", "group", "eval", "collect", "play"
SEED = "seed"
MIN_RUN_LENGTH = 4
MAX_IDS = 1 << 24  # tokens in one list: a damaged run length must not fill the memory


@dataclass(frozen=True, slots=True)
class Runs:
    """Integers as pairs of a value and a count. They are not expanded, because a count may be damaged."""

    pairs: Sequence[tuple[int, int]]

    @property
    def total(self) -> int:
        return sum(count for _, count in self.pairs)

    def expand(self) -> tuple[int, ...]:
        return tuple([value for value, count in self.pairs for _ in range(count)])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """A completion in its stored form. The answer of a teacher has only its text and tokens."""

    text: str
    token_ids: Runs
    logprobs: tuple[float, ...]
    finish: str
    versions: Runs | None = None
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    policy_version: int | None = None  # of all tokens, in older files

    def __post_init__(self) -> None:
        tokens, versions = self.token_ids.total, self.token_versions.total
        if not len(self.logprobs) == versions or versions not in (0, tokens):
            raise ValueError(
                f"an answer has {tokens} tokens, {len(self.logprobs)} log-probabilities and {versions} "
                "policy versions"
            )
        if self.alternatives and len(self.alternatives) != tokens:
            raise ValueError(f"an answer has {tokens} tokens, and alternatives of {len(self.alternatives)}")

    @property
    def token_versions(self) -> Runs:
        if self.versions is not None:
            return self.versions
        if self.policy_version is None:
            raise ValueError("no 'versions'")
        return Runs([(self.policy_version, self.token_ids.total)])

    def completion(self) -> Completion:
        return Completion(
            token_ids=self.token_ids.expand(),
            logprobs=self.logprobs,
            text=self.text,
            finish=self.finish,
            versions=self.token_versions.expand(),
            alternatives=self.alternatives,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TurnOutline:
    screenshot: str
    images: tuple[str, ...]
    completion: StoredAnswer
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _EpisodeOutline:
    """A trajectory in its stored form, without the parts that `stored_episode` does not need."""

    episode_id: str
    task_id: str
    score: float
    malformed: bool
    stop: StopReason
    final: str
    turns: tuple[_TurnOutline, ...]
    instruction: str = ""
    evaluated: float | None = None

    def __post_init__(self) -> None:
        if not self.turns:
            raise ValueError("the episode has no turns")
        if not 0 <= self.score <= 1:
            raise ValueError(f"score is {self.score}, not in [0, 1]")
        if self.evaluated is not None and not 0 <= self.evaluated <= 1:
            raise ValueError(f"evaluated is {self.evaluated}, not in [0, 1]")

    @property
    def screenshots(self) -> tuple[str, ...]:
        names = [name for turn in self.turns for name in (*turn.images, turn.screenshot)]
        return tuple(dict.fromkeys([*names, self.final]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEpisode:
    """The outcome of a stored episode. `has_tokens` is false for answers of a chat server, which has text."""

    episode_id: str
    task_id: str
    score: float
    malformed: bool
    stop: StopReason
    steps: int
    policy_version: int  # the oldest of its tokens
    error: str  # of the last answer; "" if it parsed
    has_tokens: bool
    screenshots: tuple[str, ...]  # sha256, in order of first use
    instruction: str = ""  # of the environment, in place of the task's
    evaluated: float | None = None  # with reward.judge: the evaluator's own score, if the task has one


def stored_episode(value: Any) -> StoredEpisode:
    """Read an outcome from the JSON form of a trajectory. Contexts and actions are not checked."""
    outline = from_json(value, _EpisodeOutline, READERS)
    answers = [turn.completion for turn in outline.turns]
    versions = [min((version for version, _ in one.token_versions.pairs), default=0) for one in answers]
    return StoredEpisode(
        episode_id=outline.episode_id,
        task_id=outline.task_id,
        score=outline.score,
        malformed=outline.malformed,
        stop=outline.stop,
        steps=len(answers),
        policy_version=min(versions),
        error=outline.turns[-1].error,
        has_tokens=all(one.token_ids.pairs for one in answers),
        screenshots=outline.screenshots,
        instruction=outline.instruction,
        evaluated=outline.evaluated,
    )


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """`episode_id` is the first key: a reader indexes lines without parsing them completely."""
    return {
        "episode_id": trajectory.episode_id,
        "task_id": trajectory.task_id,
        "score": trajectory.score,
        "malformed": trajectory.malformed,
        "stop": trajectory.stop.value,
        **({"instruction": trajectory.instruction} if trajectory.instruction else {}),
        **({} if trajectory.evaluated is None else {"evaluated": trajectory.evaluated}),
        "final": trajectory.final.sha256,
        "turns": [_turn_to_json(turn) for turn in trajectory.turns],
    }


def trajectory_from_json(value: Any, read: Callable[[Sequence[str]], Mapping[str, Screenshot]]) -> Trajectory:
    """`read` returns the screenshots of the trajectory by their names."""
    screenshots = read(screenshot_names(value))
    trajectory = from_json(value, Trajectory, {**READERS, Screenshot: screenshots.__getitem__})
    trajectory.sequences()  # raises ValueError if turns do not fit together
    return trajectory


def screenshots_of(trajectory: Trajectory) -> list[Screenshot]:
    """Distinct screenshots of the episode, in order of their first use."""
    seen: dict[str, Screenshot] = {}
    for turn in trajectory.turns:
        for shot in (*turn.images, turn.screenshot):
            seen.setdefault(shot.sha256, shot)
    seen.setdefault(trajectory.final.sha256, trajectory.final)
    return list(seen.values())


def screenshot_names(value: Any) -> tuple[str, ...]:
    """The sha256 of `screenshots_of`, in the same order, from the JSON form."""
    return from_json(value, _EpisodeOutline, READERS).screenshots


def check_numbers(record: Mapping[str, Any]) -> None:
    """Check a line of metrics or timing: a step, and numbers or null."""
    step = from_json(record, _Step).step
    if step < 0:
        raise ValueError("step is not a number of batches")
    from_json(record, dict[str, float | None], _FINITE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A group of a trained batch, as trained: after replay.

    Lists have one entry per trained episode. `versions` are the oldest of each episode's tokens.
    """

    step: int  # the batch, counted from 1
    group: str  # its episodes are GROUP-0, GROUP-1, …
    task: str = ""
    version: int = 0  # of the weights before the batch
    episodes: tuple[str, ...] = ()
    versions: tuple[int, ...] = ()
    rewards: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    rescues: tuple[Rescue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCalls:
    """A line of calls.jsonl: an attempt at an episode, or the stages of a batch.

    `calls` are name, begin in seconds since the start of the run, and duration.
    """

    calls: tuple[tuple[str, float, float], ...]
    episode: str | None = None
    host: str = ""
    fault: str = ""
    step: int | None = None


def store_group(
    step: int, version: int, group: Group, rewards: Sequence[float], advantages: Sequence[float]
) -> StoredGroup:
    """The record of a group of batch `step`, trained by weights of this version."""
    episodes = group.trajectories
    played = [one.replaced_episode for one in group.rescues] or [one.episode_id for one in episodes]
    first = (*played, *(failure.episode_id for failure in group.failures))[0]
    return StoredGroup(
        step=step,
        group=group_of(first),
        task=group.task_id,
        version=version,
        episodes=tuple(one.episode_id for one in episodes),
        versions=tuple(one.policy_version for one in episodes),
        rewards=tuple(rewards),
        advantages=tuple(advantages),
        rescues=group.rescues,
    )


def group_of(episode_id: str) -> str:
    """The id without its last number: batch-4-0 for batch-4-0-1."""
    return episode_id.rpartition("-")[0] or episode_id


def is_training_episode(episode_id: str) -> bool:
    """Whether it was played for training: not for an evaluation, and not a seed of replay."""
    return not episode_id.startswith((EVALUATED, f"{SEED}-"))


def stored_group(value: Any) -> StoredGroup:
    """Read a line of groups.jsonl. Raises ValueError if its lists have different lengths."""
    group = from_json(value, StoredGroup, {**READERS, **_FINITE})
    if len({len(one) for one in (group.episodes, group.versions, group.rewards, group.advantages)}) > 1:
        raise ValueError("a group has lists of different lengths")
    if not all(0 <= rescue.index < len(group.episodes) for rescue in group.rescues):
        raise ValueError("a replayed episode has no place in its group")
    return group


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluation:
    """A line of evaluations: batch, episodes, landmark, and by task set the scores of its tasks."""

    step: int
    episodes: int
    landmark: str
    sets: dict[str, dict[str, tuple[float, ...]]]
    failures: dict[str, int] = field(default_factory=dict)


def check_evaluation(record: Mapping[str, Any]) -> None:
    """Check a line of evaluations."""
    evaluation = from_json(record, _Evaluation, _FINITE)
    if evaluation.step < 0 or evaluation.episodes < 0:
        raise ValueError("step or episodes is not a count")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainingEpisodes:
    batches: float
    first: tuple[float, float]
    last: tuple[float, float]

    def __post_init__(self) -> None:
        if not self.first[1] * self.last[1]:
            raise ValueError("no episodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summary:
    """The results in a summary. Other parts, such as the recipe, are not read."""

    success: dict[str, dict[str, float | None]] = field(default_factory=dict)
    counts: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    kinds: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict)
    groups: dict[str, float | None] = field(default_factory=dict)
    training_episodes: _TrainingEpisodes | None = None
    episodes: float | None = None
    failures: float | None = None
    skipped_updates: float | None = None
    untrained_batches: float | None = None
    seconds: float | None = None
    changes: tuple[Change, ...] = ()


def check_summary(record: Mapping[str, Any]) -> None:
    """Check the results in a summary."""
    from_json(record, _Summary, _FINITE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    changes: tuple[Change, ...] = ()


def parse_changes(value: Any) -> tuple[Change, ...]:
    """The content of changes.json. Raises ValueError if it is damaged."""
    return from_json(value, _Changes).changes


def failure_from_json(value: Any) -> Failure:
    return from_json(value, Failure)


def sample_to_json(sample: Sample) -> dict[str, Any]:
    return {
        "token_ids": ids_to_json(sample.token_ids),
        "mask": ids_to_json(bytes(sample.mask)),
        "images": [image.sha256 for image in sample.images],
        "behaviour_logprobs": list(sample.behaviour_logprobs),
        "advantage": sample.advantage,
        "weight": sample.weight,
        "replayed": sample.replayed,
        "kl_weight": sample.kl_weight,
        "teacher_weight": sample.teacher_weight,
        "staleness": ids_to_json(sample.staleness),
    }


def sample_from_json(value: Any, screenshots: Mapping[str, Screenshot]) -> Sample:
    mask = {Sequence[int]: lambda encoded: bytes(ids_from_json(encoded))}
    return from_json(value, Sample, {**READERS, **mask, Screenshot: screenshots.__getitem__})


def ids_to_json(token_ids: Sequence[int]) -> list[int | list[int]]:
    """Run-length encode: (5, 7, 7, 7, 7, 9) becomes [5, [7, 4], 9]."""
    encoded: list[int | list[int]] = []
    for token, run in groupby(token_ids):
        count = len(list(run))
        encoded += [[token, count]] if count >= MIN_RUN_LENGTH else [token] * count
    return encoded


def ids_from_json(encoded: Any) -> tuple[int, ...]:
    return runs_from_json(encoded).expand()


def runs_from_json(encoded: Any) -> Runs:
    """Read what `ids_to_json` wrote."""
    if not isinstance(encoded, list):
        raise ValueError("must be a list of integers")
    runs = Runs(
        [(entry, 1) if type(entry) is int else from_json(entry, tuple[int, int]) for entry in encoded]
    )
    if min((count for _, count in runs.pairs), default=0) < 0 or runs.total > MAX_IDS:
        raise ValueError(f"must be 0 to {MAX_IDS:,} integers, not {runs.total:,}")
    if max((abs(value) for value, _ in runs.pairs), default=0) >= INTEGER_LIMIT:
        raise ValueError("an integer of more than 63 bits")
    return runs


def _finite(value: Any) -> float:
    number = from_json(value, float)
    if not isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _answer_from_json(value: Any) -> Completion:
    return from_json(value, StoredAnswer, READERS).completion()


# Types with a form of their own in files.
READERS: Readers = {
    Action: action_from_json,
    Completion: _answer_from_json,
    Runs: runs_from_json,
    tuple[int, ...]: ids_from_json,
}
_FINITE: Readers = {float: _finite}


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    completion = turn.completion
    return {
        "screenshot": turn.screenshot.sha256,
        "context": ids_to_json(turn.context),
        "images": [image.sha256 for image in turn.images],
        "restart": turn.restart,
        "completion": {
            "text": completion.text,
            "token_ids": ids_to_json(completion.token_ids),
            "logprobs": list(completion.logprobs),
            "finish": completion.finish,
            "versions": ids_to_json(completion.versions),
            **({"alternatives": completion.alternatives} if completion.alternatives else {}),
        },
        "actions": [action_to_json(action) for action in turn.actions],
        "error": turn.error,
        **({"after": turn.after} if turn.after else {}),
    }
