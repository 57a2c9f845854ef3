"""The steps of an episode as JSON: answer, thought, actions and screenshot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import arpo.actions as act
from arpo.actions import Action, action_to_json
from arpo.storage.codec import READERS, StoredAnswer
from arpo.storage.from_json import from_json
from arpo.viewer.index import as_number

Json = dict[str, Any]
Shot = Callable[[str], Json]  # the JSON form of a screenshot, by sha256

MAX_STEPS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    screenshot: str
    completion: StoredAnswer
    actions: tuple[Action, ...]
    error: str


def run_steps(record: Mapping[str, Any], shot: Shot) -> list[Json]:
    """All steps. A damaged one becomes an entry with an error."""
    steps = []
    for number, turn in enumerate(record["turns"][:MAX_STEPS], 1):
        try:
            steps.append(_step(number, turn, shot))
        except ValueError as error:
            steps.append({**empty_step(number), "error": f"this step is damaged: {str(error)[:200]}"})
    return steps


def answer_text(turn: Any) -> str:
    """The text of an answer; "" if the step is damaged."""
    completion = turn.get("completion") if isinstance(turn, dict) else None
    text = completion.get("text") if isinstance(completion, dict) else None
    return text if isinstance(text, str) else ""


def empty_step(number: int) -> Json:
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


def answer_json(answer: str, actions: Sequence[Action]) -> Json:
    """The fields of every kind of source: the answer, its parts, and its actions."""
    thought, action_text = split_answer(answer)
    return {
        "thought": thought,
        "action_text": action_text,
        "answer": answer,
        "actions": [action for action in map(action_to_json, actions) if _is_finite(action)],
        "labels": [label for label in map(action_label, actions) if label],
    }


def _step(number: int, value: Any, shot: Shot) -> Json:
    turn = from_json(value, _Turn, READERS)
    answer, tokens = turn.completion, turn.completion.token_ids.total
    logprobs = [logprob for logprob in map(as_number, answer.logprobs) if logprob is not None]
    return {
        **empty_step(number),
        **answer_json(answer.text, turn.actions),
        "shot": shot(turn.screenshot),
        "error": turn.error,
        "finish": answer.finish,
        "tokens": tokens,
        "has_tokens": tokens > 0,
        "mean_logprob": math.fsum(logprobs) / len(logprobs) if logprobs else None,
        "versions": sorted({version for version, _ in answer.token_versions.pairs}),
    }


def _is_finite(action: Mapping[str, Any]) -> bool:
    """Whether the positions of an action are numbers and can be drawn."""
    points = [value for value in action.values() if isinstance(value, Mapping)]
    return all(as_number(coordinate) is not None for point in points for coordinate in point.values())


def split_answer(text: str) -> tuple[str, str]:
    """Thought and actions: ("Open it", "wait()") for the answer "Thought: Open it\\nAction: wait()"."""
    thought, _, action = text.partition("Action:")
    return thought.removeprefix("Thought:").strip(), action.strip()


def action_label(action: Action) -> str:
    """Text of an action without a position; empty for clicks and drags, which are drawn."""
    match action:
        case (
            act.Click()
            | act.DoubleClick()
            | act.RightClick()
            | act.Hover()
            | act.LongPress()
            | act.Drag()
            | act.TripleClick()
            | act.MiddleClick()
        ):
            return ""
        case act.Scroll(direction=direction):
            return f"scroll {direction}"
        case act.Type(text=text, submit=submit):
            return f"type “{text}”{' ⏎' if submit else ''}"
        case act.Hotkey(keys=keys):
            return " + ".join(keys)
        case act.KeyDown(key=key):
            return f"press {key}"
        case act.KeyUp(key=key):
            return f"release {key}"
        case act.MouseDown():
            return "press button"
        case act.MouseUp():
            return "release button"
        case act.GiveAnswer(text=text):
            return f"answer “{text}”"
        case act.OpenApp(name=name):
            return f"open {name}"
        case act.Finished(content=content):
            return f"finished {content}".strip()
        case act.Fail():
            return "fail: infeasible"
        case _:
            return type(action).__name__
