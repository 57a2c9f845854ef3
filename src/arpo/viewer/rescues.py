"""Which stored successes replay put into which groups, and the advantages of the groups after that.

The run folder does not record either. Replay is deterministic, so the same buffer with the same random
numbers repeats its choices, batch by batch. The newest batch may be incomplete: it is repeated until a later
one begins.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from itertools import groupby

from arpo.algorithms.replay import ReplayBuffer, replay_rng, task_key
from arpo.config import Config
from arpo.errors import UserError
from arpo.storage.codec import StoredEpisode
from arpo.types import Group, Rescue, StopReason, Trajectory
from arpo.viewer.index import Index
from arpo.viewer.played import outline

_COLUMNS = "id, task, score, malformed, stop, steps, tokens, version, error, batch, place, group_id"


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


def outline_of(row: sqlite3.Row) -> Trajectory:
    """The parts of an episode for replay and rewards."""
    return outline(stored_of(row))


class Rescues:
    """The rescues of a run by group id, and the batches of each replayed episode."""

    def __init__(self, config: Config, index: Index, key: Callable[[str], str] = task_key) -> None:
        """`key`: of a task's successes in the buffer, as in `ReplayBuffer`."""
        self._config, self._index, self._key = config, index, key
        self._lock = threading.Lock()
        self._total, self._next = 0, 0  # indexed training episodes, first batch to repeat
        self._forget()

    def by_group(self, group_id: str) -> tuple[Rescue, ...]:
        return self._newest.get(group_id) or self._final.get(group_id, ())

    def batches_of(self, episode_id: str) -> list[int]:
        """Batches in which the episode was replayed, counted from 1."""
        return [*self._used.get(episode_id, ()), *self._newest_used.get(episode_id, ())]

    def replayed(self) -> set[str]:
        return {*self._used, *self._newest_used}

    def rescued_groups(self) -> set[str]:
        return {*self._final, *self._newest}

    def count(self, batch: int) -> int:
        return self._counts.get(batch, 0)

    def refresh(self, deadline: float) -> bool:
        """Repeat the batches indexed since the last call. True: all of them.

        `deadline` is in seconds of time.monotonic().
        """
        with self._lock:
            if self._generation != self._index.generation:
                self._forget()
            total = self._index.rows("SELECT count(*) AS n FROM episodes WHERE batch IS NOT NULL")[0]["n"]
            if total == self._total or not self._config.replay.enabled:
                return True
            complete = self._advance(deadline)
            self._total = total if complete else 0
            return complete

    def _forget(self) -> None:
        self._generation, self._total, self._next = self._index.generation, 0, 0
        self._buffer = self._empty()
        self._final: dict[str, tuple[Rescue, ...]] = {}
        self._newest: dict[str, tuple[Rescue, ...]] = {}
        self._used: dict[str, list[int]] = {}
        self._newest_used: dict[str, list[int]] = {}
        self._counts: dict[int, int] = {}

    def _advance(self, deadline: float) -> bool:
        query = "SELECT DISTINCT batch FROM episodes WHERE batch >= ? ORDER BY batch"
        batches = [row["batch"] for row in self._index.rows(query, (self._next,))]
        for batch in batches[:-1]:
            self._repeat(self._buffer, batch, self._final, self._used)
            self._next = batch + 1
            if time.monotonic() > deadline:
                return False
        newest, self._newest, self._newest_used = self._empty(), {}, {}
        newest.restore(
            outline_of(self._row(name)) for names in self._buffer.state().values() for name in names
        )
        for batch in batches[-1:]:
            self._repeat(newest, batch, self._newest, self._newest_used)
        return True

    def _empty(self) -> ReplayBuffer:
        return ReplayBuffer(self._config.replay, key=self._key)

    def _row(self, episode_id: str) -> sqlite3.Row:
        row = self._index.row(f"SELECT {_COLUMNS} FROM episodes WHERE id = ?", (episode_id,))
        if row is None:  # the index was made again meanwhile
            raise UserError(f"{episode_id}: is not indexed yet")
        return row

    def _repeat(
        self,
        buffer: ReplayBuffer,
        batch: int,
        found: dict[str, tuple[Rescue, ...]],
        used: dict[str, list[int]],
    ) -> None:
        members = self._index.rows(
            f"SELECT {_COLUMNS} FROM episodes WHERE batch = ? ORDER BY place, n", (batch,)
        )
        names: dict[int, str] = {}
        groups = []
        for index, rows in groupby(members, key=lambda row: row["place"]):
            episodes = list(rows)
            names[index] = episodes[0]["group_id"]
            trajectories = tuple(map(outline_of, episodes))
            groups.append(Group(index=index, task_id=episodes[0]["task"], trajectories=trajectories))
        self._counts[batch] = 0
        for group in buffer.rescue(groups, replay_rng(self._config.run.seed, batch - 1), batch - 1):
            if group.rescues:
                found[names[group.index]] = group.rescues
                self._counts[batch] += len(group.rescues)
            for rescue in group.rescues:
                used.setdefault(rescue.stored_episode, []).append(batch)
