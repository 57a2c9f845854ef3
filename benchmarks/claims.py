"""The claims of README.md, docs/results.md and results/earlier.md: text with numbers computed from results.

`benchmarks/recompute.py` compares them with the pages. A function yields the claims of one table or section.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from arpo.reporting.statistics import MeanTest, holm, mean_over_seeds_and_tasks

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "results"
INSTANCES, FAMILIES, APPLICATION = "instances", "families", "applications"
SETS = (INSTANCES, FAMILIES, APPLICATION)

Scores = Mapping[int, Sequence[float]]
"""By seed: the percentages of the tasks, or one percentage where only totals are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Percentages by task set, before and after training."""

    before: Mapping[str, Sequence[float]]
    after: Mapping[str, Sequence[float]]


class Series:
    """The runs of a JSON file, by name and seed."""

    def __init__(self, file: str, part: str = "") -> None:
        data = _load(file)
        self._runs: dict[str, dict[int, Run]] = {}
        for name, seed, run in _read(data[part] if part else data):
            self._runs.setdefault(name, {})[seed] = run

    def after(self, name: str, tasks: str) -> Scores:
        return {seed: run.after[tasks] for seed, run in self._runs[name].items()}

    def before(self, name: str, tasks: str) -> Scores:
        return {seed: run.before[tasks] for seed, run in self._runs[name].items()}


@cache
def series(file: str, part: str = "") -> Series:
    return Series(file, part)


@cache
def _load(file: str) -> Any:
    return json.loads((FOLDER / file).read_text("utf-8"))


def _read(data: Any) -> Iterator[tuple[str, int, Run]]:
    """Runs of a list, of a comparison (`compare.json`), or by name ("g2-s0-10")."""
    if isinstance(data, list):
        for one in data:
            counts = {**one.get("before", {}), **one.get("after", {}), **one.get("test", {})}
            after = _by_task(one.get("successes_by_task", {}), counts)
            before = _by_task(one.get("successes_before_by_task", {}), counts)
            totals = [_totals(one.get(when, {})) for when in ("before", "after", "test")]
            yield (
                one["run"],
                one["seed"],
                Run(before=totals[0] | before, after={**totals[1], **totals[2], **after}),
            )
        return
    if isinstance(data.get("runs"), list):
        for one in data["runs"]:
            first, *_, last = (_percentages(found["tallies"]) for found in one["evaluations"])
            yield one["method"].replace("-", "/", 1), one["seed"], Run(before=first, after=last)
        return
    for key, one in data.items():
        name, _, seed = key.rpartition("-")
        first, last = (_totals({"train": one[when]}) for when in ("base", "final"))
        yield name, int(seed), Run(before=first, after=last)


def _totals(counts: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    return {tasks: [100 * successes / episodes] for tasks, (successes, episodes) in counts.items()}


def _by_task(
    successes: Mapping[str, Sequence[float]], counts: Mapping[str, Sequence[float]]
) -> dict[str, Sequence[float]]:
    return {
        tasks: [100 * one * len(by_task) / counts[tasks][1] for one in by_task]
        for tasks, by_task in successes.items()
    }


def _percentages(tallies: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Sequence[float]]:
    return {
        tasks: [100 * successes / episodes for successes, episodes in by_task.values()]
        for tasks, by_task in tallies.items()
    }


def number(value: float | str, form: str = "") -> str:
    """A recomputed number, marked as such in its claim."""
    return f"⟦{value:{form}}⟧"


def mean(scores: Scores, digits: int = 1) -> str:
    return number(f"{fmean(map(fmean, scores.values())):.{digits}f}")


def mean_sd(scores: Scores) -> str:
    return f"{mean(scores)} ± {number(stdev(map(fmean, scores.values())), '.1f')}"


def over_seeds(scores: Scores) -> Scores:
    """The mean of each seed, so that an interval is over seeds alone."""
    return {seed: [fmean(values)] for seed, values in scores.items()}


def difference(one: Scores, other: Scores) -> MeanTest:
    """Over seeds and tasks; over seeds alone where only totals are stored. A single other run serves all."""
    if len(other) == 1:
        other = dict.fromkeys(one, next(iter(other.values())))
    seeds = sorted(one.keys() & other.keys())
    return mean_over_seeds_and_tasks(
        [[mine - theirs for mine, theirs in zip(one[seed], other[seed], strict=True)] for seed in seeds]
    )


def signed(points: float, digits: int = 1) -> str:
    """+1.6, −0.3, 0.0"""
    text = f"{points:+.{digits}f}".replace("-", "−")
    return number(text if text.strip("+−0.") else text[1:])


def interval(test: MeanTest, digits: int = 1) -> str:
    assert test.interval is not None
    return f"({signed(test.interval[0], digits)} to {signed(test.interval[1], digits)})"


def points(test: MeanTest, bold: bool = False) -> str:
    return f"{'**' * bold}{signed(test.mean)}{'**' * bold} {interval(test)}"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


THIRD = "third-series.json"


def claims_of_make_train() -> Iterator[str]:
    runs = series(THIRD)
    base = {tasks: runs.after("base model", f"{tasks}_test") for tasks in SETS}
    short, long = (
        {tasks: runs.after(name, f"{tasks}_test") for tasks in SETS} for name in ("make train", "256x4, 1e-4")
    )
    yield (
        f"raises success on new instances from {mean(base[INSTANCES])} to {mean(short[INSTANCES])}, on new "
        f"goal families from {mean(base[FAMILIES])} to {mean(short[FAMILIES])}, and on a new application "
        f"from {mean(base[APPLICATION])} to {mean(short[APPLICATION])}."
    )
    yield row("base model", *(mean(base[tasks]) for tasks in SETS))
    for title, found in (("`make train`", short), ("256 tasks", long)):
        tests = [points(difference(found[tasks], base[tasks]), bold=True) for tasks in SETS]
        yield row(
            title, *(f"{mean_sd(found[tasks])}, {test}" for tasks, test in zip(SETS, tests, strict=True))
        )
    corrected = holm([difference(found[tasks], base[tasks]).p for found in (short, long) for tasks in SETS])
    limit = number(f"1e{math.ceil(math.log10(max(corrected)))}")
    yield f"corrected for six comparisons (Holm), is below {limit}"
    yield from claims_of_kinds(runs)


def claims_of_readme() -> Iterator[str]:
    runs = series(THIRD)
    for title, tasks in (
        ("new instances of the trained goals", INSTANCES),
        ("new goal families", FAMILIES),
        ("a new application", APPLICATION),
    ):
        base, *others = (
            runs.after(name, f"{tasks}_test") for name in ("base model", "make train", "256x4, 1e-4")
        )
        cells = []
        for found in others:
            test = difference(found, base)
            cells.append(f"**{mean(found)}%**, {signed(test.mean, 0)} points {interval(test, 0)}")
        yield row(title, f"{mean(base)}%", *cells)
    before = series("second-series.json")
    plain, arpo = (before.after(f"{name}, groups of 2", "train") for name in ("paper/grpo", "paper"))
    first = before.before("paper, groups of 2", "train")
    yield f"base {mean(first)}% (68.7), GRPO {mean(plain)}% (72.9), ARPO {mean(arpo)}% (83.9)."
    yield f"the present base model both reach {number(lowest_of_both(runs))}% and more."


def lowest_of_both(runs: Series) -> str:
    """The lower success rate of GRPO and ARPO on training tasks, in groups of 2 and of 8, rounded down."""
    names = [f"{method}, groups of {size}" for method in ("GRPO", "ARPO") for size in (2, 8)]
    return str(int(min(fmean(map(fmean, runs.after(name, "train").values())) for name in names)))


def claims_of_kinds(runs: Series) -> Iterator[str]:
    """Success by goal family over the three test sets. Infeasible tasks have families of their own."""
    from arpo.envs.desk.heldout import heldout_tasks
    from arpo.tasks.sources import task_kinds

    found: dict[str, dict[str, list[float]]] = {"base model": {}, "make train": {}}
    missing, infeasible = "Missing", 0  # in the names of the families of infeasible tasks
    for tasks in SETS:
        kinds = [task_kinds(task) for task in heldout_tasks(f"desk:{tasks}/test")]
        infeasible += sum(missing in kind for of_task in kinds for kind in of_task)
        for name, by_kind in found.items():
            for scores in runs.after(name, f"{tasks}_test").values():
                for of_task, score in zip(kinds, scores, strict=True):
                    for kind in of_task:
                        by_kind.setdefault(missing if missing in kind else kind, []).append(score)
    before, after = ({kind: fmean(scores) for kind, scores in found[name].items()} for name in found)
    best = max(before, key=lambda kind: after[kind] - before[kind])
    assert all(after[kind] > before[kind] for kind in before if kind != missing)
    learned, lost = (
        f"{number(before[kind], '.0f')} → {number(after[kind], '.0f')}" for kind in (best, missing)
    )
    yield f"all goal families improve, {best} most ({learned})."
    yield f"get a little worse ({lost}; there are {number(infeasible)})"


def claims_of_published() -> Iterator[str]:
    """The published comparison with the present base model."""
    runs, tests = series(THIRD), dict[tuple[str, str], MeanTest]()
    yield row(
        "base model", "", *_with_gaps(mean_sd(runs.before("GRPO, groups of 2", tasks)) for tasks in PUBLISHED)
    )
    for size, names in ((2, ("ARPO", "DS-GRPO")), (8, ("ARPO", "DS-GRPO", "RFT", "DPO", "KTO"))):
        grpo = {tasks: runs.after(f"GRPO, groups of {size}", tasks) for tasks in PUBLISHED}
        yield row("GRPO", f"{size}", *_with_gaps(map(mean_sd, grpo.values())))
        for name in names:
            cells = []
            for tasks in PUBLISHED:
                found = runs.after(f"{name}, groups of {size}", tasks)
                test = tests[name, f"{size} {tasks}"] = difference(found, grpo[tasks])
                cells += [mean_sd(found), points(test, bold=name in WORSE)]
            yield row(name, f"{size}", *cells)
    corrected = dict(zip(tests, holm([test.p for test in tests.values()]), strict=True))
    worse = [p for (name, _), p in corrected.items() if name in WORSE]
    assert min(p for (name, _), p in corrected.items() if name not in WORSE) > 0.05 > max(worse)
    yield f"(p at most {number(max(worse), '.2f')}, corrected for {number(len(tests))} comparisons)"
    yield f"Now both reach {number(lowest_of_both(runs))} and more"


PUBLISHED, WORSE = ("train", "heldout"), ("DPO", "KTO")


def _with_gaps(cells: Iterable[str]) -> list[str]:
    """A cell without a difference after each one."""
    return [part for cell in cells for part in (cell, "")]


def claims_of_longer_tasks() -> Iterator[str]:
    runs = series(THIRD)
    found = {
        name: runs.after(f"longer tasks: {name}", "long_test")
        for name in ("base model", "make train", "64x4", "64x4, no replay", "256x4", "256x4, no replay")
    }
    yield row("base model", "", "", mean(found["base model"]))
    for title, name, episodes in (
        ("`make train` (one or two goals)", "make train", "1,024"),
        ("64 tasks", "64x4", "1,024"),
        ("64 tasks, without replay", "64x4, no replay", "1,024"),
        ("256 tasks", "256x4", "4,096"),
        ("256 tasks, without replay", "256x4, no replay", "4,096"),
    ):
        yield row(title, episodes, number(len(found[name])), mean_sd(found[name]))
    gains = [difference(found[name], found["base model"]).mean for name in ("64x4", "256x4")]
    yield f"grows from {number(gains[0], '.0f')} to {number(gains[1], '.0f')} points."
    compared = (("64x4", "base model"), ("256x4", "64x4"), ("64x4", "64x4, no replay"),
                ("256x4", "256x4, no replay"), ("make train", "64x4"))  # fmt: skip
    _, more, replay64, replay256, short = (difference(found[one], found[other]) for one, other in compared)
    corrected = holm([difference(found[one], found[other]).p for one, other in compared])
    assert corrected[1] < 0.05 < min(corrected[2:])
    p_more, p_replay = number(corrected[1], ".3f"), number(corrected[3], ".2f")
    yield f"More episodes matter: {points(more)}, p {p_more}, corrected for five comparisons."
    yield f"no significant effect: {points(replay64)} with 64 tasks, {points(replay256)}, p {p_replay},"
    yield f"with 1,024 episodes, differs by {points(short)}, not significantly."


def claims_of_base_models() -> Iterator[str]:
    """`make train` with the shipped model, and in tool calls, on all tasks of four test sets."""
    rows, (shipped, tool_calls) = _models(
        "base-models.json", {"desk_fresh": "shipped", "tool_calls": "tool calls"}
    )
    yield from rows
    before, after = _differences(tool_calls, shipped)
    yield f"tool calls differ by {points(before)} before training and by {points(after)} after it"
    _, (text, calls, short) = _models(
        "dialects.json", dict.fromkeys(("desk_fresh", "tool_calls", "tool_calls, last stage"), "")
    )
    nine, nine_short = (points(_differences(one, text)[1]) for one in (calls, short))
    yield f"differed by {nine} and {nine_short}"
    pairs = (tool_calls, shipped), (calls, text), (short, text)
    gains = [signed(_difference_of_gains(*pair).mean) for pair in pairs]
    yield f"which are of the shipped family, differ by {gains[0]}, {gains[1]} and {gains[2]}."


def claims_of_qwen3_5() -> Iterator[str]:
    """The tiny Qwen3.5 with several learning rates, and the shipped model."""
    rates = {f"qwen3_5, {rate}": f"Qwen3.5, learning rate {rate}" for rate in ("1e-4", "2e-4")}
    rows, (shipped, *both) = _models("qwen3_5.json", {"desk_fresh": "shipped", **rates})
    yield from rows
    (_, lower), (before, higher) = (_differences(one, shipped) for one in both)
    yield f"differs from the shipped model by {points(before)} before training"
    yield f"After it, the difference is {points(lower)} with 1e-4 and {points(higher)} with 2e-4"
    gains = [points(_difference_of_gains(one, shipped)) for one in both]
    yield f"the gains differ by {gains[0]} and {gains[1]}"
    _, (base, *others) = _models("qwen3_5-rates.json", {**rates, "qwen3_5, 3e-4": ""}, "validation")
    better, worse = (points(_differences(one, base)[1]) for one in others)
    yield f"{better} against 1e-4 (three seeds); 3e-4 gives {worse}"
    _, (shipped, first) = _models("base-models.json", {"desk_fresh": "", "first qwen3_5": ""})
    yield f"An earlier tiny Qwen3.5 differed by {points(_differences(first, shipped)[1])} after training"


_Trained = tuple[Scores, Scores]
"""Of all tasks, before and after training."""


def _models(file: str, titles: Mapping[str, str], half: str = "test") -> tuple[list[str], list[_Trained]]:
    """Each model's row of a table, and its scores."""
    runs, sets = series(file), [f"{tasks}_{half}" for tasks in (*SETS, "long")]
    rows, trained = [], []
    for name, title in titles.items():
        first, last = ([find(name, tasks) for tasks in sets] for find in (runs.before, runs.after))
        cells = (f"{mean(one)} → {mean_sd(other)}" for one, other in zip(first, last, strict=True))
        rows.append(row(title, *cells))
        trained.append((_all_tasks(first), _all_tasks(last)))
    return rows, trained


