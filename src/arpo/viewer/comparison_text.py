"""A comparison in words and tables, and as Markdown. Figures are in percent and points of percent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from arpo.evaluation.compare import BASE, MAY_DIFFER
from arpo.evaluation.comparison_results import (
    DRAWS,
    SETS,
    SMOOTHED,
    STAGES,
    Comparison,
    Difference,
    Point,
    Row,
    Run,
    Spread,
)
from arpo.recipe import changed, value
from arpo.reporting.display import format_duration

UNKNOWN = "–"
SURE = 0.05

HOW_TO_READ = (
    (
        "Difference",
        "the method's success less the reference's, in points of percent, on the same tasks with the same "
        "seeds. A seed decides the order of tasks and every draw.",
    ),
    (
        "Over seeds",
        "would it be there again if training were repeated, on these same tasks? The 95% interval of the "
        "mean by Student's t, from one difference a seed. Few seeds make it wide. One seed gives none.",
    ),
    (
        "Over tasks and seeds",
        "would it be there on other tasks of this kind, and with other seeds? The 95% interval of a "
        f"bootstrap that draws both again, {DRAWS:,} times. Of two or three seeds it sees too little of "
        "their luck, of one nothing: trust the wider of the two intervals.",
    ),
    (
        "p over tasks",
        "if the method made no difference, each task's difference could as well have the other sign. p is "
        "how often signs by chance give a mean at least as far from zero. It takes these runs as they are: "
        "it speaks of other tasks, not of other seeds.",
    ),
    (
        "Beyond chance",
        "both intervals leave out 0, and p is below 0.05. Unsettled: only some of the three, and it is said "
        "which do not. Not told apart: none of them, which does not mean that the two are equal. Of twenty "
        "comparisons in which nothing differs, one has p below 0.05: nothing here is corrected for that.",
    ),
)
SUCCESS_WORDS = (
    "Success in percent: mean ± standard deviation over seeds, and every seed. Of one seed it is the mean "
    "over tasks of their rollouts' mean score. The base model is measured by the first evaluation of each "
    "run. Episodes are those that are learned from; time is that of one run, and where stored episodes are "
    "learned from, of their collection too."
)
CURVE_WORDS = (
    "Over the episodes played to learn from: the mean over seeds. Evaluations are fresh rollouts; the rest "
    f"is smoothed over {SMOOTHED} batches. What learns from stored episodes has all of them from the start, "
    "and so two points: before and after."
)
TIME_WORDS = "Mean over seeds, in one process each; what is in no stage is loading, saving, and collecting."
CURVES_SHOWN = {
    "train": "Success on training tasks, evaluated",
    "heldout": "Success on held-out tasks, evaluated",
    "sampled": "Success of the episodes that are learned from",
    "without_signal": "Groups without signal",
    "rescued": "Groups rescued by replay",
    "replay_age": "Age of replayed successes, in batches",
}
SHARES = tuple(name for name in CURVES_SHOWN if name != "replay_age")
CURVE_PLACES = 5  # columns of a curve's table


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure, and what is said of it in smaller letters."""

    main: str
    small: str = ""

    def __str__(self) -> str:
        return f"{self.main} ({self.small})" if self.small else self.main


Table = tuple[tuple[str, ...], list[list[Cell]]]  # the head, and the rows


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def name_shown(name: str) -> str:
    return "base model" if name == BASE else name


def percent(spread: Spread | None) -> Cell:
    """Mean ± standard deviation, and every seed."""
    if spread is None:
        return Cell(main=UNKNOWN)
    around = "" if spread.sd is None else f" ± {100 * spread.sd:.1f}"
    seeds = (
        ", ".join(f"{100 * value:.1f}" for value in spread.seeds.values()) if len(spread.seeds) > 1 else ""
    )
    return Cell(main=f"{100 * spread.mean:.1f}{around}", small=seeds)


def points(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def interval(ends: tuple[float, float] | None) -> str:
    return f"{points(ends[0])} to {points(ends[1])}" if ends else UNKNOWN


def p_value(p: float) -> str:
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}" if p >= 0.001 else f"{p:.4f}"


def sets_shown(comparison: Comparison) -> list[str]:
    return [which for which in SETS if any(which in row.success for row in comparison.rows)]


