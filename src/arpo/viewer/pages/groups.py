"""Page "Group": the episodes of a group with the rewards and advantages of groups.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import fmean, pstdev

from arpo.storage.codec import GROUP, StoredGroup, stored_group
from arpo.types import Rescue
from arpo.viewer.index import Outdated, storable
from arpo.viewer.pages.episodes import Episode, read_episodes
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Json

EARLIER_NOTE = "An earlier version wrote this run: it has no record of rewards, advantages and replay."
_NOT_PLAYED = dict.fromkeys(
    ("score", "reward", "advantage", "stop", "steps", "replaced", "origin_batch", "age")
)


def group_page(run: RunSource, name: str) -> Json:
    """The group, and the steps of its episodes."""
    group = group_json(run, name)
    dots = group.pop("dots")
    if not dots:
        raise Outdated(f"{name!r}: no such group, or it is not indexed yet")
    return {**group, **_neighbours(run, name), "members": [_member(run, dot) for dot in dots]}


def _member(run: RunSource, dot: Json) -> Json:
    steps = [] if dot["kind"] == "error" else run.steps(dot["episode"])[0]
    replaced = read_episodes(run, "WHERE id = ?", (dot["replaced"],))
    return {**dot, "steps_list": steps, "replaced_dot": _dot(replaced[0]) if replaced else None}


def group_json(run: RunSource, name: str) -> Json:
    """One group with its dots. A group without episodes: all of them failed."""
    played = read_episodes(run, "WHERE group_id = ? ORDER BY n", (name,))
    failures = run.index.rows("SELECT * FROM failures WHERE group_id = ? ORDER BY n", (name,))
    record = _record(run, name)
    rewards = record.rewards if record else ()
    signal = any(record.advantages) if record else None
    task = next((one.task for one in played), next((row["task"] for row in failures), ""))
    return {
        "group": name,
        "batch": played[0].batch if played else None,
        "task": task,
        "instruction": run.instruction(task),
        "solved": sum(one.solved for one in played),
        "episodes_count": len(played),
        "signal": signal,
        "mean": fmean(rewards) if rewards else None,
        "sigma": pstdev(rewards) if rewards else None,
        "dropped": _dropped(run, name, played, signal),
        "note": note_of(run),
        "dots": [
            *_dots(run, played, record),
            *(
                {
                    **_NOT_PLAYED,
                    "episode": row["id"],
                    "kind": "error",
                    "malformed": False,
                    "shown": False,
                    "task": row["task"],
                    "error": f"{row['kind']} in {row['called']}: {row['message']}",
                }
                for row in failures
            ),
        ],
    }


def note_of(run: RunSource) -> str:
    return "" if run.records_groups() else EARLIER_NOTE


def _record(run: RunSource, name: str) -> StoredGroup | None:
    """None if no batch has trained the group, or the run was written by an earlier version."""
    row = run.index.row("SELECT record FROM groups WHERE id = ?", (name,))
    return stored_group(json.loads(row["record"])) if row and row["record"] else None


def _dots(run: RunSource, played: Sequence[Episode], record: StoredGroup | None) -> Iterator[Json]:
    """The trained episodes with reward and advantage, or the played ones if none is trained."""
    if record is None:
        yield from map(_dot, played)
        return
    rescues = {rescue.index: rescue for rescue in record.rescues}
    trained = zip(record.episodes, record.rewards, record.advantages, strict=True)
    for place, (name, reward, advantage) in enumerate(trained):
        for one in read_episodes(run, "WHERE id = ?", (storable(name),)):
            yield {**_dot(one, rescues.get(place)), "reward": reward, "advantage": advantage}


def _dot(one: Episode, rescue: Rescue | None = None) -> Json:
    return {
        **asdict(one),
        "kind": "replayed" if rescue else "solved" if one.solved else "failed",
        "reward": None,
        "advantage": None,
        "replaced": rescue.replaced_episode if rescue else None,
        "origin_batch": one.batch if rescue else None,
        "age": rescue.age if rescue else None,
    }


def episode_credit(run: RunSource, one: Episode) -> Json:
    """Reward and advantage of a training episode, and the success that replaced it in its group."""
    dots = group_json(run, one.group)["dots"] if one.batch is not None else []
    own = next(
        (dot for dot in dots if dot["episode"] == one.episode and dot["replaced"] is None), _NOT_PLAYED
    )
    instead = next((dot for dot in dots if dot["replaced"] == one.episode), None)
    return {
        "reward": own["reward"],
        "advantage": own["advantage"],
        "replaced_by": instead and {"episode": instead["episode"], "batch": one.batch, "age": instead["age"]},
    }


def _neighbours(run: RunSource, name: str) -> dict[str, str | None]:
    """The groups before and after one, in the order of the run."""
    found = {}
    for key, sign, end, order in (("previous", "<", "min", "DESC"), ("next", ">", "max", "ASC")):
        other = run.index.row(
            f"SELECT group_id FROM episodes WHERE n {sign} "
            f"(SELECT {end}(n) FROM episodes WHERE group_id = ?) ORDER BY n {order} LIMIT 1",
            (name,),
        )
        found[key] = other["group_id"] if other else None
    return found


def _dropped(run: RunSource, name: str, played: Sequence[Episode], signal: bool | None) -> str | None:
    """Why a group was not trained on, in words."""
    if name.startswith(f"{GROUP}-"):
        placed = run.index.row("SELECT dropped FROM groups WHERE id = ?", (name,))
        if placed is None:
            return "no batch has taken it yet"
        if placed["dropped"]:
            limit = run.config.train.max_staleness
            stale = f"no batch could take it within train.max_staleness = {limit}"
            return f"stale: {stale}; its task was played again"
    alone = len(played) < 2 and run.config.rollout.group_size > 1
    if alone and (not played or played[0].batch is not None):
        return "fewer than two episodes were played: there is nothing to compare"
    if run.config.train.dynamic_sampling and signal is False and played:
        return "no signal: dynamic sampling played another group instead"
    return None