def _differences(one: _Trained, other: _Trained) -> tuple[MeanTest, MeanTest]:
    return difference(one[0], other[0]), difference(one[1], other[1])


def _difference_of_gains(one: _Trained, other: _Trained) -> MeanTest:
    return difference(*(_minus(after, before) for before, after in (one, other)))


def _minus(ones: Scores, others: Scores) -> Scores:
    return {
        seed: [one - other for one, other in zip(scores, others[seed], strict=True)]
        for seed, scores in ones.items()
    }


def claims_of_seeds() -> Iterator[str]:
    """Tasks that the base model never solved: each method, and its difference from ARPO."""
    runs = series("seeds.json")
    names = {
        "grpo": "GRPO",
        "arpo": "ARPO",
        "seeded": "ARPO with seeds",
        "sft": "SFT",
        "sft_grpo": "SFT, then GRPO",
    }
    arpo = {tasks: runs.after("arpo", tasks) for tasks in PUBLISHED}
    base = (mean_sd(runs.before("arpo", tasks)) for tasks in PUBLISHED)
    yield row("base model", *_with_gaps(base))
    found = {name: {tasks: runs.after(name, tasks) for tasks in PUBLISHED} for name in names}
    tests = {
        (name, tasks): difference(found[name][tasks], arpo[tasks])
        for tasks in PUBLISHED
        for name in names
        if name != "arpo"
    }
    corrected = dict(zip(tests, holm([test.p for test in tests.values()]), strict=True))
    for name, title in names.items():
        cells = []
        for tasks in PUBLISHED:
            test = tests.get((name, tasks))
            bold = test is not None and corrected[name, tasks] < 0.05
            cells += [mean_sd(found[name][tasks]), points(test, bold=bold) if test else ""]
        yield row(title, *cells)
    p = number(corrected["seeded", "train"], ".2f")
    yield f"Seeds add {points(tests['seeded', 'train'])} on the training tasks (p {p}, corrected for eight"