def success_table(comparison: Comparison) -> Table:
    shown = sets_shown(comparison)
    head = ("", *(SETS[which] for which in shown), "episodes", "time", "groups without signal", "rescued")
    return head, [
        [
            Cell(main=name_shown(row.name)),
            *(percent(row.success.get(which)) for which in shown),
            _total(row, "episodes", lambda value: f"{value:,.0f}"),
            _total(row, "seconds", format_duration),
            *(_of_groups(row, what) for what in ("without_signal", "rescued")),
        ]
        for row in comparison.rows
    ]


def _total(row: Row, what: str, shown: Callable[[float], str]) -> Cell:
    return Cell(main=shown(row.totals[what].mean) if what in row.totals else UNKNOWN)


def _of_groups(row: Row, what: str) -> Cell:
    """The mean count over seeds, and its share of all groups."""
    if what not in row.totals or not row.totals["groups"].mean:
        return Cell(main=UNKNOWN)
    count, groups = row.totals[what].mean, row.totals["groups"].mean
    return Cell(main=f"{100 * count / groups:.0f}%", small=f"{count:,.0f} of {groups:,.0f}")


def difference_table(comparison: Comparison) -> Table:
    head = ("", "tasks", "difference", "over seeds", "over tasks and seeds", "p over tasks", "")
    return head, [
        [
            Cell(main=name_shown(one.method)),
            Cell(main=f"{one.task_count} {SETS[one.tasks]}"),
            Cell(main=points(one.mean), small=_by_seed(one)),
            Cell(main=interval(one.student)),
            Cell(main=interval(one.bootstrap)),
            Cell(main=p_value(one.p)),
            Cell(main=verdict(one)),
        ]
        for one in comparison.differences
    ]


def _by_seed(one: Difference) -> str:
    return ", ".join(points(value) for value in one.by_seed.values()) if len(one.by_seed) > 1 else ""


def verdict(one: Difference) -> str:
    """What the three ways of asking come to, in a few words."""
    asked = {"seeds": one.student, "tasks and seeds": one.bootstrap}
    answers = {name: not ends[0] <= 0 <= ends[1] for name, ends in asked.items() if ends}
    answers["tasks"] = one.p < SURE
    if not any(answers.values()):
        return "not told apart"
    if not all(answers.values()):
        within = ", not over ".join(name for name, beyond in answers.items() if not beyond)
        return f"unsettled: not over {within}"
    side = "higher" if one.mean > 0 else "lower"
    return f"{side}, beyond chance" if one.student else f"{side} over tasks; one seed says nothing of others"


def findings(comparison: Comparison) -> list[str]:
    """What came out on the training tasks, a sentence for each method."""
    sentences = []
    for one in (one for one in comparison.differences if one.tasks == "train"):
        side = "above" if one.mean >= 0 else "below"
        seeds = f"; over seeds {interval(one.student)}" if one.student else ""
        sentences.append(
            f"{name_shown(one.method)} is {abs(100 * one.mean):.1f} points {side} "
            f"{name_shown(comparison.reference)} on the training tasks{seeds}; p over tasks "
            f"{p_value(one.p)}: {verdict(one)}."
        )
    return sentences


def difficulty_table(comparison: Comparison) -> Table:
    head = ("", *(f"{label}: {counted(len(tasks), 'task')}" for label, tasks in comparison.bins.items()))
    return head, [
        [
            Cell(main=name_shown(row.name)),
            *(percent(row.by_difficulty.get(label)) for label in comparison.bins),
        ]
        for row in comparison.rows
    ]


def difficulty_words(comparison: Comparison) -> str:
    if comparison.screened:
        return "Training tasks by how often the base model solved them in screening."
    return (
        "Training tasks by how often the base model solved them in the base evaluations themselves, as their "
        "list has no screening counts. Part of what the hardest gain is the way back to the mean."
    )


def time_table(comparison: Comparison) -> Table:
    head = ("", *(f"{stage}, s" for stage in STAGES), "all, s", "episodes a second of rollout")
    rows = [row for row in comparison.rows if row.stages]
    return head, [
        [
            Cell(main=row.name),
            *(Cell(main=f"{row.stages[stage]:,.0f}") for stage in STAGES),
            _total(row, "seconds", lambda value: f"{value:,.0f}"),
            _total(row, "episodes_per_second", lambda value: f"{value:.1f}"),
        ]
        for row in rows
    ]


