"""Indexes the files of a run: episodes, failures, groups, calls, token values. Reads only what is new.

A damaged line becomes an error entry, and the next line is read. Everything is made again if a file was
truncated or replaced, as by a resumed run.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from arpo.errors import UserError
from arpo.storage.codec import (
    BATCH,
    COLLECTED,
    EVALUATED,
    GROUP,
    PLAYED,
    SEED,
    StoredCalls,
    failure_from_json,
    group_of,
    runs_from_json,
    stored_episode,
    stored_group,
)
from arpo.storage.files import damage
from arpo.storage.from_json import from_json
from arpo.storage.run_folder import CALLS, FAILURES, GROUPS, TOKEN_STATS, TRAJECTORIES
from arpo.viewer.files import Mark, SafeFolder, complete_lines, parse_line
from arpo.viewer.index import Index, add_problems, insert, set_mark, shot_key, storable

EARLIER_BATCHES = "batches.jsonl"
MAX_TOKENS = 1 << 20  # of one episode
MAX_ID = 200  # characters of an episode or task id
MAX_CALLS = 20_000  # of one episode
MAX_SECONDS = 1e9  # of a run
EARLIER = "earlier batch"  # earlier versions counted batches from 0 in ids: batch3-0-1
_SECONDS = 0.02  # of reading between two transactions
_PLACES = (
    (BATCH, re.compile(rf"{BATCH}-(\d{{1,9}})-(\d{{1,9}})-\d{{1,9}}")),
    (EARLIER, re.compile(rf"{BATCH}(\d{{1,9}})-(\d{{1,9}})-\d{{1,9}}")),
    (GROUP, re.compile(rf"{GROUP}-(\d{{1,9}})-\d{{1,9}}")),
    (EVALUATED, re.compile(rf"{EVALUATED}(\d{{1,9}})-.*")),
    (COLLECTED, re.compile(rf"{COLLECTED}-(\d{{1,9}})-.*")),
)
UNKNOWN_HOST = "not stored"  # in runs of older versions

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _EarlierBatch:
    step: int
    groups: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainedAnswer:
    step: int
    update: int
    episode: str
    turn: int
    replayed: bool


Adder = Callable[[sqlite3.Connection, Json, int, int], None]  # connection, line, its place and size


def place_of(episode_id: str) -> tuple[str, int | None, int | None, int | None]:
    """(kind, number, place in the batch, batch counted from 1) of an episode id.

    >>> place_of("batch-4-0-1"), place_of("group-17-1"), place_of("eval12-train-0-0")
    (('batch', 4, 0, 4), ('group', 17, 17, None), ('eval', 12, None, None))
    >>> place_of("seed-collect-7-0")
    ('seed', None, None, None)
    """
    for kind, pattern in _PLACES:
        if match := pattern.fullmatch(episode_id):
            number = int(match[1])
            if kind in (BATCH, EARLIER):
                batch = number + (kind == EARLIER)
                return BATCH, batch, int(match[2]), batch
            return kind, number, number if kind == GROUP else None, None
    kind = PLAYED if episode_id == PLAYED else SEED if episode_id.startswith(f"{SEED}-") else ""
    return kind, None, None, None


class RunIndexer:
    """Follows the files of one run. `refresh` may be called from one thread at a time."""

    def __init__(self, folder: SafeFolder, index: Index) -> None:
        self._folder, self._index = folder, index
        self.share = 0.0  # of trajectories.jsonl that is indexed
        self.errors: dict[str, str] = {}  # of files that cannot be read, by name

    def refresh(self, deadline: float) -> bool:
        """Index new lines until the deadline, in seconds of time.monotonic(). True: all are indexed."""
        complete = []
        for name, add in _ADDERS.items():
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


def _add_episode(connection: sqlite3.Connection, record: Json, at: int, size: int) -> None:
    episode = stored_episode(record)
    tokens = sum(runs_from_json(turn["completion"]["token_ids"]).total for turn in record["turns"])
    if tokens > MAX_TOKENS:
        raise ValueError(f"an episode of more than {MAX_TOKENS:,} tokens")
    name = _id(episode.episode_id)
    kind, number, place, batch = place_of(name)
    try:
        row = insert(
            connection,
            "episodes",
            id=name,
            task=_id(episode.task_id),
            kind=kind,
            number=number,
            place=place,
            group_id=group_of(name),
            batch=batch,
            score=float(episode.score),
            malformed=int(episode.malformed),
            stop=episode.stop.value,
            steps=episode.steps,
            tokens=tokens,
            version=episode.policy_version,
            error=episode.error,
            first=shot_key(record["turns"][0]["screenshot"]),
            final=shot_key(record["final"]),
            at=at,
            size=size,
        )
    except sqlite3.IntegrityError:
        raise ValueError(f"a second episode {name!r}") from None
    text = "\n".join(turn["completion"]["text"] for turn in record["turns"])
    insert(connection, "words", rowid=row, body=text)


def _add_failure(connection: sqlite3.Connection, record: Json, at: int, size: int) -> None:
    failure = failure_from_json(record)
    name = _id(failure.episode_id)
    insert(
        connection,
        "failures",
        id=name,
        task=_id(failure.task_id),
        kind=failure.kind,
        called=failure.where,
        host=failure.host[:200] if "host" in record else UNKNOWN_HOST,
        message=failure.message[:4000],
        attempts=failure.attempts,
        place=failure.place,
        group_id=group_of(name),
        batch=place_of(name)[3],
    )


def _add_group(connection: sqlite3.Connection, record: Json, at: int, size: int) -> None:
    group = stored_group(record)
    _insert_group(
        connection,
        id=_id(group.group),
        batch=group.step,
        dropped=False,
        task=group.task,
        rescued=bool(group.rescues),
        record=json.dumps(record),
    )
    for rescue in group.rescues:
        insert(connection, "replayed", episode=_id(rescue.stored_episode), batch=group.step)


def _add_batch(connection: sqlite3.Connection, record: Json, at: int, size: int) -> None:
    """A line of batches.jsonl, which earlier versions wrote in asynchronous training."""
    line = from_json(record, _EarlierBatch)
    for numbers, dropped in ((line.groups, False), (line.dropped, True)):
        for number in numbers:
            group = f"{GROUP}-{number}"
            _insert_group(
                connection, id=group, batch=line.step, dropped=dropped, task="", rescued=False, record=""
            )


def _insert_group(connection: sqlite3.Connection, **values: Any) -> None:
    """A later line about the same group counts."""
    connection.execute("DELETE FROM groups WHERE id = ?", (values["id"],))
    insert(connection, "groups", **values)


def _add_calls(connection: sqlite3.Connection, record: Json, at: int, size: int) -> None:
    """An attempt at an episode, or the stages of a batch."""
    line = checked_calls(record)
    if not line.calls:
        return
    began, ended = line.calls[0][1], max(began + seconds for _, began, seconds in line.calls)
    episode = None if line.episode is None else clipped_id(line.episode)
    insert(connection, "calls", episode=episode, step=line.step, began=began, ended=ended, at=at, size=size)


def _add_token_stats(connection: sqlite3.Connection, record: Json, at: int, size: int) -> None:
    """One answer in one update."""
    line = from_json(record, _TrainedAnswer)
    insert(
        connection,
        "token_stats",
        episode=clipped_id(line.episode),
        step=line.step,
        updated=line.update,
        turn=line.turn,
        replayed=line.replayed,
        at=at,
        size=size,
    )


_ADDERS: Mapping[str, Adder] = {
    FAILURES: _add_failure,
    GROUPS: _add_group,
    EARLIER_BATCHES: _add_batch,
    TRAJECTORIES: _add_episode,
    CALLS: _add_calls,
    TOKEN_STATS: _add_token_stats,
}


def checked_calls(record: Mapping[str, Any]) -> StoredCalls:
    """Read a line of calls.jsonl. Raises ValueError if the calls are not in order, or have no times."""
    line = from_json(record, StoredCalls)
    if (line.step is None) == (line.episode is None):
        raise ValueError("neither an episode nor a batch, or both")
    if line.step is not None and line.step < 0:
        raise ValueError("step is not a number of batches")
    if len(line.calls) > MAX_CALLS:
        raise ValueError(f"more than {MAX_CALLS:,} calls")
    end = 0.0
    for _, began, seconds in line.calls:
        if not (0 <= began < MAX_SECONDS and 0 <= seconds < MAX_SECONDS):
            raise ValueError("a call has no time")
        if began < end - 1e-3:  # each number is rounded
            raise ValueError("a call begins before the last one ends")
        end = began + seconds
    return replace(line, calls=tuple((name[:40], began, seconds) for name, began, seconds in line.calls))


def _id(text: str) -> str:
    if not text or len(text) > MAX_ID:
        raise ValueError(f"an id must have 1 to {MAX_ID} characters")
    return storable(text)


def clipped_id(name: Any) -> str:
    """The id in an optional file, which may be of another length."""
    return storable(str(name))[:MAX_ID]
