"""Page "Episodes": lists of episodes with filters."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from arpo.errors import UserError
from arpo.reporting.findings import NUMBERED_PHASE, phase_title
from arpo.storage.codec import BATCH, EVALUATED, GROUP
from arpo.viewer.index import Index, Outdated, storable
from arpo.viewer.source import Json, Source

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
_COLUMNS = f"episodes.*, {_SHOWN} AS shown, ({_REPLAYED}) AS replayed_in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """An indexed episode. Its fields are those of its JSON form."""

    episode: str  # its id
    group: str
    task: str
    phase: str  # as in the filter: batch4 (counted from 1), eval12, collect, seed, group (in no batch)
    batch: int | None
    score: float | None
    solved: bool
    malformed: bool
    stop: str
    steps: int
    tokens: int
    version: int
    replayed_in: tuple[int, ...]  # batches
    shown: bool  # whether its screenshots are stored
    error: str  # of the last answer


def read_episodes(source: Source, query: str, values: Sequence[object] = ()) -> list[Episode]:
    """Indexed episodes. `query` are conditions and order: "WHERE task = ? ORDER BY n"."""
    rows = source.index.rows(f"SELECT {_COLUMNS} FROM episodes {query}", values)
    return [_episode(row, source.threshold) for row in rows]


def find_episode(source: Source, name: str) -> Episode:
    found = read_episodes(source, "WHERE id = ?", (name,))
    if not found:
        raise Outdated(f"{name!r}: no such episode, or it is not indexed yet")
    return found[0]


def _episode(row: sqlite3.Row, threshold: float) -> Episode:
    same = {
        name: row[name] for name in ("task", "batch", "score", "stop", "steps", "tokens", "version", "error")
    }
    return Episode(
        **same,
        episode=row["id"],
        group=row["group_id"],
        phase=_phase(row),
        solved=row["score"] is not None and row["score"] >= threshold,
        malformed=bool(row["malformed"]),
        replayed_in=tuple(sorted(map(int, (row["replayed_in"] or "").split(","))))
        if row["replayed_in"]
        else (),
        shown=bool(row["shown"]),
    )


def episode_json(source: Source, one: Episode) -> Json:
    return {
        **asdict(one),
        "replayed_in": list(one.replayed_in),
        "instruction": source.instruction(one.task),
        "phase_title": phase_title(one.phase),
    }


def episodes_page(source: Source, filters: Mapping[str, str]) -> Json:
    """One page of the matching episodes, with the total."""
    conditions = list(_conditions(source, {name: storable(value) for name, value in filters.items()}))
    where = " WHERE " + " AND ".join(condition for condition, *_ in conditions) if conditions else ""
    values = [value for _, *values in conditions for value in values]
    size = min(_number(filters, "size", PAGE), MAX_PAGE)
    page = _number(filters, "page", 0)
    found = read_episodes(
        source,
        f"{where} ORDER BY {_order(filters)} LIMIT ? OFFSET ?",
        [*values, size, page * size],
    )
    text = filters.get("text", "")
    rows = [episode_json(source, one) for one in found]
    if text:
        rows = [{**row, "snippet": snippet("\n".join(source.answers(row["episode"])), text)} for row in rows]
    stops = source.index.rows("SELECT DISTINCT stop FROM episodes ORDER BY stop")
    return {
        "total": source.index.count(f"episodes{where}", values),
        "page": page,
        "size": size,
        "episodes": rows,
        "stops": [row["stop"] for row in stops],
        "phases": phases(source.index),
    }


def _phase(row: sqlite3.Row) -> str:
    if row["batch"] is not None:
        return f"{BATCH}{row['batch']}"
    return f"{EVALUATED}{row['number']}" if row["kind"] == EVALUATED else row["kind"]


def phases(index: Index) -> list[Json]:
    """All phases except training batches, which have a page of their own."""
    rows = index.rows(
        "SELECT kind, number, batch, count(*) AS total, min(n) FROM episodes WHERE batch IS NULL "
        "GROUP BY kind, CASE WHEN kind = ? THEN number END ORDER BY min(n)",
        (EVALUATED,),
    )
    found = [(_phase(row), row["total"]) for row in rows]
    return [{"phase": phase, "title": phase_title(phase), "episodes": total} for phase, total in found]


def _conditions(source: Source, filters: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """(SQL, value, …) for each filter."""
    for name, column in (("task", "task"), ("stop", "stop"), ("group", "group_id")):
        if filters.get(name):
            yield f"{column} = ?", filters[name]
    if phase := filters.get("phase"):
        match = NUMBERED_PHASE.fullmatch(phase)
        if match and match[1] == BATCH:
            yield "batch = ?", int(match[2])
        elif match:
            yield "kind = ? AND number = ?", EVALUATED, int(match[2])
        else:
            yield "kind = ? AND batch IS NULL" if phase == GROUP else "kind = ?", phase
    if filters.get("batch"):
        yield "batch = ?", _number(filters, "batch", 0)
    for name, sign in (("min_score", ">="), ("max_score", "<=")):
        if filters.get(name):
            yield f"score {sign} ?", _decimal(filters, name)
    if filters.get("solved"):
        yield f"coalesce(score, 0) {'>=' if _flag(filters, 'solved') else '<'} ?", source.threshold
    if filters.get("malformed"):
        yield "malformed = ?", int(_flag(filters, "malformed"))
    if filters.get("shown"):
        yield f"{_SHOWN} = ?", int(_flag(filters, "shown"))
    if filters.get("replayed"):
        yield (f"id {'IN' if _flag(filters, 'replayed') else 'NOT IN'} (SELECT episode FROM replayed)",)
    text = filters.get("text", "")[:MAX_TEXT].replace("\0", " ")
    if words := text.split()[:MAX_WORDS]:
        # Every word must occur; the last one may be the beginning of a word. Ids match as a whole.
        quoted = " ".join('"' + word.replace('"', '""') + '"' for word in words)
        found = "n IN (SELECT rowid FROM words WHERE words MATCH ?)"
        yield f"({found} OR id = ? OR task = ?)", f"{quoted}*", text.strip(), text.strip()


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
