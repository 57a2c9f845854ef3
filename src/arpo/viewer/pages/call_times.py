"""Times of calls (calls.jsonl) for the pages "Episode" and "Timeline"."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from arpo.errors import UserError
from arpo.storage.run_folder import CALLS
from arpo.viewer.files import SafeFolder
from arpo.viewer.index import Index, read_indexed, storable
from arpo.viewer.pages.lanes import Attempt, lane_json

MAX_ATTEMPTS = 8_000  # of one window
MAX_BYTES = 8 << 20  # of the lines of one window: about 300,000 calls
MAX_CALLS = 20_000  # of one episode
MAX_ID = 200  # characters
_SAME_BEGIN = 1e-9  # seconds; a window must have a length

Json = dict[str, Any]


def checked_calls(record: Mapping[str, Any]) -> tuple[tuple[str, float, float], ...]:
    """The calls of a line. Raises ValueError if they are not in order, or have no times."""
    calls = record["calls"]
    if not isinstance(calls, list) or len(calls) > MAX_CALLS:
        raise ValueError(f"calls must be a list of at most {MAX_CALLS:,}")
    end = 0.0
    for name, began, seconds in calls:
        if not (isinstance(name, str) and _is_time(began) and _is_time(seconds)):
            raise ValueError("a call is not [name, begin, duration]")
        if began < end - 1e-3:  # each number is rounded
            raise ValueError("a call begins before the last one ends")
        end = began + seconds
    return tuple((name[:40], float(began), float(seconds)) for name, began, seconds in calls)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e9


def add_calls(connection: sqlite3.Connection, record: Mapping[str, Any], at: int, size: int) -> None:
    """Index a line: an attempt at an episode, or the stages of a batch."""
    calls = checked_calls(record)
    if not calls:
        return
    step = record.get("step")
    episode = None if step is not None else _id(record["episode"])
    if episode is None and (type(step) is not int or not 0 <= step < 1 << 31):
        raise ValueError("step is not a number of batches")
    ended = max(began + seconds for _, began, seconds in calls)
    connection.execute(
        "INSERT INTO calls (episode, step, began, ended, at, size) VALUES (?, ?, ?, ?, ?, ?)",
        (episode, step, calls[0][1], ended, at, size),
    )


class CallTimes:
    """Reads indexed lines. A run without calls.jsonl has none."""

    def __init__(self, folder: SafeFolder, index: Index) -> None:
        self._folder, self._index = folder, index

    def with_times(self, episode: str, steps: Sequence[Json]) -> Json:
        """The steps with the times of their calls, and those of start and evaluation; None if not stored.

        A time is [begin, duration]. The last attempt is the one that was played to its end.
        """
        row = self._index.row("SELECT * FROM calls WHERE episode = ? ORDER BY n DESC LIMIT 1", (episode,))
        calls = () if row is None else checked_calls(self._read(row))
        by_name: dict[str, list[list[float]]] = {}
        for name, began, seconds in calls:
            by_name.setdefault(name, []).append([began, seconds])
        answers, actions = (by_name.get(name, []) for name in ("engine", "step"))
        timed = []
        for index, step in enumerate(steps):
            times = {"engine": _at(answers, index), "step": _at(actions, index)} if calls else None
            seconds = times["engine"][1] if times and times["engine"] else step["seconds"]
            timed.append({**step, "times": times, "seconds": seconds})
        ends = {name: _at(by_name.get(name, []), 0) for name in ("start", "evaluate")}
        return {"steps_list": timed, "times": ends if calls else None}

    def lanes(self, batch: int | None) -> Json:
        """The lanes of a batch. None: of the whole run, or of the newest batch if the run is large."""
        batches = [
            {"batch": row["step"], "began": row["began"], "ended": row["ended"]}
            for row in self._index.rows(
                "SELECT step, min(began) AS began, max(ended) AS ended FROM calls WHERE step IS NOT NULL "
                "GROUP BY step ORDER BY step"
            )
        ]
        total = self._index.row(
            "SELECT count(*) AS n, min(began) AS b, max(ended) AS e, sum(size) AS size FROM calls"
        )
        if total is None or not total["n"]:
            return {"batches": [], "batch": None}
        if batch is None and batches and (total["n"] > MAX_ATTEMPTS or total["size"] > MAX_BYTES):
            batch = batches[-1]["batch"]
        began, ended = total["b"], total["e"]
        if batch is not None:
            chosen = next((one for one in batches if one["batch"] == batch), None)
            if chosen is None:
                raise UserError(f"batch {batch}: has no times yet")
            began, ended = chosen["began"], chosen["ended"]
        ended = max(ended, began + _SAME_BEGIN)
        found, complete = self._lines("episode", began, ended, MAX_ATTEMPTS)
        stages, _ = self._lines("step", began, ended, 2_000)
        return {
            "batches": batches,
            "batch": batch,
            "began": began,
            "ended": ended,
            "complete": complete,
            "learner": [call for line in stages for call in checked_calls(line)],
            **lane_json([_attempt(line) for line in found], began, ended),
        }

    def _lines(self, kind: str, began: float, ended: float, limit: int) -> tuple[list[Json], bool]:
        """The first lines of a window of time, and whether these are all of them."""
        rows = self._index.rows(
            f"SELECT * FROM calls WHERE {kind} IS NOT NULL AND ended >= ? AND began <= ? ORDER BY n LIMIT ?",
            (began, ended, limit + 1),
        )
        ends = accumulate(row["size"] for row in rows)
        taken = [row for row, end in zip(rows[:limit], ends, strict=False) if end <= MAX_BYTES]
        return [self._read(row) for row in taken], len(taken) == len(rows)

    def _read(self, row: sqlite3.Row) -> Json:
        def fits(record: Json) -> bool:
            name = record.get("episode")
            return (None if name is None else _id(name), record.get("step")) == (row["episode"], row["step"])

        return read_indexed(self._folder, self._index, CALLS, row, fits)


def _id(name: Any) -> str:
    return storable(str(name))[:MAX_ID]


def _at(times: Sequence[list[float]], index: int) -> list[float] | None:
    return times[index] if index < len(times) else None


def _attempt(record: Json) -> Attempt:
    return Attempt(
        episode=_id(record["episode"]),
        host=str(record.get("host", ""))[:200],
        fault=str(record.get("fault", ""))[:100],
        calls=checked_calls(record),
    )
