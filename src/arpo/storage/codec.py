"""Converts trajectories and training samples to plain JSON values and back, without loss.

A screenshot is written as its sha256, an action as its class name and fields. There is no pickle; only action
classes are looked up by name. Repeated token ids, such as image placeholders, are run-length encoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from typing import Any, get_args

from arpo.actions import Action, Direction, Hotkey, Point, Scroll
from arpo.types import Completion, Sample, Screenshot, StopReason, Trajectory, Turn

ACTIONS: Mapping[str, type[Action]] = {kind.__name__: kind for kind in get_args(Action)}
MIN_RUN_LENGTH = 4


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
    return Trajectory(
        episode_id=value["episode_id"],
        task_id=value["task_id"],
        turns=tuple(_turn_from_json(turn, screenshots) for turn in value["turns"]),
        final=screenshots[value["final"]],
        score=value["score"],
        malformed=value["malformed"],
        stop=StopReason(value["stop"]),
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


def sample_to_json(sample: Sample) -> dict[str, Any]:
    return {
        "token_ids": ids_to_json(sample.token_ids),
        "mask": ids_to_json([int(sampled) for sampled in sample.mask]),
        "images": [image.sha256 for image in sample.images],
        "behaviour_logprobs": list(sample.behaviour_logprobs),
        "advantage": sample.advantage,
        "weight": sample.weight,
        "replayed": sample.replayed,
    }


def sample_from_json(value: Mapping[str, Any], screenshots: Mapping[str, Screenshot]) -> Sample:
    return Sample(
        token_ids=ids_from_json(value["token_ids"]),
        mask=tuple(map(bool, ids_from_json(value["mask"]))),
        images=tuple(screenshots[name] for name in value["images"]),
        behaviour_logprobs=tuple(value["behaviour_logprobs"]),
        advantage=value["advantage"],
        weight=value["weight"],
        replayed=value["replayed"],
    )


def action_to_json(action: Action) -> dict[str, Any]:
    """For example {"do": "Click", "point": {"x": 3, "y": 4}}."""
    return {"do": type(action).__name__, **asdict(action)}


def action_from_json(value: Mapping[str, Any]) -> Action:
    kind = ACTIONS[value["do"]]
    arguments: dict[str, Any] = {entry.name: value[entry.name] for entry in fields(kind)}
    for name in ("point", "start", "end"):
        if arguments.get(name) is not None:
            arguments[name] = Point(**arguments[name])
    if kind is Scroll:
        arguments["direction"] = Direction(arguments["direction"])
    if kind is Hotkey:
        arguments["keys"] = tuple(arguments["keys"])
    return kind(**arguments)


def ids_to_json(token_ids: Sequence[int]) -> list[int | list[int]]:
    """Run-length encode: (5, 7, 7, 7, 7, 9) becomes [5, [7, 4], 9]."""
    encoded: list[int | list[int]] = []
    for token, run in groupby(token_ids):
        count = sum(1 for _ in run)
        encoded += [[token, count]] if count >= MIN_RUN_LENGTH else [token] * count
    return encoded


def ids_from_json(encoded: Sequence[int | list[int]]) -> tuple[int, ...]:
    token_ids: list[int] = []
    for entry in encoded:
        token_ids += [entry] if isinstance(entry, int) else [entry[0]] * entry[1]
    return tuple(token_ids)


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
            "policy_version": completion.policy_version,
        },
        "actions": [action_to_json(action) for action in turn.actions],
        "error": turn.error,
    }


def _turn_from_json(value: Mapping[str, Any], screenshots: Mapping[str, Screenshot]) -> Turn:
    completion = value["completion"]
    return Turn(
        screenshot=screenshots[value["screenshot"]],
        context=ids_from_json(value["context"]),
        images=tuple(screenshots[name] for name in value["images"]),
        restart=value["restart"],
        completion=Completion(
            token_ids=ids_from_json(completion["token_ids"]),
            logprobs=tuple(completion["logprobs"]),
            text=completion["text"],
            finish=completion["finish"],
            policy_version=completion["policy_version"],
        ),
        actions=tuple(action_from_json(action) for action in value["actions"]),
        error=value["error"],
    )
