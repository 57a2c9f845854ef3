"""Indexes the files of a run: episodes, failures, and groups. Reads only what is new.

A damaged line becomes an error entry, and the next line is read. Everything is made again if a file was
truncated or replaced, as by a resumed run.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from arpo.errors import UserError
from arpo.storage.codec import (
    BATCH,
    COLLECTED,
    EVALUATED,
    GROUP,
    failure_from_json,
    group_of,
    stored_episode,
    stored_group,
)
from arpo.storage.files import damage
from arpo.storage.run_folder import CALLS, FAILURES, GROUPS, TOKEN_STATS, TRAJECTORIES
from arpo.viewer.files import Mark, SafeFolder, complete_lines, parse_line
from arpo.viewer.index import Index, add_problems, set_mark, shot_key, storable
from arpo.viewer.pages.call_times import add_calls
from arpo.viewer.pages.token_values import add_token_stats

EARLIER_BATCHES = "batches.jsonl"
MAX_TOKENS = 1 << 20  # of one episode
MAX_ID = 200  # characters of an episode or task id
_SECONDS = 0.02  # of reading between two transactions
_PLACES = (
    (BATCH, re.compile(rf"{BATCH}(\d{{1,9}})-(\d{{1,9}})-\d{{1,9}}")),
    (GROUP, re.compile(rf"{GROUP}-(\d{{1,9}})-\d{{1,9}}")),
    (EVALUATED, re.compile(rf"{EVALUATED}(\d{{1,9}})-.*")),
    (COLLECTED, re.compile(rf"{COLLECTED}-(\d{{1,9}})-.*")),
)
UNKNOWN_HOST = "not stored"  # in runs of older versions

Adder = Callable[[sqlite3.Connection, dict[str, Any], int, int], None]


def place_of(episode_id: str) -> tuple[str, int | None, int | None, int | None]:
    """(kind, number, place in the batch, batch counted from 1) of an episode id.

    >>> place_of("batch3-0-1"), place_of("group-17-1"), place_of("eval12-train-0-0")
    (('batch', 3, 0, 4), ('group', 17, 17, None), ('eval', 12, None, None))
    """
    for kind, pattern in _PLACES:
        if match := pattern.fullmatch(episode_id):
            number = int(match[1])
            if kind == BATCH:
                return kind, number, int(match[2]), number + 1
            return kind, number, number if kind == GROUP else None, None
    return "", None, None, None


class RunIndexer:
    """Follows the files of one run. `refresh` may be called from one thread at a time."""

    def __init__(self, folder: SafeFolder, index: Index) -> None:
        self._folder, self._index = folder, index
        self.share = 0.0  # of trajectories.jsonl that is indexed
        self.errors: dict[str, str] = {}  # of optional files that cannot be read, by name

    def refresh(self, deadline: float) -> bool:
        """Index new lines until the deadline, in seconds of time.monotonic(). True: all are indexed."""
        files: tuple[tuple[str, Adder], ...] = (
            (FAILURES, self._add_failure),
            (GROUPS, self._add_group),
            (EARLIER_BATCHES, self._add_batch),
            (TRAJECTORIES, self._add_episode),
        )
        complete = [self._follow(name, add, deadline) for name, add in files]
        for name, add in ((CALLS, add_calls), (TOKEN_STATS, add_token_stats)):
            try:
                complete.append(self._follow(name, add, deadline))
                self.errors.pop(name, None)
            except (UserError, OSError) as error:
                self.errors[name] = str(error)
        return all(complete)

    def _follow(self, name: str, add: Adder, deadline: float) -> bool:
        try:
            with self._folder.open(name) as descriptor:
                mark = self._index.mark(name)
                if mark is not None and not mark.fits(descriptor):
                    self._index.rebuild()
                    return False
                return self._read(descriptor, name, mark.end if mark else 0, add, deadline)
        except FileNotFoundError:
            if self._index.mark(name) is not None:
                self._index.rebuild()
            return True

    def _read(self, descriptor: int, name: str, end: int, add: Adder, deadline: float) -> bool:
        lines, generation = complete_lines(descriptor, end), self._index.generation
        path = self._folder.path(name)
        while True:
            batch: list[tuple[int, int, dict[str, Any] | str]] = []
            pause = time.monotonic() + _SECONDS
            for start, stop, line in lines:
                end = stop
                try:
                    batch.append((start, stop, parse_line(line, f"{path}: byte {start}")))
                except UserError as error:
                    batch.append((start, stop, str(error)))
                if time.monotonic() > pause:
                    break
            else:
                if not batch:
                    return True
            store = partial(self._store, name=name, batch=batch, add=add, descriptor=descriptor)
            if not self._index.write(store, generation):
                return False
            if name == TRAJECTORIES:
                self.share = min(1.0, end / os.fstat(descriptor).st_size)
            if time.monotonic() > deadline:
                return False

    def _store(
        self,
        connection: sqlite3.Connection,
        name: str,
        batch: list[tuple[int, int, dict[str, Any] | str]],
        add: Adder,
        descriptor: int,
    ) -> None:
        problems, path = [], self._folder.path(name)
        for start, stop, record in batch:
            if isinstance(record, str):
                problems.append(record)
                continue
            try:
                with damage(f"{path}: byte {start}"):
                    add(connection, record, start, stop - start)
            except UserError as error:
                problems.append(str(error))
        add_problems(connection, problems)
        for table in ("episodes", "failures"):
            connection.execute(
                f"UPDATE {table} SET batch = (SELECT batch FROM groups WHERE id = group_id AND NOT dropped) "
                "WHERE batch IS NULL AND group_id > ?1 AND group_id < ?1 || ':'",  # ':' follows '9'
                (f"{GROUP}-",),
            )
        set_mark(connection, name, Mark.at(descriptor, batch[-1][1]))

    def _add_episode(
        self, connection: sqlite3.Connection, record: dict[str, Any], at: int, size: int
    ) -> None:
        tokens = sum(count_tokens(turn["completion"]["token_ids"]) for turn in record["turns"])
        if tokens > MAX_TOKENS:
            raise ValueError(f"an episode of more than {MAX_TOKENS:,} tokens")
        for turn in record["turns"]:
            count_tokens(turn["completion"].get("versions", ()))
        episode = stored_episode(record)
        name, task = _id(episode.episode_id), _id(episode.task_id)
        kind, number, place, batch = place_of(name)
        shots = record["turns"][0]["screenshot"], record["final"]
        values = (
            name, task, kind, number, place, group_of(name), batch, float(episode.score),
            int(episode.malformed), episode.stop.value, episode.steps, tokens, episode.policy_version,
            storable(episode.error),
            *map(shot_key, shots), at, size,
        )  # fmt: skip
        cursor = connection.execute(
            "INSERT OR IGNORE INTO episodes (id, task, kind, number, place, group_id, batch, score, "
            "malformed, stop, steps, tokens, version, error, first, final, at, size) VALUES ("
            + ",".join("?" * 18)
            + ")",
            values,
        )
        if not cursor.rowcount:
            raise ValueError(f"a second episode {name!r}")
        text = "\n".join(str(turn["completion"]["text"]) for turn in record["turns"])
        connection.execute(
            "INSERT INTO words (rowid, body) VALUES (?, ?)", (cursor.lastrowid, storable(text))
        )

    def _add_failure(
        self, connection: sqlite3.Connection, record: dict[str, Any], at: int, size: int
    ) -> None:
        failure = failure_from_json(record)
        name, task = _id(failure.episode_id), _id(failure.task_id)
        host = failure.host[:200] if "host" in record else UNKNOWN_HOST
        values = (
            name, task, failure.kind, failure.where, host, failure.message[:4000],
            failure.attempts, failure.place, group_of(name), place_of(name)[3],
        )  # fmt: skip
        connection.execute(
            "INSERT INTO failures (id, task, kind, called, host, message, attempts, place, group_id, batch) "
            "VALUES (" + ",".join("?" * 10) + ")",
            [*map(_storable, values)],
        )

    def _add_group(self, connection: sqlite3.Connection, record: dict[str, Any], at: int, size: int) -> None:
        group = stored_group(record)
        values = (_id(group.group), group.step, group.dropped, group.task, bool(group.rescues))
        connection.execute(
            "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?, ?, ?)",
            (*map(_storable, values), storable(json.dumps(record))),
        )
        connection.executemany(
            "INSERT INTO replayed VALUES (?, ?)",
            [(_id(rescue.stored_episode), group.step) for rescue in group.rescues],
        )

    def _add_batch(self, connection: sqlite3.Connection, record: dict[str, Any], at: int, size: int) -> None:
        """A line of batches.jsonl, which earlier versions wrote in asynchronous training."""
        for name, dropped in (("groups", 0), ("dropped", 1)):
            connection.executemany(
                "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, '', 0, '')",
                [(f"{GROUP}-{int(number)}", int(record["step"]), dropped) for number in record[name]],
            )


def count_tokens(encoded: Any) -> int:
    """The number of tokens in a run-length encoded list. Raises ValueError for more than MAX_TOKENS.

    >>> count_tokens([5, [7, 4], 9])
    6
    """
    lengths = [entry[1] for entry in encoded if type(entry) is not int]
    if not all(type(length) is int and length >= 0 for length in lengths):
        raise ValueError("a run length is not a number")
    total = len(encoded) - len(lengths) + sum(lengths)
    if total > MAX_TOKENS:
        raise ValueError(f"more than {MAX_TOKENS:,} tokens")
    return total


def _id(text: str) -> str:
    if not text or len(text) > MAX_ID:
        raise ValueError(f"an id must have 1 to {MAX_ID} characters")
    return storable(text)


def _storable(value: object) -> object:
    return storable(value) if isinstance(value, str) else value


def problems(index: Index) -> list[str]:
    return [str(row["text"]) for row in index.rows("SELECT text FROM problems ORDER BY n")]
