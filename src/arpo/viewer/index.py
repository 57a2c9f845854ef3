"""The index of episodes: an SQLite file beside the run, made from its files and never needed to be kept.

A page of 100,000 episodes is a query, and one episode is a read at a byte offset. The index is made again if
it is missing, damaged, of another version, or does not fit the files any more. If it cannot be written, or
another process uses it, it is in a temporary folder.

The file may come from a stranger, together with the run. So it must have exactly our tables, and a reader of
an offset compares what is there with what it expects. SQLite deletes the file that a journal beside it names
as its super-journal. Ours never name one, so such a journal is removed before SQLite reads it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arpo.errors import UserError
from arpo.viewer.files import MAX_LINE, Mark, SafeFolder, parse_shallow

PREFIX, LOCK = "arpo-view-", "lock"  # of temporary folders
NAME = ".view-index.sqlite"
VERSION = "3"
MAX_PROBLEMS = 100
CACHE_KIB, ALL_CACHES_KIB = 32 << 10, 96 << 10  # of one index, and of all together
_JOURNAL = "-journal"
_SIDE_FILES = (_JOURNAL, "-wal", "-shm")  # SQLite writes them beside an index
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")  # at the end of a journal that names one

TABLES = (
    "CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
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
)
_FULL_TEXT = "CREATE VIRTUAL TABLE words USING fts5(body, content='')"
_PLAIN_TEXT = "CREATE TABLE words (body TEXT NOT NULL)"


class Index:
    """One connection, shared by threads. `write` is one transaction."""

    def __init__(self, folder: Path, full_text: bool | None = None) -> None:
        """`full_text` False: without SQLite's full-text search; None: with it if SQLite has it."""
        self._folder = folder
        self._temporary: TemporaryFolder | None = None
        self._lock = threading.RLock()
        self.full_text = _has_full_text() if full_text is None else full_text
        self._cache_kib = CACHE_KIB
        self.generation = 0  # counts how often the index was made again
        self._connection = self._open()

    @property
    def path(self) -> Path:
        return (self._temporary.path if self._temporary else self._folder) / NAME

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
            value = json.loads(found["value"]) if found else None
            return (
                Mark(inode=int(value["inode"]), end=int(value["end"]), hash=str(value["hash"]))
                if value
                else None
            )
        except (ValueError, TypeError, KeyError):
            self.rebuild()
            return None

    def rebuild(self) -> None:
        """Delete the content: the next refresh reads all files again."""
        with self._lock:
            self._connection.close()
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
            if self._temporary:
                self._temporary.close()

    def _open(self) -> sqlite3.Connection:
        if self._temporary is None:
            for _ in range(2):
                try:
                    return self._connect()
                except _Foreign:
                    _remove(self.path)
                except (sqlite3.OperationalError, OSError):  # read-only, or in use by another process
                    break
            self._temporary = TemporaryFolder()
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        _refuse_link(self.path)
        if _names_super_journal(self.path):
            raise _Foreign
        connection = sqlite3.connect(self.path, timeout=0.1, check_same_thread=False)
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
        expected = [*TABLES, _FULL_TEXT if self.full_text else _PLAIN_TEXT]
        found = _schema(connection)
        if not found:
            for table in expected:
                connection.execute(table)
            connection.execute("INSERT INTO state VALUES ('version', ?)", (VERSION,))
        else:
            version = (
                connection.execute("SELECT value FROM state WHERE name = 'version'").fetchone()
                if found == _schema_of(expected)
                else None
            )
            if version is None or version[0] != VERSION:
                connection.rollback()
                raise _Foreign
        connection.commit()


class TemporaryFolder:
    """A private folder. `close` deletes it.

    Its process locks a file in it. A folder with an unlocked file belongs to a process that was killed, and
    the next process removes it.
    """

    def __init__(self) -> None:
        remove_stale()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_stale() -> None:
    """Remove the folders of this user's processes that have ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, of another user, or removed meanwhile
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


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
    size = min(int(row["size"]), MAX_LINE + 1)
    with folder.open(name) as descriptor:
        line = os.pread(descriptor, size, int(row["at"]))
    try:
        record = parse_shallow(line, folder.path(name))
    except UserError:
        record = {}
    if not record or not fits(record):
        index.distrust()
        raise UserError(
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


def _has_full_text() -> bool:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute(_FULL_TEXT)
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True
