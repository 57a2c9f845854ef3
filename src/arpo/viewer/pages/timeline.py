"""Page "Timeline": times of batches (timing.jsonl) and of calls (calls.jsonl).

The lanes show which environment did what when, in cells of equal width. An environment plays one episode, so
a lane has one environment after another. Episodes of one host that do not overlap share a lane. Everything is
summed per cell, so 1,024 environments cost as much to draw as 128.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from arpo.errors import UserError
from arpo.storage.codec import StoredCalls
from arpo.storage.files import damage
from arpo.storage.run_folder import CALLS
from arpo.viewer.index import read_open
from arpo.viewer.run_index import checked_calls, clipped_id
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Json

# Labels of the parts of a batch's time, by their names in timing.jsonl and calls.jsonl.
LANES = {
    "start": "starting",
    "step": "stepping",
    "evaluate": "evaluating",
    "engine": "waiting for an answer",
}
ENVIRONMENTS = {**{f"env_{name}": label for name, label in LANES.items()}, "env_idle": "idle or closing"}
STAGES = {
    "rollout": "rollouts",
    "wait": "waiting for groups",
    "learn": "learning",
    "evaluate": "evaluation",
    "save": "saving",
    "judge": "log-probabilities of offline data",
}
KINDS = tuple(LANES)  # digits of a row; "." is idle
COLUMNS = 300
MAX_ROWS = 128
MAX_ATTEMPTS = 8_000  # of one window
MAX_BYTES = 8 << 20  # of the lines of one window: about 300,000 calls
_SAME_BEGIN = 1e-9  # seconds; a window must have a length


def timeline_page(run: RunSource) -> Json:
    return {"rows": run.timing.rows, "environments": ENVIRONMENTS, "stages": STAGES}


def lanes_page(run: RunSource, batch: int | None) -> Json:
    """The lanes of a batch. None: of the whole run, or of the newest batch if the run is large."""
    batches = [
        dict(row)
        for row in run.index.rows(
            "SELECT step AS batch, min(began) AS began, max(ended) AS ended FROM calls "
            "WHERE step IS NOT NULL GROUP BY step ORDER BY step"
        )
    ]
    total = run.index.row(
        "SELECT count(*) AS n, min(began) AS b, max(ended) AS e, sum(size) AS size FROM calls"
    )
    labels = {"labels": LANES, "stages": STAGES}
    if total is None or not total["n"]:
        return {"batches": [], "batch": None, **labels}
    if batch is None and batches and (total["n"] > MAX_ATTEMPTS or total["size"] > MAX_BYTES):
        batch = batches[-1]["batch"]
    began, ended = total["b"], total["e"]
    if batch is not None:
        chosen = next((one for one in batches if one["batch"] == batch), None)
        if chosen is None:
            raise UserError(f"batch {batch}: has no times yet")
        began, ended = chosen["began"], chosen["ended"]
    ended = max(ended, began + _SAME_BEGIN)
    found, complete = _lines(run, "episode", began, ended, MAX_ATTEMPTS)
    stages, _ = _lines(run, "step", began, ended, 2_000)
    return {
        "batches": batches,
        "batch": batch,
        "began": began,
        "ended": ended,
        "complete": complete,
        "learner": [call for line in stages for call in line.calls],
        **lane_json([_attempt(line) for line in found], began, ended),
        **labels,
    }


def _lines(
    run: RunSource, kind: str, began: float, ended: float, limit: int
) -> tuple[list[StoredCalls], bool]:
    """The first lines of a window of time, and whether these are all of them."""
    rows = run.index.rows(
        f"SELECT * FROM calls WHERE {kind} IS NOT NULL AND ended >= ? AND began <= ? ORDER BY n LIMIT ?",
        (began, ended, limit + 1),
    )
    ends = accumulate(row["size"] for row in rows)
    taken = [row for row, end in zip(rows[:limit], ends, strict=False) if end <= MAX_BYTES]
    if not taken:
        return [], True
    with run.folder.open(CALLS) as descriptor:
        return [_read(run, descriptor, row) for row in taken], len(taken) == len(rows)


def _read(run: RunSource, descriptor: int, row: sqlite3.Row) -> StoredCalls:
    def fits(record: Json) -> bool:
        name = record.get("episode")
        found = None if name is None else clipped_id(name), record.get("step")
        return found == (row["episode"], row["step"])

    record = read_open(descriptor, run.folder, run.index, CALLS, row, fits)
    with damage(run.folder.path(CALLS)):
        return checked_calls(record)


def add_times(run: RunSource, episode: str, steps: Sequence[Json]) -> Json:
    """The steps with the times of their calls, and those of start and evaluation; None if not stored.

    A time is [begin, duration]. The last attempt is the one that was played to its end.
    """
    row = run.index.row("SELECT * FROM calls WHERE episode = ? ORDER BY n DESC LIMIT 1", (episode,))
    calls: tuple[tuple[str, float, float], ...] = ()
    if row is not None:
        with run.folder.open(CALLS) as descriptor:
            calls = _read(run, descriptor, row).calls
    by_name: dict[str, list[list[float]]] = {}
    for name, began, seconds in calls:
        by_name.setdefault(name, []).append([began, seconds])

    def at(index: int, *names: str) -> Json | None:
        found = {name: dict(enumerate(by_name.get(name, ()))).get(index) for name in names}
        return found if calls else None

    timed = []
    for index, step in enumerate(steps):
        times = at(index, "engine", "step")
        seconds = times["engine"][1] if times and times["engine"] else step["seconds"]
        timed.append({**step, "times": times, "seconds": seconds})
    return {"steps_list": timed, "times": at(0, "start", "evaluate")}


def _attempt(line: StoredCalls) -> Attempt:
    return Attempt(
        episode=clipped_id(line.episode), host=line.host[:200], fault=line.fault[:100], calls=line.calls
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt at an episode. A call is (name, begin, duration), in seconds since the start of the run."""

    episode: str
    host: str
    fault: str
    calls: tuple[tuple[str, float, float], ...]

    @property
    def began(self) -> float:
        return self.calls[0][1]

    @property
    def ended(self) -> float:
        return self.calls[-1][1] + self.calls[-1][2]


