"""Groups of a run as JSON: each episode with its reward and advantage, after replay, and the failed ones.

Rewards and advantages are those of `arpo.algorithms`, computed again from stored scores and the recipe. A
plug-in is never called: a run folder may come from somebody else.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean, pstdev
from typing import Any

from arpo.algorithms.advantages import has_signal
from arpo.algorithms.credit import Credit
from arpo.config import Config
from arpo.errors import UserError
from arpo.storage.codec import GROUP
from arpo.types import Group, Rescue
from arpo.viewer.index import Index
from arpo.viewer.pages.episodes import COLUMNS, Listing
from arpo.viewer.rescues import Rescues, outline_of

PLUGIN_NOTE = "not computed: the recipe has a plug-in for rewards or advantages"
STATE_NOTE = "advantages of episodes: loss.state_weight adds those of steps, also if all rewards are equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReader:
    config: Config
    index: Index
    rescues: Rescues
    listing: Listing

    def batches(self, metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """All batches with their counts, those of groups from metrics.jsonl."""
        logged = {row["step"]: row for row in metrics}
        rows = self.index.rows(
            "SELECT batch, count(DISTINCT group_id) AS groups, count(*) AS episodes, "
            "sum(score >= ?) AS solved FROM episodes WHERE batch IS NOT NULL GROUP BY batch ORDER BY batch",
            (self.listing.threshold,),
        )
        failed = self._counts("SELECT batch, count(*) AS count FROM failures GROUP BY batch")
        dropped = self._counts("SELECT batch, count(*) AS count FROM placed WHERE dropped GROUP BY batch")
        return [
            {
                **{name: row[name] for name in ("batch", "groups", "episodes", "solved")},
                "failed": failed.get(row["batch"], 0),
                "rescued": self.rescues.count(row["batch"]),
                "without_signal": logged.get(row["batch"], {}).get("without_signal"),
                "dropped": dropped.get(row["batch"], 0),
            }
            for row in rows
        ]

    def _counts(self, query: str) -> dict[int, int]:
        return {row["batch"]: row["count"] for row in self.index.rows(query)}

    def batch(self, number: int) -> dict[str, Any]:
        """The groups of a batch, in its order; then those dropped before it."""
        rows = self.index.rows(f"SELECT {COLUMNS} FROM episodes WHERE batch = ? ORDER BY place, n", (number,))
        dropped = self.index.rows("SELECT number FROM placed WHERE batch = ? AND dropped", (number,))
        names = list(dict.fromkeys(row["group_id"] for row in rows))
        failed = self.index.rows("SELECT DISTINCT group_id FROM failures WHERE batch = ?", (number,))
        names += [row["group_id"] for row in failed if row["group_id"] not in names]
        names += [f"{GROUP}-{row['number']}" for row in dropped]
        if not names:
            raise UserError(f"batch {number}: has no episodes, or they are not indexed yet")
        return {
            "batch": number,
            "previous": self._batch_beside(number, "<", "max"),
            "next": self._batch_beside(number, ">", "min"),
            "groups": [self.group(name) for name in names],
        }

    def _batch_beside(self, number: int, sign: str, choice: str) -> int | None:
        row = self.index.row(f"SELECT {choice}(batch) AS batch FROM episodes WHERE batch {sign} ?", (number,))
        return row["batch"] if row else None

    def group(self, name: str) -> dict[str, Any]:
        """One group with its dots. A group without episodes was dropped, or all of its episodes failed."""
        rows = self.index.rows(f"SELECT {COLUMNS} FROM episodes WHERE group_id = ? ORDER BY n", (name,))
        failures = self.index.rows("SELECT * FROM failures WHERE group_id = ? ORDER BY n", (name,))
        members, rescues = self._after_replay(rows, self.rescues.by_group(name))
        rewards, advantages = self._credit(name, members)
        signal = has_signal(rewards) if rewards else False
        task = (rows[0] if rows else failures[0])["task"] if rows or failures else ""
        return {
            "group": name,
            "batch": rows[0]["batch"] if rows else None,
            "task": task,
            "instruction": self.listing.instruction(task),
            "solved": sum(self._solved(row) for row in rows),
            "episodes_count": len(rows),
            "signal": signal,
            "mean": fmean(rewards) if rewards else None,
            "sigma": pstdev(rewards) if rewards else None,
            "dropped": self._dropped(name, rows, signal),
            "advantage_note": self._advantage_note,
            "dots": [
                self._dot(row, rescues.get(place), reward, advantage)
                for place, (row, reward, advantage) in enumerate(zip_longest(members, rewards, advantages))
            ]
            + [_failure_dot(failure) for failure in failures],
        }

    @property
    def _has_plugin(self) -> bool:
        return bool(self.config.plugins.reward or self.config.plugins.advantage)

    @property
    def _advantage_note(self) -> str:
        if self._has_plugin:
            return PLUGIN_NOTE
        return STATE_NOTE if self.config.loss.state_weight else ""

    def _after_replay(
        self, rows: Sequence[sqlite3.Row], rescues: Sequence[Rescue]
    ) -> tuple[list[sqlite3.Row], dict[int, Rescue]]:
        members = list(rows)
        for rescue in rescues:
            stored = self.index.row(f"SELECT {COLUMNS} FROM episodes WHERE id = ?", (rescue.stored_episode,))
            if stored is not None and rescue.index < len(members):
                members[rescue.index] = stored
        return members, {rescue.index: rescue for rescue in rescues}

    def _credit(
        self, name: str, members: Sequence[sqlite3.Row]
    ) -> tuple[Sequence[float], Sequence[float | None]]:
        """Rewards and advantages by member. Without rewards if a plug-in made them."""
        if self._has_plugin or not members:
            return [], [None] * len(members)
        credit = Credit(self.config.loss)
        trajectories = tuple(map(outline_of, members))
        group = Group(index=0, task_id=name, trajectories=trajectories)
        return [credit.reward(one) for one in trajectories], credit.advantages(group)

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

    def _dropped(self, name: str, rows: Sequence[sqlite3.Row], signal: bool) -> str | None:
        """Why a group was not trained on, in words."""
        if name.startswith(f"{GROUP}-"):
            number = name.removeprefix(f"{GROUP}-")
            placed = self.index.row("SELECT dropped FROM placed WHERE number = ?", (number,))
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
        replaced = self.config.train.dynamic_sampling and not self.config.loss.state_weight and not signal
        if replaced and rows and rows[0]["batch"] is not None:
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
