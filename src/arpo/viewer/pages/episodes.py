"""Queries of the index: lists of episodes with filters, search, failures."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from arpo.errors import UserError
from arpo.storage.codec import BATCH, COLLECTED, EVALUATED, GROUP
from arpo.viewer.index import Index, storable
from arpo.viewer.played import phase_title

PAGE, MAX_PAGE = 50, 200
MAX_WORDS = 20
MAX_TEXT = 300  # characters of a search
SNIPPET = 80  # characters on each side of a found word
_SORTS = {"order": "n", "score": "score", "steps": "steps", "task": "task", "tokens": "tokens"}
FILTERS = (
    *("task", "stop", "group", "phase", "batch", "min_score", "max_score", "solved", "malformed", "shown"),
    *("replayed", "text", "sort", "page", "size"),
)
_FLAGS = {"0": False, "1": True, "false": False, "true": True}
_SHOWN = (
    "(first IS NULL OR (EXISTS (SELECT 1 FROM shots WHERE key = first) "
    "AND EXISTS (SELECT 1 FROM shots WHERE key = final)))"
)
_REPLAYED = "SELECT group_concat(batch) FROM replayed WHERE episode = episodes.id"
COLUMNS = f"episodes.*, {_SHOWN} AS shown, ({_REPLAYED}) AS replayed_in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a list of episodes needs to know about its source."""

    index: Index
    threshold: float  # score of a success
    instruction: Callable[[str], str]  # of a task
    text_of: Callable[[sqlite3.Row], str]  # all answers, for snippets


@dataclass(slots=True)
class _Where:
    parts: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, part: str, *values: Any) -> None:
        self.parts.append(part)
        self.values += values

    @property
    def sql(self) -> str:
        return f" WHERE {' AND '.join(self.parts)}" if self.parts else ""


def list_episodes(listing: Listing, filters: Mapping[str, str]) -> dict[str, Any]:
    """One page of the matching episodes, with the total."""
    where = _where(listing, filters)
    size = min(_number(filters, "size", PAGE), MAX_PAGE)
    page = _number(filters, "page", 0)
    total = listing.index.rows(f"SELECT count(*) AS total FROM episodes{where.sql}", where.values)
    rows = listing.index.rows(
        f"SELECT {COLUMNS} FROM episodes{where.sql} ORDER BY {_order(filters)} LIMIT ? OFFSET ?",
        [*where.values, size, page * size],
    )
    text = filters.get("text", "")
    return {
        "total": total[0]["total"] if total else 0,
        "page": page,
        "size": size,
        "episodes": [row_json(listing, row, text) for row in rows],
        "stops": [
            row["stop"] for row in listing.index.rows("SELECT DISTINCT stop FROM episodes ORDER BY stop")
        ],
        "phases": _phases(listing.index),
    }


def row_json(listing: Listing, row: sqlite3.Row, text: str = "") -> dict[str, Any]:
    """One episode of a list. With `text`: the place where it is found."""
    solved = row["score"] is not None and row["score"] >= listing.threshold
    phase = phase_of(row)
    return {
        "episode": row["id"],
        "group": row["group_id"],
        "task": row["task"],
        "instruction": listing.instruction(row["task"]),
        "phase": phase,
        "phase_title": _title(row),
        "batch": row["batch"],
        "score": row["score"],
        "solved": solved,
        "malformed": bool(row["malformed"]),
        "stop": row["stop"],
        "steps": row["steps"],
        "tokens": row["tokens"],
        "version": row["version"],
        "replayed_in": replayed_in(row),
        "shown": bool(row["shown"]),
        "error": row["error"],
        **({"snippet": snippet(listing.text_of(row), text)} if text else {}),
    }


def replayed_in(row: sqlite3.Row) -> list[int]:
    """Batches in which an episode was replayed, counted from 1."""
    return sorted(map(int, (row["replayed_in"] or "").split(",") if row["replayed_in"] else ()))


def find_episode(index: Index, episode_id: str) -> sqlite3.Row:
    row = index.row(f"SELECT {COLUMNS} FROM episodes WHERE id = ?", (episode_id,))
    if row is None:
        raise UserError(f"{episode_id!r}: no such episode, or it is not indexed yet")
    return row


def neighbours(index: Index, row: sqlite3.Row) -> dict[str, str | None]:
    """The episodes before and after one, in the order of the run."""
    found = {}
    for name, sign, order in (("previous", "<", "DESC"), ("next", ">", "ASC")):
        other = index.row(f"SELECT id FROM episodes WHERE n {sign} ? ORDER BY n {order} LIMIT 1", (row["n"],))
        found[name] = other["id"] if other else None
    return found


def phase_of(row: sqlite3.Row) -> str:
    """As in the filter `phase`: batch4 (counted from 1), eval12, collect, group (in no batch)."""
    if row["batch"] is not None:
        return f"{BATCH}{row['batch']}"
    return f"{EVALUATED}{row['number']}" if row["kind"] == EVALUATED else row["kind"]


def _title(row: sqlite3.Row) -> str:
    if row["batch"] is not None:
        return phase_title(f"{BATCH}{row['batch'] - 1}")
    if row["kind"] == COLLECTED:
        return "collected"
    return phase_title(phase_of(row))


def _phases(index: Index) -> list[dict[str, Any]]:
    """All phases except training batches, which have a page of their own."""
    rows = index.rows(
        "SELECT kind, number, batch, count(*) AS total, min(n) FROM episodes WHERE batch IS NULL "
        "GROUP BY kind, CASE WHEN kind = ? THEN number END ORDER BY min(n)",
        (EVALUATED,),
    )
    return [{"phase": phase_of(row), "title": _title(row), "episodes": row["total"]} for row in rows]


