"""Prompts: what the model had before it when it answered a step, as messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from arpo.errors import UserError
from arpo.storage.codec import runs_from_json
from arpo.storage.files import damage
from arpo.viewer.run_index import MAX_TOKENS
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Json
from arpo.viewer.steps import answer_text

START, END, IMAGE = "<|im_start|>", "<|im_end|>", "<|image_pad|>"  # of the chat template
FRAMES = ("<|vision_start|>", "<|vision_end|>")
NOT_STORED = "The prompts of this episode are not stored: a server received them as text."
NO_TOKENIZER = "The text of prompts needs tokenizer.json in the run's model/ or in model.path."


def prompts_page(run: RunSource, episode: str, step: int) -> Json:
    """The messages of the prompt of a step: role, text, number of screenshots, and the step of an answer.

    A prompt begins anew when old screenshots leave the window; `first` is the first step that it contains.
    """
    turns = run.record(episode)["turns"]
    if not 1 <= step <= len(turns):
        raise UserError(f"step {step}: the episode has {len(turns)} steps")
    if run.tokenizer is None:
        return no_prompts(step, NO_TOKENIZER)
    with damage(f"{episode}: step {step}"):
        numbers = _sequence(turns, step)
        contexts = [runs_from_json(turns[number - 1]["context"]) for number in numbers]
        if sum(context.total for context in contexts) > MAX_TOKENS:
            raise ValueError(f"more than {MAX_TOKENS:,} tokens")
        messages: list[Json] = []
        for number, context in zip(numbers, contexts, strict=True):
            messages += _messages(run.tokenizer, context.expand())
            if number < step:
                answer = {"role": "assistant", "text": answer_text(turns[number - 1]), "images": 0}
                messages.append({**answer, "step": number})
    total = sum(context.total for context in contexts)
    note = "" if total else NOT_STORED
    return {"step": step, "first": numbers[0], "tokens": total, "note": note, "messages": messages}


def _sequence(turns: Sequence[Json], step: int) -> list[int]:
    """The steps of the token sequence up to this one. An agent program may go on with an older sequence."""
    numbers = [step]
    while numbers[0] > 1 and not turns[numbers[0] - 1]["restart"]:
        before = turns[numbers[0] - 1].get("after") or numbers[0] - 1
        if not 0 < before < numbers[0]:
            raise ValueError(f"step {numbers[0]} continues step {before}")
        numbers.insert(0, before)
    return numbers


def no_prompts(step: int, reason: str) -> Json:
    return {"step": step, "first": step, "tokens": 0, "note": reason, "messages": []}


def _messages(tokenizer: Any, ids: Sequence[int]) -> Iterator[Json]:
    """Split at the tokens of the template. The empty beginning of the next answer is left out."""
    start, end, image = map(tokenizer.token_to_id, (START, END, IMAGE))
    frames = {tokenizer.token_to_id(frame) for frame in FRAMES}
    text: list[int] = []
    images, previous, inside = 0, None, start not in ids
    for token in (*ids, start):
        if token in (start, end):
            if inside and (message := _message(tokenizer, text, images)):
                yield message
            text, images, inside = [], 0, token == start
        elif token == image:
            images += previous != image
        elif token not in frames:
            text.append(token)
        previous = token


def _message(tokenizer: Any, ids: Sequence[int], images: int) -> Json | None:
    try:
        decoded = str(tokenizer.decode(list(ids), skip_special_tokens=False))
    except (OverflowError, TypeError, ValueError):
        decoded = "\ufffd"
    role, newline, text = decoded.partition("\n")
    if not newline:
        role, text = "", decoded
    if not text.strip() and not images:
        return None
    return {"role": role, "text": text.strip("\n"), "images": images, "step": None}
