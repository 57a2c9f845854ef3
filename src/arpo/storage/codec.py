"""Converts trajectories and training samples to plain JSON values and back, without loss.

A screenshot is written as its sha256. There is no pickle; only action classes are looked up by name.
Repeated token ids, such as image placeholders, are run-length encoded.

Reading checks every type, because a file may be damaged. A wrong value raises ValueError, KeyError, TypeError
or AttributeError.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import groupby
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from arpo.actions import action_from_json, action_to_json
from arpo.config.task_set_names import TRAINING_EPISODES
from arpo.types import Completion, Failure, Group, Rescue, Sample, Screenshot, StopReason, Trajectory, Turn

# An episode id begins with one of these: batch3-0-1 (lock step), group-17-1 (asynchronous training),
# eval12-train-0-0, collect-7-0.
BATCH, GROUP, EVALUATED, COLLECTED = "batch", "group", "eval", "collect"
MIN_RUN_LENGTH = 4
MAX_IDS = 1 << 24  # tokens in one list: a damaged run length must not fill the memory

_T = TypeVar("_T")


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


def stored_episode(value: Mapping[str, Any]) -> StoredEpisode:
    """Read an outcome from the JSON form of a trajectory. Its turns are not checked."""
    turns = value["turns"]
    return _checked(
        StoredEpisode(
            episode_id=value["episode_id"],
            task_id=value["task_id"],
            score=_score(value["score"]),
            malformed=value["malformed"],
            stop=StopReason(value["stop"]),
            steps=len(turns),
            policy_version=min(min(_versions_from_json(turn["completion"]), default=0) for turn in turns),
            error=turns[-1]["error"],
            has_tokens=all(turn["completion"]["token_ids"] for turn in turns),
            screenshots=tuple(screenshot_names(value)),
        )
    )


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """`episode_id` is the first key: a reader indexes lines without parsing them completely."""
    return {
        "episode_id": trajectory.episode_id,
        "task_id": trajectory.task_id,
        "score": trajectory.score,
        "malformed": trajectory.malformed,
        "stop": trajectory.stop.value,
        "final": trajectory.final.sha256,
        "turns": [_turn_to_json(turn) for turn in trajectory.turns],
    }


def trajectory_from_json(value: Mapping[str, Any], screenshots: Mapping[str, Screenshot]) -> Trajectory:
    if not value["turns"]:
        raise ValueError("the episode has no turns")
    return _checked(
        Trajectory(
            episode_id=value["episode_id"],
            task_id=value["task_id"],
            turns=tuple(_turn_from_json(turn, screenshots) for turn in value["turns"]),
            final=screenshots[value["final"]],
            score=_score(value["score"]),
            malformed=value["malformed"],
            stop=StopReason(value["stop"]),
        )
    )


def screenshots_of(trajectory: Trajectory) -> list[Screenshot]:
    """Distinct screenshots of the episode, in order of their first use."""
    seen: dict[str, Screenshot] = {}
    for turn in trajectory.turns:
        for shot in (*turn.images, turn.screenshot):
            seen.setdefault(shot.sha256, shot)
    seen.setdefault(trajectory.final.sha256, trajectory.final)
    return list(seen.values())


def screenshot_names(value: Mapping[str, Any]) -> list[str]:
    """The sha256 of `screenshots_of`, in the same order, from the JSON form."""
    names = [name for turn in value["turns"] for name in (*turn["images"], turn["screenshot"])]
    return list(dict.fromkeys([*names, value["final"]]))


def check_numbers(record: Mapping[str, Any]) -> None:
    """Check a line of metrics or timing: a step, and numbers or null."""
    step = record["step"]
    if type(step) is not int or step < 0:
        raise ValueError("step is not a number of batches")
    for name, value in record.items():
        if value is not None and not _is_number(value):
            raise ValueError(f"{name!r} is not a number")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A group of a trained batch, as trained: after replay. A dropped one has no more than the first three.

    Lists have one entry per trained episode. `versions` are the oldest of each episode's tokens.
    """

    step: int  # the batch, counted from 1
    group: str  # its episodes are GROUP-0, GROUP-1, …
    dropped: bool = False  # too old for this batch (asynchronous training): its task was played again
    task: str = ""
    version: int = 0  # of the weights before the batch
    episodes: tuple[str, ...] = ()
    versions: tuple[int, ...] = ()
    rewards: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    rescues: tuple[Rescue, ...] = ()


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
    """The id without its last number: batch3-0 for batch3-0-1."""
    return episode_id.rpartition("-")[0] or episode_id


