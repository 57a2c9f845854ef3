"""The index of episodes: an SQLite file beside the run, made from its files and never needed to be kept.

A page of 100,000 episodes is a query, and one episode is a read at a byte offset. The index is made again if
it is missing, damaged, of another version, or does not fit the files any more. If it cannot be written, or
another process uses it, it is a temporary file, which SQLite deletes.

The file may come from a stranger, together with the run. So it must have exactly our tables, and a reader of
an offset compares what is there with what it expects. SQLite deletes the file that a journal beside it names
as its super-journal. Ours never name one, so such a journal is removed before SQLite reads it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arpo.errors import UserError
from arpo.storage.from_json import from_json
from arpo.viewer.files import MAX_LINE, Mark, SafeFolder, parse_shallow

NAME = ".view-index.sqlite"
VERSION = 4
MAX_PROBLEMS = 100
CACHE_KIB, ALL_CACHES_KIB = 32 << 10, 96 << 10  # of one index, and of all together
_JOURNAL = "-journal"
_SIDE_FILES = (_JOURNAL, "-wal", "-shm")  # SQLite writes them beside an index
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")  # at the end of a journal that names one

TABLES = (
    f"CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL /* version {VERSION} */)",
    # kind, number: of the id. place: position of the group in its batch. first, final: keys of screenshots.
    "CREATE TABLE episodes (n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, task TEXT NOT NULL, "
    "kind TEXT NOT NULL, number INTEGER, place INTEGER, group_id TEXT NOT NULL, batch INTEGER, score REAL, "
    "malformed INTEGER NOT NULL, stop TEXT NOT NULL, steps INTEGER NOT NULL, tokens INTEGER NOT NULL, "
    "version INTEGER NOT NULL, error TEXT NOT NULL, first INTEGER, final INTEGER, at INTEGER, size INTEGER)",
    "CREATE INDEX by_task ON episodes (task)",
    "CREATE INDEX by_group ON episodes (group_id)",
    "CREATE INDEX by_batch ON episodes (batch, place)",
    "CREATE INDEX unplaced ON episodes (group_id) WHERE kind = 'group' AND batch IS NULL",
    "CREATE TABLE failures (n INTEGER PRIMARY KEY, id TEXT NOT NULL, task TEXT NOT NULL, kind TEXT NOT NULL, "
    "called TEXT NOT NULL, host TEXT NOT NULL, message TEXT NOT NULL, attempts INTEGER NOT NULL, "
    "place TEXT NOT NULL, group_id TEXT NOT NULL, batch INTEGER)",
    "CREATE INDEX failures_by_group ON failures (group_id)",
    "CREATE INDEX unplaced_failures ON failures (group_id) WHERE batch IS NULL",
    # record: the line of groups.jsonl, "" in runs of earlier versions.
    "CREATE TABLE groups (id TEXT PRIMARY KEY, batch INTEGER NOT NULL, dropped INTEGER NOT NULL, "
    "task TEXT NOT NULL, rescued INTEGER NOT NULL, record TEXT NOT NULL)",
    "CREATE INDEX groups_by_batch ON groups (batch)",
    "CREATE TABLE replayed (episode TEXT NOT NULL, batch INTEGER NOT NULL)",
    "CREATE INDEX replayed_by_episode ON replayed (episode, batch)",
    "CREATE TABLE shots (key INTEGER PRIMARY KEY, at INTEGER NOT NULL)",
    # A line of calls.jsonl: an attempt at an episode, or the stages of batch `step`.
    "CREATE TABLE calls (n INTEGER PRIMARY KEY, episode TEXT, step INTEGER, began REAL NOT NULL, "
    "ended REAL NOT NULL, at INTEGER NOT NULL, size INTEGER NOT NULL)",
    "CREATE INDEX calls_by_episode ON calls (episode)",
    "CREATE INDEX calls_by_end ON calls (ended)",
    "CREATE INDEX calls_by_step ON calls (step, began, ended) WHERE step IS NOT NULL",
    "CREATE TABLE token_stats (n INTEGER PRIMARY KEY, episode TEXT NOT NULL, step INTEGER NOT NULL, "
    "updated INTEGER NOT NULL, turn INTEGER NOT NULL, replayed INTEGER NOT NULL, at INTEGER NOT NULL, "
    "size INTEGER NOT NULL)",
    "CREATE INDEX token_stats_by_answer ON token_stats (episode, turn)",
    "CREATE TABLE problems (n INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    "CREATE VIRTUAL TABLE words USING fts5(body, content='')",
)


class Index:
    """One connection, shared by threads. `write` is one transaction."""

    def __init__(self, folder: Path) -> None:
        self.path: Path | None = folder / NAME  # None: a temporary file of SQLite
        self._lock = threading.RLock()
        self._cache_kib = CACHE_KIB
        self.generation = 0  # counts how often the index was made again
        self._connection = self._open()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """All rows of a query. A damaged index is made again: the result is empty then."""
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                if not _damage(error):
                    raise
                self.rebuild()
                return []

    def row(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Row | None:
        return next(iter(self.rows(query, values)), None)

    def count(self, table: str, values: Sequence[Any] = ()) -> int:
        """The number of rows of a table. `table` may have conditions: "episodes WHERE task = ?"."""
        row = self.row(f"SELECT count(*) AS count FROM {table}", values)
        return row["count"] if row else 0

    def counts(self, table: str, column: str) -> dict[Any, int]:
        """The number of rows for each value of a column."""
        rows = self.rows(f"SELECT {column} AS value, count(*) AS count FROM {table} GROUP BY {column}")
        return {row["value"]: row["count"] for row in rows}

    def write(self, change: Callable[[sqlite3.Connection], object], generation: int | None = None) -> bool:
        """Call `change` within a transaction. Returns False if the index was damaged, and is empty now.

        Does nothing and returns False if it was made again since `generation`.
        """
        with self._lock:
            if generation not in (None, self.generation):
                return False
            try:
                with self._connection:
                    change(self._connection)
                    return True
            except sqlite3.DatabaseError as error:
                if not _damage(error):
                    raise
                self.rebuild()
                return False

    def mark(self, name: str) -> Mark | None:
        """How far a file was indexed."""
        found = self.row("SELECT value FROM state WHERE name = ?", (f"mark {name}",))
        try:
            return from_json(json.loads(found["value"]), Mark) if found else None
        except ValueError:
            self.rebuild()
            return None

    def rebuild(self) -> None:
        """Delete the content: the next refresh reads all files again."""
        with self._lock:
            self._connection.close()
            if self.path:
                _remove(self.path)
            self.generation += 1
            self._connection = self._open()

    def shrink(self) -> None:
        """Give back the memory of indexing."""
        with self._lock:
            self._connection.execute("PRAGMA shrink_memory")

    def share_cache(self, count: int) -> None:
        """Use the memory of one of `count` indices."""
        with self._lock:
            self._cache_kib = min(CACHE_KIB, ALL_CACHES_KIB // count)
            self._connection.execute(f"PRAGMA cache_size = -{self._cache_kib}")

    def distrust(self) -> None:
        """Make an index again that does not fit the files, unless this process has made it again before.

        So a file that contradicts itself is not indexed again and again.
        """
        if self.generation == 0:
            self.rebuild()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _open(self) -> sqlite3.Connection:
        for _ in range(2 if self.path else 0):
            try:
                return self._connect()
            except _Foreign:
                assert self.path is not None
                _remove(self.path)
            except (sqlite3.OperationalError, OSError):  # read-only, or in use by another process
                break
        self.path = None
        try:
            return self._connect()
        except sqlite3.OperationalError as error:
            raise UserError(f"no index can be made: {error}: SQLite needs disk space, and FTS5") from error

    def _connect(self) -> sqlite3.Connection:
        if self.path:
            _refuse_link(self.path)
            if _names_super_journal(self.path):
                raise _Foreign
        connection = sqlite3.connect(self.path or "", timeout=0.1, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            for pragma in (
                "trusted_schema = OFF",
                "locking_mode = EXCLUSIVE",
                "synchronous = OFF",
                f"cache_size = -{self._cache_kib}",
            ):
                connection.execute(f"PRAGMA {pragma}")
            self._check(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.DatabaseError) and _damage(error):
                raise _Foreign from error
            raise
        return connection

    def _check(self, connection: sqlite3.Connection) -> None:
        """Create the tables of a new file. Raises _Foreign if a file has other tables than ours."""
        connection.execute("BEGIN EXCLUSIVE")
        found = _schema(connection)
        if not found:
            for table in TABLES:
                connection.execute(table)
        elif found != _schema_of(TABLES):
            connection.rollback()
            raise _Foreign
        connection.commit()


class Outdated(UserError):
    """The index has no such entry, or the file changed after it was indexed."""


class _Foreign(Exception):
    """The file is no index of this version."""


def set_mark(connection: sqlite3.Connection, name: str, mark: Mark) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO state VALUES (?, ?)", (f"mark {name}", json.dumps(asdict(mark)))
    )


def insert(connection: sqlite3.Connection, table: str, **values: object) -> int | None:
    """Add a row. Returns its number."""
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    stored = [storable(value) if isinstance(value, str) else value for value in values.values()]
    return connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", stored).lastrowid


def add_problems(connection: sqlite3.Connection, problems: Iterable[str]) -> None:
    """Add error entries, up to MAX_PROBLEMS in all."""
    left = MAX_PROBLEMS - connection.execute("SELECT count(*) FROM problems").fetchone()[0]
    connection.executemany(
        "INSERT INTO problems (text) VALUES (?)",
        [(storable(text),) for text in list(problems)[: max(0, left)]],
    )


def read_indexed(
    folder: SafeFolder, index: Index, name: str, row: sqlite3.Row, fits: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The line of a file at the offset of a row. If another one is there, the index is made again."""
    with folder.open(name) as descriptor:
        return read_open(descriptor, folder, index, name, row, fits)