def _where(listing: Listing, filters: Mapping[str, str]) -> _Where:
    where = _Where()
    filters = {name: storable(value) for name, value in filters.items()}
    for name, column in (("task", "task"), ("stop", "stop"), ("group", "group_id")):
        if filters.get(name):
            where.add(f"{column} = ?", filters[name])
    if filters.get("phase"):
        _add_phase(where, filters["phase"])
    if filters.get("batch"):
        where.add("batch = ?", _number(filters, "batch", 0))
    for name, sign in (("min_score", ">="), ("max_score", "<=")):
        if filters.get(name):
            where.add(f"score {sign} ?", _decimal(filters, name))
    if filters.get("solved"):
        where.add(f"coalesce(score, 0) {'>=' if _flag(filters, 'solved') else '<'} ?", listing.threshold)
    if filters.get("malformed"):
        where.add("malformed = ?", int(_flag(filters, "malformed")))
    if filters.get("shown"):
        where.add(f"{_SHOWN} = ?", int(_flag(filters, "shown")))
    if filters.get("replayed"):
        sign = "IN" if _flag(filters, "replayed") else "NOT IN"
        where.add(f"id {sign} (SELECT episode FROM replayed)")
    if filters.get("text"):
        _add_text(where, filters["text"], listing.index.full_text)
    return where


def _add_phase(where: _Where, phase: str) -> None:
    match = re.fullmatch(rf"({BATCH}|{EVALUATED})(\d{{1,9}})", phase)
    if match and match[1] == BATCH:
        where.add("batch = ?", int(match[2]))
    elif match:
        where.add("kind = ? AND number = ?", EVALUATED, int(match[2]))
    elif phase == GROUP:
        where.add("kind = ? AND batch IS NULL", GROUP)
    else:
        where.add("kind = ?", phase)


def _add_text(where: _Where, text: str, full_text: bool) -> None:
    """Every word must occur; the last one may be the beginning of a word. Ids match as a whole."""
    words = text[:MAX_TEXT].replace("\0", " ").split()[:MAX_WORDS]
    if not words:
        return
    if full_text:
        quoted = " ".join('"' + word.replace('"', '""') + '"' for word in words)
        found, values = "n IN (SELECT rowid FROM words WHERE words MATCH ?)", [f"{quoted}*"]
    else:
        likes = " AND ".join(["body LIKE ? ESCAPE '\\'"] * len(words))
        found = f"n IN (SELECT rowid FROM words WHERE {likes})"
        values = ["%" + re.sub(r"([%_\\])", r"\\\1", word) + "%" for word in words]
    where.add(f"({found} OR id = ? OR task = ?)", *values, text.strip(), text.strip())


def snippet(body: str, text: str) -> str:
    """The surroundings of the first word of `text` in `body`.

    >>> snippet("Thought: open the menu", "menu")
    'Thought: open the menu'
    """
    flat = " ".join(body.split())
    places = [flat.lower().find(word.lower()) for word in text.split()]
    at = min((place for place in places if place >= 0), default=0)
    begin, end = max(0, at - SNIPPET), min(len(flat), at + SNIPPET)
    return ("…" if begin else "") + flat[begin:end] + ("…" if end < len(flat) else "")


def list_failures(index: Index) -> dict[str, Any]:
    """Failed episodes by kind, call and host, and the newest 200."""
    total = index.row("SELECT count(*) AS total FROM failures")
    kinds = index.rows(
        "SELECT kind, called, host, count(*) AS count, count(DISTINCT task) AS tasks, "
        "max(message) AS message, max(id) AS example FROM failures GROUP BY kind, called, host "
        "ORDER BY count(*) DESC LIMIT 200"
    )
    newest = index.rows("SELECT * FROM failures ORDER BY n DESC LIMIT 200")
    return {
        "total": total["total"] if total else 0,
        "by_kind": [
            {
                "kind": row["kind"],
                "where": row["called"],
                **{name: row[name] for name in ("host", "count", "tasks", "message", "example")},
            }
            for row in kinds
        ],
        "newest": [failure_json(row) for row in newest],
    }


def failure_json(row: sqlite3.Row) -> dict[str, Any]:
    names = ("task", "kind", "host", "message", "attempts", "place", "batch")
    return {"episode": row["id"], "where": row["called"], **{name: row[name] for name in names}}


def _order(filters: Mapping[str, str]) -> str:
    name = filters.get("sort") or "order"
    column = _SORTS.get(name.removeprefix("-"))
    if column is None:
        raise UserError(
            f"sort: is {name!r}, must be one of {', '.join(_SORTS)}, or one of them after a minus"
        )
    return f"{column} {'DESC' if name.startswith('-') else 'ASC'}, n"


def _number(filters: Mapping[str, str], name: str, default: int) -> int:
    text = filters.get(name) or str(default)
    if not re.fullmatch(r"\d{1,9}", text):
        raise UserError(f"{name}: is {text[:40]!r}, must be an integer >= 0")
    return int(text)


def _decimal(filters: Mapping[str, str], name: str) -> float:
    try:
        return float(filters[name])
    except ValueError:
        raise UserError(f"{name}: is {filters[name][:40]!r}, must be a number") from None


def _flag(filters: Mapping[str, str], name: str) -> bool:
    if filters[name] not in _FLAGS:
        raise UserError(f"{name}: is {filters[name][:40]!r}, must be 0 or 1")
    return _FLAGS[filters[name]]
