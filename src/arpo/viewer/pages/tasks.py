"""Success rates by task, before and after training, from evaluations.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arpo.config.task_set_names import GENERATED, HELDOUT, OVERALL, TRAIN, set_label
from arpo.evaluation.scoring import Score, read_scores

LABELS = {
    TRAIN: "training",
    HELDOUT: "held-out",
    **{name: set_label(name) for name in GENERATED.values()},
    OVERALL: "other",
}  # of the task sets, the first one counts
FINAL = "final"  # landmark of the last evaluation of a complete run


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation of a run. `scores` has the scores by task, of all task sets together."""

    step: int  # batches before it
    landmark: str  # base, final or ""
    scores: Mapping[str, Sequence[float]]
    sets: Mapping[str, str]  # the task set of each task
    by_set: Mapping[str, Score]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task: its scores in the first and in the newest evaluation; None if there is no such evaluation."""

    task: str
    task_set: str
    before: Sequence[float] | None
    after: Sequence[float] | None

    @property
    def change(self) -> float | None:
        before, after = mean(self.before), mean(self.after)
        return None if before is None or after is None else after - before


def mean(scores: Sequence[float] | None) -> float | None:
    return sum(scores) / len(scores) if scores else None


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


def task_rows(evaluations: Sequence[Evaluation]) -> list[TaskRow]:
    """One row per task, by task set, the largest gain first; with one evaluation, the hardest first."""
    sets = {task: name for one in reversed(evaluations) for task, name in one.sets.items()}
    rows = [
        TaskRow(
            task=task,
            task_set=LABELS.get(name, name),
            before=evaluations[0].scores.get(task),
            after=next((one.scores[task] for one in reversed(evaluations[1:]) if task in one.scores), None),
        )
        for task, name in sets.items()
    ]
    return sorted(rows, key=_order)


def _order(row: TaskRow) -> tuple[int, bool, float, float, str]:
    change, before = row.change, mean(row.before)
    task_set = [*LABELS.values(), row.task_set].index(row.task_set)
    return task_set, change is None, -(change or 0.0), before if before is not None else 1.0, row.task


def evaluation_note(evaluations: Sequence[Evaluation], every: int) -> str:
    """Which evaluations the run folder has, and what is missing."""
    if not evaluations:
        return "The run has no evaluation yet."
    steps = [f"after batch {one.step:,}" if one.step else "before training" for one in evaluations]
    listed = f"Evaluations in this run: {', '.join(steps)}."
    if evaluations[-1].landmark == FINAL:
        return listed
    if len(evaluations) == 1:
        when = f"after batch {every:,}" if every else "at the end of training"
        return f"{listed} There is nothing to compare it with yet: the next evaluation is {when}."
    return f"{listed} The run has not reached its last evaluation: 'after' is the newest one."
