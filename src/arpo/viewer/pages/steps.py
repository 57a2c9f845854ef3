"""The steps of an episode as JSON: answer, thought, actions and screenshot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from arpo.actions import Action, Point, action_from_json, action_to_json
from arpo.storage.codec import ids_from_json
from arpo.viewer.action_texts import action_label, split_answer
from arpo.viewer.index import as_number
from arpo.viewer.run_index import count_tokens

Shot = Callable[[str], dict[str, Any]]  # the JSON form of a screenshot, by sha256

MAX_STEPS = 2_000
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


def run_steps(record: Mapping[str, Any], shot: Shot) -> list[dict[str, Any]]:
    """All steps. A damaged one becomes an entry with an error."""
    steps = []
    for number, turn in enumerate(record["turns"][:MAX_STEPS], 1):
        try:
            steps.append(_step(number, turn, shot))
        except _DAMAGED as error:
            steps.append({**empty_step(number), "error": f"this step is damaged: {str(error)[:200]}"})
    return steps


def empty_step(number: int) -> dict[str, Any]:
    return {
        "step": number,
        "shot": None,
        "thought": "",
        "action_text": "",
        "answer": "",
        "actions": [],
        "labels": [],
        "error": "",
        "finish": "",
        "tokens": 0,
        "has_tokens": False,
        "seconds": None,
        "times": None,
        "mean_logprob": None,
        "versions": [],
    }


def answer_json(answer: str, actions: Sequence[Action]) -> dict[str, Any]:
    """The fields of every kind of source: the answer, its parts, and its actions."""
    thought, action_text = split_answer(answer)
    drawn = [action for action in actions if _is_finite(action)]
    return {
        "thought": thought,
        "action_text": action_text,
        "answer": answer,
        "actions": [action_to_json(action) for action in drawn],
        "labels": [label for label in map(action_label, actions) if label],
    }


def _step(number: int, turn: Mapping[str, Any], shot: Shot) -> dict[str, Any]:
    completion = turn["completion"]
    logprobs = [value for value in map(as_number, completion["logprobs"]) if value is not None]
    tokens = count_tokens(completion["token_ids"])
    versions = completion.get("versions", [completion.get("policy_version", 0)])
    return {
        **empty_step(number),
        **answer_json(str(completion["text"]), [action_from_json(action) for action in turn["actions"]]),
        "shot": shot(str(turn["screenshot"])),
        "error": str(turn["error"]),
        "finish": str(completion["finish"]),
        "tokens": tokens,
        "has_tokens": tokens > 0,
        "mean_logprob": math.fsum(logprobs) / len(logprobs) if logprobs else None,
        "versions": sorted({entry if isinstance(entry, int) else int(entry[0]) for entry in versions}),
    }


def token_rows(completion: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tokens of an answer with what is stored about each: log-probability and policy version."""
    count = count_tokens(completion["token_ids"])
    ids = ids_from_json(completion["token_ids"])
    if "versions" in completion:
        count_tokens(completion["versions"])
        versions = ids_from_json(completion["versions"])
    else:
        versions = (int(completion["policy_version"]),) * count
    logprobs = [as_number(value) for value in completion["logprobs"]]
    if not len(ids) == len(logprobs) == len(versions):
        raise ValueError("tokens, log-probabilities and versions differ in number")
    empty = {"text": None, "entropy": None, "ratio": None, "clipped": None}
    return [
        {**empty, "id": token, "logprob": logprob, "version": version}
        for token, logprob, version in zip(ids, logprobs, versions, strict=True)
    ]


def _is_finite(action: Action) -> bool:
    """Whether the positions of an action are numbers and can be drawn."""
    points = [value for value in _values(action) if isinstance(value, Point)]
    return all(as_number(coordinate) is not None for point in points for coordinate in (point.x, point.y))


def _values(action: Action) -> list[Any]:
    return [getattr(action, name) for name in asdict(action)]
