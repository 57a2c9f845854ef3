"""Tokens of an answer: texts and log-probabilities.

With rollout.alternatives also other likely tokens; with store.token_stats also entropy, ratio and clipping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from arpo.errors import UserError
from arpo.storage.codec import READERS, StoredAnswer
from arpo.storage.files import damage
from arpo.storage.from_json import from_json
from arpo.storage.run_folder import TOKEN_STATS
from arpo.viewer.index import as_number, read_indexed
from arpo.viewer.run_index import MAX_TOKENS, clipped_id
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Json

HOW_TO_STORE = (
    "This run stores no entropy, ratio and clipping per token. Train with --store.token_stats true to store "
    "them."
)
NOT_TRAINED = "No update has trained this answer: it has no entropy, ratio and clipping."
MAX_UPDATES = 200  # of one answer: the newest ones
TRAINED = ("entropy", "ratio", "clipped")
_BROKEN = "\ufffd"  # of a part of a character
_MAX_PARTS = 4  # tokens of one character


def tokens_page(run: RunSource, episode: str, step: int, chosen: int | None) -> Json:
    """The tokens of a step. `chosen`: the update whose values are shown, of those that trained it."""
    turns = run.record(episode)["turns"]
    if not 1 <= step <= len(turns):
        raise UserError(f"step {step}: the episode has {len(turns)} steps")
    with damage(f"{episode}: step {step}"):
        rows = _token_rows(turns[step - 1])
        updates, values = _trained(run, episode, step, len(rows), chosen)
    if values:
        rows = [{**row, **value} for row, value in zip(rows, values, strict=True)]
    if run.tokenizer is not None:
        texts = token_texts(run.tokenizer, [row["id"] for row in rows])
        rows = [{**row, "text": text} for row, text in zip(rows, texts, strict=True)]
        for other in chain(*(row["alternatives"] for row in rows)):
            other["text"] = _decode(run.tokenizer, [other["id"]])
    note = ""
    if not values:
        note = NOT_TRAINED if run.index.count("token_stats") else HOW_TO_STORE
    return {
        "step": step,
        "stored": {
            "logprob": any(row["logprob"] is not None for row in rows),
            **dict.fromkeys(TRAINED, bool(values)),
        },
        "trained": updates,
        "note": note,
        "tokens": rows,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    completion: StoredAnswer


def _token_rows(turn: Any) -> list[Json]:
    """The tokens of an answer with what is known about each: log-probability and policy version."""
    stored = from_json(turn, _Turn, READERS).completion
    if stored.token_ids.total > MAX_TOKENS:
        raise ValueError(f"more than {MAX_TOKENS:,} tokens")
    answer = stored.completion()
    return [
        {
            "id": token,
            "logprob": as_number(logprob),
            "version": version,
            **dict.fromkeys(("text", *TRAINED)),
            "alternatives": [
                {"id": other, "logprob": as_number(logp), "text": None} for other, logp in others or ()
            ],
        }
        for token, logprob, version, others in zip_longest(
            answer.token_ids, answer.logprobs, answer.versions, answer.alternatives
        )
    ]


def _trained(
    run: RunSource, episode: str, turn: int, tokens: int, chosen: int | None
) -> tuple[list[Json], list[Json]]:
    """(updates that trained the answer, values of each token in the chosen one), both empty if none has."""
    rows = run.index.rows(
        "SELECT * FROM token_stats WHERE episode = ? AND turn = ? ORDER BY n DESC LIMIT ?",
        (episode, turn, MAX_UPDATES),
    )[::-1]
    if not rows:
        return [], []
    at = len(rows) - 1 if chosen is None or chosen >= len(rows) else chosen
    updates = [
        {"batch": row["step"], "update": row["updated"], "replayed": bool(row["replayed"]), "shown": n == at}
        for n, row in enumerate(rows)
    ]

    def fits(record: Json) -> bool:
        return clipped_id(record.get("episode")) == episode and record.get("turn") == turn

    record = read_indexed(run.folder, run.index, TOKEN_STATS, rows[at], fits)
    columns: Sequence[Any] = [record.get(name) for name in TRAINED]
    if not all(isinstance(column, list) and len(column) == tokens for column in columns):
        raise ValueError("the values and the tokens of an answer differ in number")
    return updates, [
        {"entropy": as_number(entropy), "ratio": as_number(ratio), "clipped": clipped == 1}
        for entropy, ratio, clipped in zip(*columns, strict=True)
    ]


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token. If a character has several tokens, the last one has it, the others have "".

    >>> token_texts(tokenizer, [21, 22])  # doctest: +SKIP
    ['Thought', ':']
    """
    texts: list[str] = []
    pending: list[int] = []
    for token in ids:
        pending.append(token)
        text = _decode(tokenizer, pending)
        if _BROKEN in text and len(pending) < _MAX_PARTS:
            texts.append("")
            continue
        texts.append(text)
        pending = []
    if pending:
        texts[-1] = _decode(tokenizer, pending)
    return texts


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    try:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))
    except (OverflowError, TypeError, ValueError):
        return _BROKEN