def claims_of_web_pages() -> Iterator[str]:
    """MiniWoB++ in Chromium: held-out instances of each task, and all of them; the first series."""
    before, after = _web_pages("miniwob.json")
    titles = sorted(before, key=lambda title: -sum(fmean(scores) for scores in before[title].values()))
    yield row(*(f"{mean(before[title])} → {mean(after[title])}" for title in titles))
    gain = points(difference(after["all"], before["all"]))
    yield f"Over all instances: {gain}. {_without_signal('miniwob.json')}% of the groups had no signal"
    before, after = _web_pages("miniwob-first.json")
    gain = points(difference(after["all"], before["all"]))
    yield f"unscreened ({_without_signal('miniwob-first.json')}% without a signal): {gain}"


def _web_pages(file: str) -> tuple[dict[str, dict[int, list[float]]], ...]:
    """Percentages of the held-out instances before and after training, by task and seed."""
    by_task: tuple[dict[str, dict[int, list[float]]], ...] = ({}, {})
    for run in _load(file)["runs"]:
        first, *_, last = (found["tallies"]["heldout"] for found in run["evaluations"])
        for found, tallies in zip(by_task, (first, last), strict=True):
            for name, (score, episodes) in tallies.items():
                task, _, _ = name.rpartition("-")
                for title in (task, "all"):
                    found.setdefault(title, {}).setdefault(run["seed"], []).append(100 * score / episodes)
    return by_task


