"""The stored episodes of a run, with the facts that the report needs about each: phase, outcome, replay.

The id of an episode begins with its phase: "batch3-0-1" was played in the fourth batch, "eval12-train-0-0" in
the evaluation after 12 batches. In asynchronous training, "group-17-1" belongs to the batch that trained on
group 17, by groups.jsonl.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from arpo.storage.codec import BATCH, EVALUATED, GROUP, StoredEpisode
from arpo.types import StopReason

_PHASE = re.compile(rf"({BATCH}|{EVALUATED})(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One stored episode. `shown`: its screenshots are still stored, so the report can show it."""

    stored: StoredEpisode
    solved: bool
    shown: bool
    replayed_in: tuple[int, ...] = ()  # batches, counted from 1
    trained_in: int | None = None  # batch, counted from 0; None: an evaluation, or in no batch

    @property
    def id(self) -> str:
        return self.stored.episode_id

    @property
    def task(self) -> str:
        return self.stored.task_id

    @property
    def phase(self) -> str:
        first = self.id.partition("-")[0]
        return f"{BATCH}{self.trained_in}" if first == GROUP and self.trained_in is not None else first


def phase_title(phase: str) -> str:
    """eval0: evaluation before training; eval12: evaluation after batch 12; batch0: training batch 1."""
    if phase == GROUP:
        return "training, in no batch"
    match = _PHASE.fullmatch(phase)
    if not match:
        return phase
    number = int(match[2])
    if match[1] == BATCH:
        return f"training batch {number + 1:,}"
    return f"evaluation after batch {number:,}" if number else "evaluation before training"


def phases(played: Iterable[Played], kind: str) -> dict[str, list[Played]]:
    """Episodes by phase, in the order of the run. `kind` is BATCH, EVALUATED, or "" for all phases."""
    found: dict[str, list[Played]] = {}
    for one in played:
        if one.phase.startswith(kind):
            found.setdefault(one.phase, []).append(one)
    return found


def stored_of(row: sqlite3.Row) -> StoredEpisode:
    """An episode of the index, without the names of its screenshots."""
    return StoredEpisode(
        episode_id=row["id"],
        task_id=row["task"],
        score=row["score"],
        malformed=bool(row["malformed"]),
        stop=StopReason(row["stop"]),
        steps=row["steps"],
        policy_version=row["version"],
        error=row["error"],
        has_tokens=row["tokens"] > 0,
        screenshots=(),
    )


def by_task(played: Iterable[Played]) -> Mapping[str, list[Played]]:
    found: dict[str, list[Played]] = {}
    for one in played:
        found.setdefault(one.task, []).append(one)
    return found