def lane_json(attempts: Sequence[Attempt], began: float, ended: float) -> dict[str, Any]:
    """The rows of a window of time, and the engine: requests per cell, and the share of time with any.

    At most MAX_ROWS rows: with more lanes, each row has several, and shows what most of them do.
    """
    lanes = assign_lanes(attempts)
    count = max(lanes, default=-1) + 1
    per_row = max(1, -(-count // MAX_ROWS))
    rows = -(-count // per_row)
    cells_RKC = np.zeros((rows, len(KINDS), COLUMNS))
    episodes: list[list[Any]] = [[] for _ in range(rows)]
    requests: list[tuple[float, float]] = []
    scale = COLUMNS / (ended - began)
    for kind, name in enumerate(KINDS):
        spans = [
            (lane // per_row, (start - began) * scale, (start + seconds - began) * scale)
            for lane, attempt in zip(lanes, attempts, strict=True)
            for called, start, seconds in attempt.calls
            if called == name
        ]
        cells_RKC[:, kind] = _covered(spans, rows)
        if name == "engine":
            requests = [(start, end) for _, start, end in spans]
    for lane, attempt in zip(lanes, attempts, strict=True):
        entry = [attempt.episode, attempt.began, attempt.ended, attempt.fault, attempt.host]
        episodes[lane // per_row].append(entry)
    return {
        "lanes": count,
        "per_row": per_row,
        "columns": COLUMNS,
        "kinds": list(KINDS),
        "rows": [
            {"cells": cells, "episodes": found}
            for cells, found in zip(_digits(cells_RKC, per_row), episodes, strict=True)
        ],
        "requests": _rounded(_covered([(0, *span) for span in requests], 1)[0]),
        "engine": _rounded(_covered([(0, *span) for span in _union(requests)], 1)[0]),
    }


def assign_lanes(attempts: Sequence[Attempt]) -> list[int]:
    """The lane of each attempt: the first one of its host that is free. Lanes of a host are consecutive.

    >>> assign_lanes([attempt(0, 5), attempt(2, 4), attempt(4, 6)])  # doctest: +SKIP
    [0, 1, 1]
    """
    free: dict[str, list[int]] = {}
    busy: dict[str, list[tuple[float, int]]] = {}
    within: list[tuple[str, int]] = [("", 0)] * len(attempts)
    for index in sorted(range(len(attempts)), key=lambda index: attempts[index].began):
        attempt = attempts[index]
        own_free, own_busy = free.setdefault(attempt.host, []), busy.setdefault(attempt.host, [])
        while own_busy and own_busy[0][0] <= attempt.began:
            heapq.heappush(own_free, heapq.heappop(own_busy)[1])
        lane = heapq.heappop(own_free) if own_free else len(own_busy)
        heapq.heappush(own_busy, (attempt.ended, lane))
        within[index] = attempt.host, lane
    first, firsts = 0, {}
    for host in sorted(busy):
        firsts[host] = first
        first += len(busy[host]) + len(free[host])
    return [firsts[host] + lane for host, lane in within]


def _covered(spans: Sequence[tuple[int, float, float]], rows: int) -> np.ndarray:
    """How much of each cell the spans (row, begin, end) cover. Begin and end are in cells."""
    covered_RC = np.zeros((rows, COLUMNS + 1))
    if not spans or not rows:
        return covered_RC[:, :COLUMNS]
    row_S, start_S, end_S = (np.array(values) for values in zip(*spans, strict=True))
    start_S, end_S = np.clip(start_S, 0, COLUMNS), np.clip(end_S, 0, COLUMNS)
    first_S, last_S = start_S.astype(int), end_S.astype(int)
    # Full cells between the first and the last one, as differences; then the parts of these two.
    changes_RC = np.zeros_like(covered_RC)
    np.add.at(changes_RC, (row_S, first_S), 1.0)
    np.add.at(changes_RC, (row_S, last_S), -1.0)
    covered_RC += np.cumsum(changes_RC, axis=1)
    np.add.at(covered_RC, (row_S, first_S), first_S - start_S)
    np.add.at(covered_RC, (row_S, last_S), end_S - last_S)
    return covered_RC[:, :COLUMNS]


def _digits(cells_RKC: np.ndarray, per_row: int) -> list[str]:
    """One character per cell: the kind that covers most of it, or "." if none covers more than idling."""
    idle_RC = per_row - cells_RKC.sum(axis=1)
    best_RC = cells_RKC.argmax(axis=1)
    is_idle_RC = idle_RC >= cells_RKC.max(axis=1, initial=0.0) - 1e-9
    characters = np.array([*map(str, range(len(KINDS))), "."])
    chosen_RC = np.where(is_idle_RC, len(KINDS), best_RC)
    return ["".join(row) for row in characters[chosen_RC]]


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The time in any of the spans, as spans that do not overlap."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _rounded(values_C: np.ndarray) -> list[float]:
    return [round(float(value), 3) for value in values_C]