def _without_signal(file: str) -> str:
    batches = [batch for run in _load(file)["runs"] for batch in run["batches"]]
    share = sum(batch["without_signal"] for batch in batches) / sum(batch["groups"] for batch in batches)
    return number(100 * share, ".0f")


def claims_of_judges() -> Iterator[str]:
    """Rewards of a judge with known errors: gains on training tasks and held-out tasks."""
    runs, gains = series("judge.json"), dict[str, float]()
    before = {tasks: runs.before("true", tasks) for tasks in PUBLISHED}
    yield row("base model", *_with_gaps(map(mean_sd, before.values())))
    titles = {
        "true": "the evaluators",
        "raw": "the judge",
        "corrected": "the judge, and evaluators of every fourth task",
    }
    for name, title in titles.items():
        cells = []
        for tasks in PUBLISHED:
            found = runs.after(name, tasks)
            test = difference(found, before[tasks])
            gains.setdefault(name, test.mean)  # on training tasks
            cells += [mean_sd(found), points(test)]
        yield row(title, *cells)
    alone, audited = (number(100 * gains[name] / gains["true"], ".0f") for name in ("raw", "corrected"))
    yield f"keeps {alone}% of the gain, with evaluators of every fourth task {audited}%"
    on_training, held_out = (
        difference(*(runs.after(name, tasks) for name in ("corrected", "raw"))) for tasks in PUBLISHED
    )
    p = f"p {number(on_training.p, '.2f')} without a correction"
    yield f"The difference is {points(on_training)}, {p}, and {points(held_out)} on held-out tasks"


