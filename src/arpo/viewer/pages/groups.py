"""Pages "Batches", "Batch" and "Group": episodes with the rewards and advantages of groups.jsonl."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from arpo.config import Config
from arpo.errors import UserError
from arpo.storage.codec import GROUP, StoredGroup, stored_group
from arpo.types import Rescue
from arpo.viewer.index import Index, storable
from arpo.viewer.pages.episodes import COLUMNS, Listing

EARLIER_NOTE = "An earlier version wrote this run: it has no record of rewards, advantages and replay."


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReader:
    config: Config
    index: Index
    listing: Listing
    recorded: Callable[[], bool]  # whether the run has groups.jsonl

    def batches(self, metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """All batches with their counts, those of groups from metrics.jsonl."""
        logged = {row["step"]: row for row in metrics}
        rows = self.index.rows(
            "SELECT batch, count(DISTINCT group_id) AS groups, count(*) AS episodes, "
            "sum(score >= ?) AS solved FROM episodes WHERE batch IS NOT NULL GROUP BY batch ORDER BY batch",
            (self.listing.threshold,),
        )
        failed = self._counts("SELECT batch, count(*) AS count FROM failures GROUP BY batch")
        dropped = self._counts("SELECT batch, count(*) AS count FROM groups WHERE dropped GROUP BY batch")
        return [
            {
                **{name: row[name] for name in ("batch", "groups", "episodes", "solved")},
                "failed": failed.get(row["batch"], 0),
                **{name: logged.get(row["batch"], {}).get(name) for name in ("rescued", "without_signal")},
                "dropped": dropped.get(row["batch"], 0),
            }
            for row in rows
        ]

    def _counts(self, query: str) -> dict[int, int]:
        return {row["batch"]: row["count"] for row in self.index.rows(query)}

    def batch(self, number: int) -> dict[str, Any]:
        """The groups of a batch, in its order; then those dropped before it."""
        rows = self.index.rows(f"SELECT {COLUMNS} FROM episodes WHERE batch = ? ORDER BY place, n", (number,))
        dropped = self.index.rows("SELECT id FROM groups WHERE batch = ? AND dropped", (number,))
        names = list(dict.fromkeys(row["group_id"] for row in rows))
        failed = self.index.rows("SELECT DISTINCT group_id FROM failures WHERE batch = ?", (number,))
        names += [row["group_id"] for row in failed if row["group_id"] not in names]
        names += [row["id"] for row in dropped]
        if not names:
            raise UserError(f"batch {number}: has no episodes, or they are not indexed yet")
        return {
            "batch": number,
            "previous": self._batch_beside(number, "<", "max"),
            "next": self._batch_beside(number, ">", "min"),
            "note": self._note,
            "groups": [self.group(name) for name in names],
        }

    def _batch_beside(self, number: int, sign: str, choice: str) -> int | None:
        row = self.index.row(f"SELECT {choice}(batch) AS batch FROM episodes WHERE batch {sign} ?", (number,))
        return row["batch"] if row else None

    def group(self, name: str) -> dict[str, Any]:
        """One group with its dots. A group without episodes was dropped, or all of its episodes failed."""
        rows = self.index.rows(f"SELECT {COLUMNS} FROM episodes WHERE group_id = ? ORDER BY n", (name,))
        failures = self.index.rows("SELECT * FROM failures WHERE group_id = ? ORDER BY n", (name,))
        record = self._record(name)
        rescues = {rescue.index: rescue for rescue in record.rescues} if record else {}
        signal = any(record.advantages) if record and not record.dropped else None
        task = (rows[0] if rows else failures[0])["task"] if rows or failures else ""
        return {
            "group": name,
            "batch": rows[0]["batch"] if rows else None,
            "task": task,
            "instruction": self.listing.instruction(task),
            "solved": sum(self._solved(row) for row in rows),
            "episodes_count": len(rows),
            "signal": signal,
            "mean": fmean(record.rewards) if record and record.rewards else None,
            "sigma": pstdev(record.rewards) if record and record.rewards else None,
            "dropped": self._dropped(name, rows, signal),
            "note": self._note,
            "dots": [
                self._dot(row, rescues.get(place), reward, advantage)
                for place, (row, reward, advantage) in enumerate(self._members(rows, record))
                if row is not None
            ]
            + [_failure_dot(failure) for failure in failures],
        }

    @property
    def _note(self) -> str:
        return "" if self.recorded() else EARLIER_NOTE

    def _record(self, name: str) -> StoredGroup | None:
        """None if no batch has trained the group, or the run was written by an earlier version."""
        row = self.index.row("SELECT record FROM groups WHERE id = ?", (name,))
        return stored_group(json.loads(row["record"])) if row and row["record"] else None

    def _members(
        self, played: Sequence[sqlite3.Row], record: StoredGroup | None
    ) -> Iterator[tuple[sqlite3.Row | None, float | None, float | None]]:
        """The trained episodes with reward and advantage, or the played ones if none is trained."""
        if record is None or record.dropped:
            yield from ((row, None, None) for row in played)
            return
        for name, reward, advantage in zip(record.episodes, record.rewards, record.advantages, strict=True):
            query = f"SELECT {COLUMNS} FROM episodes WHERE id = ?"
            yield self.index.row(query, (storable(name),)), reward, advantage

    def _dot(
        self, row: sqlite3.Row, rescue: Rescue | None, reward: float | None, advantage: float | None
    ) -> dict[str, Any]:
        kind = "solved" if self._solved(row) else "failed"
        return {
            "episode": row["id"],
            "kind": "replayed" if rescue else kind,
            "score": row["score"],
            "reward": reward,
            "advantage": advantage,
            "malformed": bool(row["malformed"]),
            "stop": row["stop"],
            "steps": row["steps"],
            "shown": bool(row["shown"]),
            "task": row["task"],
            "replaced": rescue.replaced_episode if rescue else None,
            "origin_batch": row["batch"] if rescue else None,
            "age": rescue.age if rescue else None,
            "error": None,
        }

    def episode_credit(self, row: sqlite3.Row) -> dict[str, Any]:
        """Reward and advantage of a training episode, and the success that replaced it in its group."""
        dots = self.group(row["group_id"])["dots"] if row["batch"] is not None else []
        own = next((dot for dot in dots if dot["episode"] == row["id"] and dot["replaced"] is None), None)
        instead = next((dot for dot in dots if dot["replaced"] == row["id"]), None)
        return {
            "reward": own["reward"] if own else None,
            "advantage": own["advantage"] if own else None,
            "replaced_by": {"episode": instead["episode"], "batch": row["batch"], "age": instead["age"]}
            if instead
            else None,
        }

    def replaced_dot(self, name: str) -> dict[str, Any] | None:
        row = self.index.row(f"SELECT {COLUMNS} FROM episodes WHERE id = ?", (name,))
        return self._dot(row, None, None, None) if row is not None else None

    def neighbours(self, name: str) -> dict[str, str | None]:
        """The groups before and after one, in the order of the run."""
        row = self.index.row(
            "SELECT min(n) AS first, max(n) AS last FROM episodes WHERE group_id = ?", (name,)
        )
        if row is None or row["first"] is None:
            return {"previous": None, "next": None}
        before = self.index.row(
            "SELECT group_id FROM episodes WHERE n < ? ORDER BY n DESC LIMIT 1", (row["first"],)
        )
        after = self.index.row("SELECT group_id FROM episodes WHERE n > ? ORDER BY n LIMIT 1", (row["last"],))
        return {
            "previous": before["group_id"] if before else None,
            "next": after["group_id"] if after else None,
        }

    def _solved(self, row: sqlite3.Row) -> bool:
        return row["score"] is not None and row["score"] >= self.listing.threshold

    def _dropped(self, name: str, rows: Sequence[sqlite3.Row], signal: bool | None) -> str | None:
        """Why a group was not trained on, in words."""
        if name.startswith(f"{GROUP}-"):
            placed = self.index.row("SELECT dropped FROM groups WHERE id = ?", (name,))
            if placed is None:
                return "no batch has taken it yet"
            if placed["dropped"]:
                limit = self.config.train.max_staleness
                stale = f"no batch could take it within train.max_staleness = {limit}"
                return f"stale: {stale}; its task was played again"
        if (
            len(rows) < 2
            and self.config.rollout.group_size > 1
            and (not rows or rows[0]["batch"] is not None)
        ):
            return "fewer than two episodes were played: there is nothing to compare"
        if self.config.train.dynamic_sampling and signal is False and rows:
            return "no signal: dynamic sampling played another group instead"
        return None


def _failure_dot(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "episode": row["id"],
        "kind": "error",
        "score": None,
        "reward": None,
        "advantage": None,
        "malformed": False,
        "stop": None,
        "steps": None,
        "shown": False,
        "task": row["task"],
        "replaced": None,
        "origin_batch": None,
        "age": None,
        "error": f"{row['kind']} in {row['called']}: {row['message']}",
    }