def stored_group(value: Mapping[str, Any]) -> StoredGroup:
    """Read a line of groups.jsonl. Raises ValueError if its lists have different lengths."""
    known = {entry.name: value[entry.name] for entry in fields(StoredGroup) if entry.name in value}
    lists = {name: tuple(entry) for name, entry in known.items() if isinstance(entry, list)}
    names = [entry.name for entry in fields(Rescue)]
    rescues = tuple(Rescue(**{name: one[name] for name in names}) for one in value.get("rescues", ()))
    group = _checked(StoredGroup(**{**known, **lists, "rescues": rescues}))
    if len({len(one) for one in (group.episodes, group.versions, group.rewards, group.advantages)}) > 1:
        raise ValueError("a group has lists of different lengths")
    if not all(map(_is_number, (*group.rewards, *group.advantages))):
        raise ValueError("a reward or advantage is not a finite number")
    if not all(0 <= rescue.index < len(group.episodes) for rescue in group.rescues):
        raise ValueError("a replayed episode has no place in its group")
    return group


def check_evaluation(record: Mapping[str, Any]) -> None:
    """Check a line of evaluations: batch, episodes, landmark, and the scores by task set and task."""
    if not all(type(record[name]) is int and record[name] >= 0 for name in ("step", "episodes")):
        raise ValueError("step or episodes is not a count")
    if not isinstance(record["landmark"], str):
        raise ValueError("landmark is not a text")
    for tasks in record["sets"].values():
        for name, scores in tasks.items():
            if not isinstance(scores, list) or not all(map(_is_number, scores)):
                raise ValueError(f"the scores of {name!r} are not numbers")


SUMMARY_TOTALS = (
    "episodes",
    "failures",
    "dropped_groups",
    "dropped_episodes",
    "skipped_updates",
    "untrained_batches",
    "seconds",
)


def check_summary(record: Mapping[str, Any]) -> None:
    """Check the results in a summary. Other parts, such as the recipe, are not read."""
    for when in ("base", "final"):
        rates = record.get("success", {}).get(when, {}).values()
        counts = record.get("counts", {}).get(when, {}).values()
        if not all(rate is None or _is_number(rate) for rate in rates):
            raise ValueError("a success rate is not a number")
        if not all(len(pair) == 2 and _is_number(pair[0]) and type(pair[1]) is int for pair in counts):
            raise ValueError("counts are not pairs of numbers")
    if counted := record.get(TRAINING_EPISODES):
        first, last = counted["first"], counted["last"]
        numbers = (counted["batches"], *first, *last)
        if len(first) != 2 or len(last) != 2 or not all(map(_is_number, numbers)) or not first[1] * last[1]:
            raise ValueError("the counts of training episodes are not pairs of numbers")
    left_out = [task for tasks in record.get("left_out", {}).values() for task in tasks]
    if not all(isinstance(task, str) for task in left_out):
        raise ValueError("a task that was left out has no name")
    totals = (record.get(name) for name in SUMMARY_TOTALS)
    if not all(value is None or _is_number(value) for value in (*totals, *record.get("groups", {}).values())):
        raise ValueError("a total is not a number")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300  # false for NaN


def failure_from_json(value: Mapping[str, Any]) -> Failure:
    return _checked(Failure(**value))