def claims_of_small_judge() -> Iterator[str]:
    """A served judge: its verdicts against the evaluators, and training with it alone."""
    for name, title in (("instances", "goals that it judged before"), ("families", "new goal families")):
        verdicts = _load("small-judge.json")["matrix"][name]
        yes, no = verdicts["success"], verdicts["failure"]
        shares = (
            yes["success"] / sum(yes.values()),
            yes["success"] / (yes["success"] + no["success"]),
            yes["failure"] / (yes["failure"] + no["failure"]),
        )
        total = sum(count for counts in verdicts.values() for count in counts.values())
        missing = sum(verdicts["missing"].values()) / total
        yield row(title, number(total), *(number(f"{100 * each:.0f}%") for each in (*shares, missing)))
    runs = series("small-judge.json", "runs")
    before = {tasks: runs.before("true", tasks) for tasks in PUBLISHED}
    yield row("no training", *_with_gaps(map(mean_sd, before.values())))
    gains = {}
    for name, title in (("true", "evaluators alone"), ("served", "the judge alone")):
        found = {tasks: runs.after(name, tasks) for tasks in PUBLISHED}
        tests = {tasks: difference(found[tasks], before[tasks]) for tasks in PUBLISHED}
        yield row(
            title, *(cell for tasks in PUBLISHED for cell in (mean_sd(found[tasks]), points(tests[tasks])))
        )
        gains[name] = tests["train"].mean
    yield f"So it keeps {number(100 * gains['served'] / gains['true'], '.0f')}% of the gain"