def curve_table(curves: Mapping[str, Sequence[Point]], *, share: bool) -> Table:
    """The mean of each method near some places along the budget; nothing is made up between its points."""
    end = max(curve[-1].x for curve in curves.values())
    gap = end / (CURVE_PLACES - 1)
    places = [gap * number for number in range(CURVE_PLACES)]
    rows = []
    for name, curve in curves.items():
        near = [min((abs(point.x - x), point.mean) for point in curve) for x in places]
        found = [mean if away <= gap / 4 else None for away, mean in near]
        texts = [UNKNOWN if v is None else f"{100 * v:.1f}" if share else f"{v:.1f}" for v in found]
        rows.append([Cell(main=text) for text in (name, *texts)])
    return ("after episodes", *(f"{place:,.0f}" for place in places)), rows


def missing_words(comparison: Comparison) -> str:
    if not comparison.missing:
        return ""
    by_method: dict[str, list[int]] = {}
    for name, seed in comparison.missing:
        by_method.setdefault(name, []).append(seed)
    named = "; ".join(f"{name}: seed {', '.join(map(str, seeds))}" for name, seeds in by_method.items())
    return f"Not in these figures, since they have not ended: {named}."


def recipes_told(comparison: Comparison, runs: Sequence[Run]) -> tuple[str, dict[str, str]]:
    """What each method does otherwise than the reference, by its settings; and a sentence that says so.

    Where the reference is the base model, the first method stands in for it.
    """
    of_runs = {run.method: run.config for run in runs}
    configs = {row.name: of_runs[row.name] for row in comparison.rows if row.name in of_runs}
    if len(configs) < 2:
        return "", {}
    usual = comparison.reference if comparison.reference in configs else next(iter(configs))
    told = {}
    for name in (name for name in configs if name != usual):
        keys = [key for key in changed(configs[usual], configs[name]) if not key.startswith(MAY_DIFFER)]
        said = ", ".join(f"{key} = {json.dumps(value(configs[name], key))}" for key in keys)
        told[name] = said or "nothing"
    return f"What each method does otherwise than {usual}.", told


def heading(runs: Sequence[Run]) -> str:
    """Model and tasks, as far as all methods share them, and the number of seeds."""

    def shared(values: set[str]) -> str:
        return values.pop() if len(values) == 1 else "several"

    model = shared({run.config.model.path for run in runs})
    tasks = shared({run.config.tasks.train for run in runs})
    played = {task for run in runs for one in run.evaluations for task in one.tallies.get("train", {})}
    number = f"{counted(len(played), 'training task')} of" if played else "training tasks"
    seeds = len({run.seed for run in runs if run.ended})
    return f"Model {model}, {number} {tasks}, {counted(seeds, 'seed')}"


def markdown(comparison: Comparison, runs: Sequence[Run]) -> str:
    parts = ["# Comparison", f"{heading(runs)}. {SUCCESS_WORDS}", missing_words(comparison)]
    parts += [_table(success_table(comparison))]
    if comparison.differences:
        parts += [f"## Against {name_shown(comparison.reference)}", _list(findings(comparison))]
        parts += [_table(difference_table(comparison))]
        parts += [_list([f"**{term}**: {words}" for term, words in HOW_TO_READ])]
    if comparison.bins:
        parts += ["## By difficulty", difficulty_words(comparison), _table(difficulty_table(comparison))]
    parts += ["## Curves", CURVE_WORDS]
    for what, title in CURVES_SHOWN.items():
        if comparison.curves[what]:
            parts += [f"{title}:", _table(curve_table(comparison.curves[what], share=what in SHARES))]
    parts += ["## Time", _table(time_table(comparison)), TIME_WORDS]
    words, told = recipes_told(comparison, runs)
    if told:
        parts += ["## Recipes", words, _list([f"{name}: {settings}" for name, settings in told.items()])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(table: Table) -> str:
    head, rows = table
    lines = [head, ["---"] * len(head), *([_escaped(str(cell)) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
