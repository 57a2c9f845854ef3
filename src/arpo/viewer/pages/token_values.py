"""Entropy, ratio and clipping of trained tokens (token_stats.jsonl) for the page "Tokens"."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from arpo.storage.run_folder import TOKEN_STATS
from arpo.viewer.files import SafeFolder
from arpo.viewer.index import Index, as_number, read_indexed, storable

HOW_TO_STORE = (
    "This run stores no entropy, ratio and clipping per token. Train with --store.token_stats true to store "
    "them."
)
NOT_TRAINED = "No update has trained this answer: it has no entropy, ratio and clipping."
MAX_UPDATES = 200  # of one answer: the newest ones

Json = dict[str, Any]


def add_token_stats(connection: sqlite3.Connection, record: Mapping[str, Any], at: int, size: int) -> None:
    """Index a line: one answer in one update."""
    numbers = [record[name] for name in ("step", "update", "turn")]
    if not all(type(number) is int and 0 <= number < 1 << 31 for number in numbers):
        raise ValueError("step, update or turn is not a number")
    place = (storable(str(record["episode"]))[:200], *numbers, int(record["replayed"] is True))
    connection.execute(
        "INSERT INTO token_stats (episode, step, updated, turn, replayed, at, size) VALUES ("
        + "?," * 6
        + "?)",
        (*place, at, size),
    )


class TokenValues:
    """Reads indexed lines."""

    def __init__(self, folder: SafeFolder, index: Index) -> None:
        self._folder, self._index = folder, index

    def note(self) -> str:
        """Why an answer has no values."""
        stored = self._index.row("SELECT 1 FROM token_stats LIMIT 1")
        return HOW_TO_STORE if stored is None else NOT_TRAINED

    def of_answer(
        self, episode: str, turn: int, tokens: int, chosen: int | None
    ) -> tuple[list[Json], list[Json]]:
        """(updates that trained the answer, values of each token in update `chosen`). None: the newest one.

        Both are empty if no update has trained it.
        """
        rows = self._index.rows(
            "SELECT * FROM token_stats WHERE episode = ? AND turn = ? ORDER BY n DESC LIMIT ?",
            (episode, turn, MAX_UPDATES),
        )[::-1]
        if not rows:
            return [], []
        at = len(rows) - 1 if chosen is None or chosen >= len(rows) else chosen
        updates = [
            {
                "batch": row["step"],
                "update": row["updated"],
                "replayed": bool(row["replayed"]),
                "shown": n == at,
            }
            for n, row in enumerate(rows)
        ]
        return updates, _values(self._read(rows[at]), tokens)

    def _read(self, row: sqlite3.Row) -> Json:
        def fits(record: Json) -> bool:
            return (storable(str(record.get("episode")))[:200], record.get("turn")) == (
                row["episode"],
                row["turn"],
            )

        return read_indexed(self._folder, self._index, TOKEN_STATS, row, fits)


def _values(record: Json, tokens: int) -> list[Json]:
    columns: Sequence[Any] = [record.get(name) for name in ("entropy", "ratio", "clipped")]
    if not all(isinstance(column, list) and len(column) == tokens for column in columns):
        raise ValueError("the values and the tokens of an answer differ in number")
    return [
        {"entropy": as_number(entropy), "ratio": as_number(ratio), "clipped": clipped == 1}
        for entropy, ratio, clipped in zip(*columns, strict=True)
    ]