def _all_tasks(sets: Sequence[Scores]) -> Scores:
    return {seed: [score for one in sets for score in one[seed]] for seed in sets[0]}


def claims_of_earlier_models() -> Iterator[str]:
    """What docs/results.md says of results/earlier.md."""
    second, g2, g8 = (series(f"{name}.json") for name in ("second-series", "desk128-g2", "desk128-g8"))
    best = second.after("alternate", "instances_validation")
    yield f"the best method reached {mean(best)} on new instances."
    plain, arpo = (mean(second.after(f"{name}, groups of 2", "train")) for name in ("paper/grpo", "paper"))
    yield f"With the base model before: {plain} with GRPO, {arpo} with ARPO in groups of 2."
    yield f"{number(sum(1 for _ in claims_of_options()))} options were measured"

    def effect(runs: Series, name: str) -> str:
        one, other = (over_seeds(runs.after(run, "train")) for run in (name, "paper"))
        return points(difference(one, other))

    groups = difference(*(second.after(name, "instances_validation") for name in ("g2", "fresh")))
    yield (
        f"rescue of groups with one or two successes, {effect(g8, 'ablations/rare')} in groups of 8; easy "
        f"tasks first, {effect(g2, 'ablations/curriculum_easy')}; groups of 2, {points(groups)}; and one "
        f"stored success per task in place of 8, {effect(g2, 'ablations/capacity1')}."
    )
    played = series("asynchrony.json", "second")
    stale = difference(played.after("g2-s4", "train"), played.after("g2-s0", "train"))
    yield f"differs from lock step by {points(stale)} in groups of 2."


def claims_of_base_model_before() -> Iterator[str]:
    runs = series("second-series.json")
    base = {tasks: runs.after("base model", f"{tasks}_test") for tasks in SETS}
    yield row("base model", "", number(len(base[INSTANCES])), *(mean_sd(base[tasks]) for tasks in SETS))
    for title, name, episodes in (
        ("`desk_fresh` (`make train`)", "desk_fresh", "2,048"),
        ("`fresh`", "fresh", "6,144"),
        ("`long`", "long", "16,384"),
        ("`alternate`", "alternate", "6,144"),
        ("`rft`", "rft", "6,144"),
    ):
        found = [runs.after(name, f"{tasks}_test") for tasks in SETS]
        cells = [
            f"{mean(one)}, {points(difference(one, base[tasks]), bold=True)}"
            for one, tasks in zip(found, SETS, strict=True)
        ]
        yield row(title, episodes, number(len(found[0])), *cells)
    yield row("base model", "", *_validation(runs, "fresh", before=True))
    for title, name in (
        ("`fresh` | GRPO, groups of 8", "fresh"),
        ("`alternate` | three rounds: 2,048 episodes, then one pass of RFT on their successes", "alternate"),
        ("`rft` | RFT on 6,144 episodes of the base model, four passes", "rft"),
        ("`long` | 16,384 episodes", "long"),
    ):
        yield row(title, *_validation(runs, name))


def _validation(runs: Series, name: str, *, before: bool = False) -> list[str]:
    """Cells: number of seeds, then the three sets of the validation half."""
    read = runs.before if before else runs.after
    found = [read(name, f"{tasks}_validation") for tasks in SETS]
    return [number(len(found[0])), *map(mean_sd, found)]


def claims_of_number_of_tasks() -> Iterator[str]:
    runs = series("first-series.json")
    for title, name in (
        ("768, each once | no", "fresh"),
        ("512, 1.5 times | by task", "t512"),
        ("128, 6 times | by task", "t128"),
        ("32, 24 times | by task", "t32"),
        ("768, each once, learning rate 3e-4 | no", "lr3"),
    ):
        cells = []
        for tasks in SETS:
            found = runs.after(name, f"{tasks}_validation")
            cells.append(
                f"{mean(found)}, {points(difference(found, runs.before(name, f'{tasks}_validation')))}"
            )
        yield row(title, *cells)