def read_open(
    descriptor: int,
    folder: SafeFolder,
    index: Index,
    name: str,
    row: sqlite3.Row,
    fits: Callable[[dict[str, Any]], bool],
) -> dict[str, Any]:
    """The same for a file that is open, for many lines."""
    line = os.pread(descriptor, min(int(row["size"]), MAX_LINE + 1), int(row["at"]))
    try:
        record = parse_shallow(line, folder.path(name))
    except UserError:
        record = {}
    if not record or not fits(record):
        index.distrust()
        raise Outdated(
            f"{folder.path(name)}: damaged, or its index did not fit and is made again: try again in a moment"
        )
    return record


def storable(text: str) -> str:
    """The text without lone surrogates, which SQLite cannot store."""
    return text.encode("utf-8", "replace").decode("utf-8")


def as_number(value: Any) -> float | None:
    """A finite number, otherwise None: JSON has no other numbers."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


def shot_key(sha256: str) -> int:
    """The first 8 bytes of a hash as a signed number for SQLite."""
    return int.from_bytes(bytes.fromhex(sha256[:16]), "big", signed=True)


def _damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is damaged, in contrast to a locked file or a mistake of ours."""
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def _refuse_link(path: Path) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(f"{path}: is not a file")


def _names_super_journal(path: Path) -> bool:
    """Whether the journal of an index names a super-journal. Raises OSError for a link."""
    try:
        descriptor = os.open(f"{path}{_JOURNAL}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        file.seek(max(0, size - len(_SUPER_JOURNAL)))
        return file.read(len(_SUPER_JOURNAL)) == _SUPER_JOURNAL


def _remove(path: Path) -> None:
    for name in ("", *_SIDE_FILES):
        with suppress(OSError):
            os.unlink(f"{path}{name}")


def _schema(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """All tables, indices, views and triggers, also those of full-text search."""
    query = "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master ORDER BY type, name"
    return [tuple(row) for row in connection.execute(query)]


def _schema_of(tables: Sequence[str]) -> list[tuple[str, ...]]:
    connection = sqlite3.connect(":memory:")
    try:
        for table in tables:
            connection.execute(table)
        return _schema(connection)
    finally:
        connection.close()
