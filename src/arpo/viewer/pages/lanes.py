"""The lanes of the timeline: which environment did what when, in cells of equal width.

An environment plays one episode, so a lane has one environment after another. Episodes of one host that do
not overlap share a lane. Everything is summed per cell, so 1,024 environments cost as much to draw as 128.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS = ("start", "step", "evaluate", "engine")  # digits of a row; "." is idle
COLUMNS = 300
MAX_ROWS = 128


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