def claims_of_replay_before() -> Iterator[str]:
    runs = series("second-series.json")
    two, eight = "groups of 2", "groups of 8"
    names = {
        ("ARPO", two): "paper, groups of 2",
        ("DS-GRPO", two): "paper/ds_grpo, groups of 2",
        ("GRPO", two): "paper/grpo, groups of 2",
        ("ARPO", eight): "paper",
        ("DS-GRPO", eight): "paper/ds_grpo",
        ("GRPO", eight): "paper/grpo",
        ("RFT", eight): "paper/rft",
        ("DPO", eight): "paper/dpo",
        ("KTO", eight): "paper/kto",
    }
    first = runs.before(names["ARPO", two], "train")
    seeds, *cells = _validation(runs, names["ARPO", two], before=True)
    yield row("base model", "", seeds, mean_sd(first), *cells)
    for (title, size), name in names.items():
        seeds, *cells = _validation(runs, name)
        trained = mean_sd(runs.after(name, "train"))
        if (title, size) == ("ARPO", two):
            trained = f"**{trained.replace(' ±', '** ±', 1)}"
        yield row(title, size[-1], seeds, trained, *cells)
    tests = {
        (size, tasks): difference(
            runs.after(names["ARPO", size], tasks), runs.after(names["GRPO", size], tasks)
        )
        for size in (two, eight)
        for tasks in ("train", "instances_validation")
    }
    yield (
        f"Replay on training tasks: {points(tests[two, 'train'], bold=True)} in groups of 2, "
        f"{points(tests[eight, 'train'])} in groups of 8."
    )
    yield (
        f"On new instances it adds {points(tests[two, 'instances_validation'])} and "
        f"{points(tests[eight, 'instances_validation'])}."
    )
    before, after = runs.before("desk", "train"), runs.after("desk", "train")
    gain = points(difference(after, before), bold=True)
    others = [
        f"{mean(runs.before('desk', name))} → {mean(runs.after('desk', name))}"
        for name in (f"{tasks}_validation" for tasks in SETS)
    ]
    yield (
        f"training tasks {mean(before)} → {mean(after)}, {gain}; new instances {others[0]}, families "
        f"{others[1]}, application {others[2]}."
    )
    compared = _load("desk128-g2.json")["rows"]
    rare = {line["name"]: line["by_difficulty"]["1–3 of 16"]["seeds"] for line in compared}
    plain, arpo = (number(100 * fmean(rare[name].values()), ".1f") for name in ("paper-grpo", "paper"))
    yield f"GRPO in groups of 2 reaches {plain} and ARPO {arpo}."


def claims_of_options() -> Iterator[str]:
    second, first = series("second-series.json"), series("first-series.json")
    g2, g8, u2 = (series(f"desk128-{name}.json") for name in ("g2", "g8", "u2"))

    def on_new(runs: Series, name: str, against: str = "fresh") -> str:
        tasks = "instances_validation"
        return points(difference(runs.after(name, tasks), runs.after(against, tasks)))

    def on_trained(runs: Series, name: str, against: str = "paper", base: Series | None = None) -> str:
        one, other = runs.after(name, "train"), (base or runs).after(against, "train")
        return points(difference(over_seeds(one), over_seeds(other)))

    yield row(
        "groups of 2; of 4; of 16",
        "new instances",
        "",
        "; ".join(on_new(second, name) for name in ("g2", "g4", "g16")),
        "3",
    )
    for title, name in (
        ("partial credit of at most 0.4", "partial"),
        ("goal families with signal more often (adaptive)", "adaptive"),
        ("linear decay of the learning rate", "decay"),
        ("advantages of equal states (GiGPO), weight 1", "states"),
        ("negative advantages halved, KL 0.1", "damped"),
    ):
        yield row(title, "new instances", "8", on_new(second, name), "3")
    yield row("replay by goal family", "new instances", "8", on_new(first, "family"), "3")
    in_short = on_new(second, "desk_fresh", "desk_fresh, no replay")
    yield row("replay by goal family, in `desk_fresh`", "new instances", "4", in_short, "5")
    for title, runs, name, size, seeds in (
        ("partial credit of at most 0.4", g2, "ablations/partial", 2, 3),
        ("replay replaces the longest failure", g2, "ablations/victim_longest", 2, 3),
        ("replay of the shortest success", g2, "ablations/shortest", 2, 3),
        ("replay of the newest success", g2, "ablations/newest", 2, 3),
        ("replay of successes at most 16 versions old", g2, "ablations/max_age16", 2, 3),
        ("two stored successes per group", g8, "ablations/injections2", 8, 3),
        ("one stored success per task in place of 8", g2, "ablations/capacity1", 2, 3),
        ("32 stored successes per task", g2, "ablations/capacity32", 2, 3),
        ("rescue of groups with one or two successes (`replay.rare`)", g8, "ablations/rare", 8, 5),
        ('`replay.ratio = "truncated"`', g2, "paper/truncated", 2, 3),
        ('`replay.ratio = "behaviour"`', g2, "paper/behaviour", 2, 3),
        ('`loss.aggregation = "token"`', g8, "paper/token", 8, 3),
        ('`loss.advantage = "mean"`', g8, "paper/mean", 8, 3),
        ('`loss.advantage = "rloo"`', g8, "paper/rloo", 8, 3),
        ("curriculum: tasks of middle difficulty more often", g2, "ablations/curriculum_middle", 2, 3),
        ("curriculum: easy tasks first", g2, "ablations/curriculum_easy", 2, 3),
    ):
        yield row(title, "training tasks", f"{size}", on_trained(runs, name), f"{seeds}")
    slower = on_trained(u2, "paper/grpo", "paper/grpo", g8)
    yield row("2 tasks per update in groups of 8, GRPO", "training tasks", "8", slower, "3")


