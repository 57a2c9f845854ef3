"""Pages "Tasks" and "Task": success by task, before and after training and over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arpo.config.task_set_names import GENERATED, HELDOUT, OVERALL, TRAIN, set_label
from arpo.errors import UserError
from arpo.evaluation.scoring import Score, by_kind, over_same_tasks, read_scores
from arpo.storage.codec import EVALUATED
from arpo.viewer.pages.episodes import Episode, episode_json, read_episodes
from arpo.viewer.source import Json, Source

LABELS = {
    TRAIN: "training",
    HELDOUT: "held-out",
    **{name: set_label(name) for name in GENERATED.values()},
    OVERALL: "other",
}  # of the task sets, the first one counts
NEWEST = 50  # episodes of a task


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation of a run. `scores` has the scores by task, of all task sets together."""

    step: int  # batches before it
    landmark: str  # base, final or ""
    scores: Mapping[str, Sequence[float]]
    sets: Mapping[str, str]  # the task set of each task
    by_set: Mapping[str, Score]


def read_evaluations(source: Source) -> list[Evaluation]:
    return [read_evaluation(row) for row in source.evaluations()]


def read_evaluation(record: Mapping[str, Any]) -> Evaluation:
    """Convert a checked line of evaluations.jsonl."""
    scores: dict[str, list[float]] = {}
    sets: dict[str, str] = {}
    for name, tasks in record["sets"].items():
        for task, values in tasks.items():
            scores.setdefault(task, []).extend(values)
            sets.setdefault(task, name)
    return Evaluation(
        step=record["step"], landmark=record["landmark"], scores=scores, sets=sets, by_set=read_scores(record)
    )


def task_sets(evaluations: Sequence[Evaluation]) -> dict[str, str]:
    """The label of the task set of each task. The first evaluation counts."""
    sets = {task: name for one in reversed(evaluations) for task, name in one.sets.items()}
    return {task: LABELS.get(name, name) for task, name in sets.items()}


def tasks_page(source: Source) -> Json:
    """One entry per task, the hardest first: by the newest success rate that is known."""
    evaluations = read_evaluations(source)
    rates = evaluated_tasks(evaluations)
    played = {
        row["task"]: row
        for row in source.index.rows(
            "SELECT task, count(*) AS trained, sum(coalesce(score, 0) >= ?) AS solved FROM episodes "
            "WHERE kind NOT IN ('eval', 'seed') GROUP BY task",
            (source.threshold,),
        )
    }
    failed = source.index.counts("failures", "task")
    rescued = source.index.counts("groups WHERE rescued", "task")
    history = _history(source)
    tasks = [
        {
            "task": name,
            "instruction": source.instruction(name),
            "families": list(source.kinds(name)),
            **dict.fromkeys(("task_set", "before", "after", "change")),
            **({"task_set": LABELS[TRAIN]} if name in played else {}),
            **rates.get(name, {}),
            "trained": played[name]["trained"] if name in played else 0,
            "solved": played[name]["solved"] if name in played else 0,
            "rescued": rescued.get(name, 0),
            "failures": failed.get(name, 0),
            "history": history.get(name, []),
        }
        for name in dict.fromkeys([*played, *rates, *failed])
    ]
    return {"kinds": _kinds(source, evaluations), "tasks": sorted(tasks, key=_difficulty)}


def _kinds(source: Source, evaluations: Sequence[Evaluation]) -> list[Json]:
    """Success by kind of task in the first and in the newest evaluation; [] if there are no two."""
    if len(evaluations) < 2:
        return []
    before, after = (
        by_kind((score for name, score in sets.items() if name != OVERALL), source.kinds)
        for sets in over_same_tasks(evaluations[0].by_set, evaluations[-1].by_set)
    )
    rows: list[Json] = [
        {
            "kind": kind,
            "episodes": played,
            "before": before[kind][0] / before[kind][1],
            "after": solved / played,
        }
        for kind, (solved, played) in after.items()
        if kind in before
    ]
    return sorted(rows, key=lambda row: (row["before"] - row["after"], row["kind"]))


def evaluated_tasks(evaluations: Sequence[Evaluation]) -> dict[str, Json]:
    """By task: its set, and its success rate in the first and in the newest evaluation of it."""
    return {task: _rates(task, task_set, evaluations) for task, task_set in task_sets(evaluations).items()}


def _rates(task: str, task_set: str, evaluations: Sequence[Evaluation]) -> Json:
    before = _mean(evaluations[0].scores.get(task))
    after = next((_mean(one.scores[task]) for one in reversed(evaluations[1:]) if task in one.scores), None)
    change = None if before is None or after is None else after - before
    return {"task_set": task_set, "before": before, "after": after, "change": change}


def _mean(scores: Sequence[float] | None) -> float | None:
    return sum(scores) / len(scores) if scores else None


def _history(source: Source) -> Mapping[str, list[float]]:
    """Success rates of the training episodes of each task, batch by batch."""
    rates: dict[str, list[float]] = {}
    for row in source.index.rows(
        "SELECT task, avg(coalesce(score, 0) >= ?) AS rate FROM episodes "
        "WHERE batch IS NOT NULL GROUP BY task, batch ORDER BY task, batch",
        (source.threshold,),
    ):
        rates.setdefault(row["task"], []).append(row["rate"])
    return rates


def _difficulty(task: Mapping[str, Any]) -> tuple[float, str]:
    trained = task["solved"] / task["trained"] if task["trained"] else None
    rates: Sequence[float | None] = (task["after"], task["before"], trained)
    return next((rate for rate in rates if rate is not None), 1.0), task["task"]


def task_page(source: Source, name: str) -> Json:
    episodes = read_episodes(source, "WHERE task = ? ORDER BY n", (name,))
    if not episodes:
        raise UserError(f"{name!r}: no episode of this task, or it is not indexed yet")
    curve = source.index.rows(
        "SELECT batch, count(*) AS episodes, sum(score >= ?) AS solved FROM episodes "
        "WHERE task = ? AND batch IS NOT NULL GROUP BY batch ORDER BY batch",
        (source.threshold, name),
    )
    scores = [(one.step, one.scores.get(name)) for one in read_evaluations(source)]
    before, after = before_and_after(episodes) or (None, None)
    return {
        **next((row for row in tasks_page(source)["tasks"] if row["task"] == name), {"task": name}),
        "curve": [dict(row) for row in curve],
        "evaluations": [{"step": step, "scores": found} for step, found in scores if found],
        "before_episode": before and episode_json(source, before),
        "after_episode": after and episode_json(source, after),
        "episodes": [episode_json(source, one) for one in episodes[: -NEWEST - 1 : -1]],
    }


def before_and_after(episodes: Sequence[Episode]) -> tuple[Episode, Episode] | None:
    """The first episode of a task, and the first one of its newest batch or evaluation.

    Both are from evaluations if it was evaluated twice. None if all are from one batch or evaluation.
    """
    evaluated = [one for one in episodes if one.phase.startswith(EVALUATED)]
    compared = evaluated if len({one.phase for one in evaluated}) > 1 else episodes
    if len({one.phase for one in compared}) < 2:
        return None
    return compared[0], next(one for one in compared if one.phase == compared[-1].phase)