def sample_to_json(sample: Sample) -> dict[str, Any]:
    return {
        "token_ids": ids_to_json(sample.token_ids),
        "mask": ids_to_json(sample.mask),
        "images": [image.sha256 for image in sample.images],
        "behaviour_logprobs": list(sample.behaviour_logprobs),
        "advantage": sample.advantage,
        "weight": sample.weight,
        "replayed": sample.replayed,
        "kl_weight": sample.kl_weight,
        "staleness": ids_to_json(sample.staleness),
    }


def sample_from_json(value: Mapping[str, Any], screenshots: Mapping[str, Screenshot]) -> Sample:
    return Sample(
        token_ids=ids_from_json(value["token_ids"]),
        mask=bytes(ids_from_json(value["mask"])),
        images=tuple(screenshots[name] for name in value["images"]),
        behaviour_logprobs=tuple(value["behaviour_logprobs"]),
        advantage=value["advantage"],
        weight=value["weight"],
        replayed=value["replayed"],
        kl_weight=value["kl_weight"],
        staleness=ids_from_json(value["staleness"]),
    )


def ids_to_json(token_ids: Sequence[int]) -> list[int | list[int]]:
    """Run-length encode: (5, 7, 7, 7, 7, 9) becomes [5, [7, 4], 9]."""
    encoded: list[int | list[int]] = []
    for token, run in groupby(token_ids):
        count = len(list(run))
        encoded += [[token, count]] if count >= MIN_RUN_LENGTH else [token] * count
    return encoded


def ids_from_json(encoded: Sequence[int | list[int]]) -> tuple[int, ...]:
    token_ids: list[int] = []
    for entry in encoded:
        token, count = (entry, 1) if isinstance(entry, int) else entry
        if count > MAX_IDS - len(token_ids):
            raise ValueError(f"more than {MAX_IDS} tokens")
        token_ids += [token] * count
    return tuple(token_ids)


def _score(value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"score is {value}, not in [0, 1]")
    return value


def _checked(value: _T) -> _T:
    """The dataclass instance, if all of its fields have their declared types. Otherwise raises ValueError."""
    kind: Any = type(value)
    for name, hint in _hints(kind).items():
        if not _fits(getattr(value, name), hint):
            raise ValueError(f"{name} of {type(value).__name__} is of a wrong type")
    return value


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        if inner in (int, float, str):  # long lists: compare the set of their types
            return set(map(type, value)) <= ({int, float} if inner is float else {inner})
        return all(_fits(element, inner) for element in value)
    if is_dataclass(value):
        return isinstance(value, hint) and _checked(value) is value
    if hint is float:
        return type(value) in (int, float)
    return isinstance(value, hint) if hint is not int else type(value) is int


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
        },
        "actions": [action_to_json(action) for action in turn.actions],
        "error": turn.error,
    }


def _turn_from_json(value: Mapping[str, Any], screenshots: Mapping[str, Screenshot]) -> Turn:
    return Turn(
        screenshot=screenshots[value["screenshot"]],
        context=ids_from_json(value["context"]),
        images=tuple(screenshots[name] for name in value["images"]),
        restart=value["restart"],
        completion=completion_from_json(value["completion"]),
        actions=tuple(action_from_json(action) for action in value["actions"]),
        error=value["error"],
    )


def completion_from_json(value: Mapping[str, Any]) -> Completion:
    token_ids, logprobs = ids_from_json(value["token_ids"]), tuple(value["logprobs"])
    if len(token_ids) != len(logprobs):
        raise ValueError(f"an answer has {len(token_ids)} tokens and {len(logprobs)} log-probabilities")
    versions = _versions_from_json(value)
    if len(token_ids) != len(versions):
        raise ValueError(f"an answer has {len(token_ids)} tokens and {len(versions)} policy versions")
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        text=value["text"],
        finish=value["finish"],
        versions=versions,
    )


def _versions_from_json(completion: Mapping[str, Any]) -> tuple[int, ...]:
    """One policy version per token. Older files have one number for the whole answer."""
    if "versions" in completion:
        return ids_from_json(completion["versions"])
    return (completion["policy_version"],) * len(ids_from_json(completion["token_ids"]))