def claims_of_asynchrony() -> Iterator[str]:
    runs = series("asynchrony.json", "second")

    def effect(name: str) -> str:
        return points(difference(runs.after(name, "train"), runs.after(f"{name[:2]}-s0", "train")))

    yield (
        f"S = 1 {effect('g2-s1')}, S = 2 {effect('g2-s2')}, S = 4 {effect('g2-s4')}; S = 4 with "
        f'`loss.stale_ratio = "recompute"` {effect("g2-s4-none")}, with `"behaviour"` '
        f"{effect('g2-s4-behaviour')}."
    )
    last = effect("g8-s4").removesuffix(")")
    yield f"Groups of 8: {effect('g8-s1')}, {effect('g8-s2')}, {last}; five seeds)."


def claims_of_task_pool() -> Iterator[str]:
    folder = ROOT / "src" / "arpo" / "envs" / "desk"
    lists = {
        name: json.loads((folder / "tasks" / f"{name}.json").read_text("utf-8"))
        for name in ("pool", "screened", "128", "32")
    }
    pool = len(lists["pool"])
    screened = [one["successes"] for one in lists["screened"]["tasks"].values()]
    rates = [100 * sum(screened) / (16 * tasks) for tasks in (pool, len(screened))]
    yield row(f"success rate over all rollouts on the {number(pool)} tasks", f"{number(rates[0], '.1f')}%")
    yield f"success rate on them | {number(len(screened))}, {number(rates[1], '.1f')}% |"
    ranges = []
    for name in ("128", "32"):
        found = [one["successes"] for one in lists[name]["tasks"].values()]
        ranges.append(f"{number(min(found))} to {number(max(found))}")
    yield f"(`--count`): {ranges[0]} and {ranges[1]} successes of 16"
    by_count = [pool - len(screened), *(screened.count(successes) for successes in range(1, 17))]
    yield f"from 0 to 16: {', '.join(number(count) for count in by_count)}."
    card = (folder / "base_model" / "weights" / "README.md").read_text("utf-8")
    elements = [cells for cells in _rows(card) if len(cells) == 5 and cells[0].isalpha()]
    pointing = {cells[0]: float(cells[3][:-1]) for cells in elements if cells[3].endswith("%")}
    worst, *_, best = sorted(value for name, value in pointing.items() if name != "close")
    close, items = pointing["close"], pointing["Item"]
    yield (
        f"it finds {number(int(worst))} to {number(best, '.0f')}% of the elements by their names, list "
        f"items {number(items, '.1f')}% (the unlabelled close button: {number(close, '.0f')}%)."
    )
    [parameters] = re.findall(r"\(([\d,]+) parameters", card)
    millions = int(parameters.replace(",", "")) / 1e6
    yield f"a base model of {number(millions, '.2f')} million parameters."
    [updates] = re.findall(r"--steps (\d+)", card)
    yield f"{number(int(updates), ',')} updates of 65,536 tokens."


def _rows(page: str) -> Iterator[list[str]]:
    """The cells of the tables of a page."""
    for line in page.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]
