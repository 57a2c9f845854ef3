"""Comparisons of run folders: worked numbers, the page and the JSON, unfinished runs, damaged folders."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t as student

from arpo.comparison.methods import load_comparison, read_run_result
from arpo.comparison.results import (
    Comparison,
    CurvePoint,
    Difference,
    MethodResult,
    RunResult,
    average_curves,
    bin_by_difficulty,
    compare_runs,
    paired_difference,
    success_rate,
)
from arpo.comparison.tables import page_json, significance, terminal_lines, to_json
from arpo.config import Config
from arpo.errors import UserError
from arpo.reporting.statistics import holm
from arpo.tasks.screened import Count
from comparisons import RunRecords, Scores, write_run

BASE: Scores = {"train": {"a": [1, 0, 0, 0], "b": [0, 0]}, "heldout": {"h": [1, 0]}}
NEW = Config(tasks=replace(Config().tasks, train="no-such-list.json"))


def final(a: int, b: int, h: int) -> Scores:
    """Final scores with `a` of 4, `b` of 2 and `h` of 2 rollouts solved."""
    return {
        "train": {"a": [1] * a + [0] * (4 - a), "b": [1] * b + [0] * (2 - b)},
        "heldout": {"h": [1] * h + [0] * (2 - h)},
    }


def records(a: int, b: int, h: int, **more: object) -> RunRecords:
    batches = ((4, 1, 2, 3.0), (4, 3, 0, 0.0))
    return RunRecords(base=BASE, final=final(a, b, h), batches=batches, config=NEW, **more)  # type: ignore[arg-type]


def write_two(out: Path) -> None:
    """ARPO and GRPO, two seeds each."""
    write_run(out / "arpo" / "seed-0", records(4, 1, 1))
    write_run(out / "arpo" / "seed-1", records(4, 2, 2, seconds=300.0))
    write_run(out / "grpo" / "seed-0", records(2, 1, 1))
    write_run(out / "grpo" / "seed-1", records(3, 0, 1))


def read(out: Path) -> Comparison:
    folders = [folder for folder in sorted(out.glob("*/seed-*")) if folder.is_dir()]
    wanted = {"arpo": range(2), "grpo": range(2)}
    return compare_runs([read_run(folder) for folder in folders], wanted, "grpo", {})


def read_run(folder: Path) -> RunResult:
    return read_run_result(folder, folder.parent.name, int(folder.name.removeprefix("seed-")))


def compared(out: Path, words: list[str], seeds: int | None, against: str | None) -> dict[str, Any]:
    """The content of compare.json."""
    return json.loads(to_json(*load_comparison(out, words, seeds, against)))


def page_of(out: Path, words: list[str], seeds: int | None, against: str | None) -> dict[str, Any]:
    return page_json(*load_comparison(out, words, seeds, against))


def cells(page: dict[str, Any], title: str, method: str) -> list[list[str]]:
    """The rows of a method in a section's table: "value (detail)"."""
    table = next(one for one in page["sections"] if one["title"] == title)["table"]
    return [
        [f"{value} ({detail})" if detail else value for value, detail, _ in row["cells"]]
        for row in table["rows"]
        if page["methods"][row["method"]] == method
    ]


def row(comparison: Comparison, name: str) -> MethodResult:
    return next(one for one in comparison.rows if one.name == name)


def test_the_table(tmp_path: Path) -> None:
    write_two(tmp_path)
    comparison = read(tmp_path)
    arpo = row(comparison, "arpo")
    # Tasks have equal weight: (4/4 + 1/2) / 2, (4/4 + 2/2) / 2.
    assert arpo.success["train"].seeds == {0: 0.75, 1: 1.0}
    assert (arpo.success["train"].mean, arpo.success["train"].sd) == (0.875, pytest.approx(0.25 / 2**0.5))
    assert arpo.success["heldout"].mean == 0.75 and "overall" not in arpo.success
    assert arpo.totals["seconds"].mean == 200.0 and arpo.totals["episodes"].mean == 20.0
    assert [arpo.totals[name].mean for name in ("groups", "without_signal", "rescued")] == [8.0, 4.0, 2.0]
    assert arpo.stages == {"rollout": 4.0, "learn": 6.0, "evaluate": 10.0}
    assert arpo.totals["episodes_per_second"].mean == 5.0
    base = row(comparison, "base")
    assert base.success["train"].seeds == {0: 0.125, 1: 0.125} and base.totals == {}
    assert comparison.missing == ()


def test_the_difference_is_paired_by_seed_and_task(tmp_path: Path) -> None:
    write_two(tmp_path)
    found = {(one.method, one.tasks): one for one in read(tmp_path).differences}
    assert set(found) == {(name, which) for name in ("arpo", "base") for which in ("train", "heldout")}
    one = found["arpo", "train"]
    # seed 0: a 2/4, b 0; seed 1: a 1/4, b 2/2
    assert one.by_seed == {0: 0.25, 1: 0.625} and one.mean == 0.4375 and one.task_count == 2
    # Means by task: a 0.375, b 0.5. Squared error: 0.1875² over seeds + 0.0625² over tasks = 0.0390625.
    # Degrees of freedom: 0.0390625² / (0.1875⁴ + 0.0625⁴) = 1.2195.
    half_width = student.ppf(0.975, 0.0390625**2 / (0.1875**4 + 0.0625**4)) * 0.0390625**0.5
    assert one.interval == pytest.approx((0.4375 - half_width, 0.4375 + half_width))
    assert one.p == pytest.approx(2 * student.sf(0.4375 / 0.0390625**0.5, 1.219512), abs=1e-6)


def test_p_values_are_corrected_for_all_differences_of_the_comparison(tmp_path: Path) -> None:
    for seed in range(3):
        for name, a, b, h in (("arpo", 4, 1, 2), ("grpo", 2, 1, 1), ("other", 3, 1, 1)):
            write_run(tmp_path / name / f"seed-{seed}", records(a, b, h, between=BASE))
    found = compared(tmp_path, ["grpo", "arpo", "other"], 3, None)["differences"]
    assert len(found) == 6  # two task sets; base model, arpo and other
    assert [one["corrected_p"] for one in found] == holm([one["p"] for one in found])
    assert any(one["p"] < one["corrected_p"] for one in found)


def test_a_task_without_a_verdict_in_one_run_is_left_out_of_all(tmp_path: Path) -> None:
    before = {"train": {"a": [0.0, 1.0], "b": [0.0, 0.0]}}
    for name, after in (("arpo", {"a": [1.0, 1.0], "b": []}), ("grpo", {"a": [1.0, 0.0], "b": [1.0, 1.0]})):
        write_run(tmp_path / name / "seed-0", RunRecords(base=before, final={"train": after}))
    content = compared(tmp_path, ["arpo", "grpo"], 1, None)
    assert content["left_out"] == {"train": ["b"]}
    assert {one["name"]: one["success"]["train"]["mean"] for one in content["rows"]} == {
        "base": 0.5,
        "arpo": 1.0,
        "grpo": 0.5,
    }
    assert page_of(tmp_path, ["arpo", "grpo"], 1, None)["warning"].endswith("all success rates: b.")


def test_one_seed_is_too_few(tmp_path: Path) -> None:
    write_run(tmp_path / "arpo" / "seed-0", records(4, 2, 1))
    write_run(tmp_path / "grpo" / "seed-0", records(2, 1, 1))
    content = compared(tmp_path, ["arpo", "grpo"], 1, None)
    assert [one["task_count"] for one in content["differences"]] == [2, 2, 1, 1]
    assert content["differences"][2]["interval"] is None  # one seed, one task
    rows = cells(page_of(tmp_path, ["arpo", "grpo"], 1, None), "Difference from arpo", "grpo")
    assert rows[0][:5] == ["training tasks (2)", "−50.0", "−50.0 to −50.0", "<0.0001", "<0.0001"]
    assert rows[0][5] == "lower in these runs; too few seeds (1)"


def test_the_difference_leaves_out_tasks_without_rollouts_on_one_side() -> None:
    one = {0: {"train": {"a": (1, 2), "b": (0, 0), "c": (1, 1)}}}
    other = {0: {"train": {"a": (0, 2), "b": (1, 2)}}}
    found = paired_difference("m", "train", one, other)
    assert found is not None and (found.task_count, found.mean) == (1, 0.5)
    assert paired_difference("m", "heldout", one, other) is None
    assert paired_difference("m", "train", one, {1: other[0]}) is None
    older = {1: {"heldout": {"z": (1, 1)}}}  # a run that was not evaluated on this set
    assert paired_difference("m", "train", one | older, other | older) == found
    assert success_rate({"a": (1, 2), "b": (0, 0)}) == 0.5 and success_rate({"b": (0, 0)}) is None


def test_seeds_with_tasks_of_their_own_are_compared_by_their_means() -> None:
    """Differences 0.2, 0.4 and 0.6: standard error 0.2 / √3, t = 3.464 with 2 degrees of freedom."""
    after = {0: {"a": (0.2, 1), "b": (0.2, 1)}, 1: {"c": (0.1, 1), "d": (0.7, 1)}, 2: {"e": (0.6, 1)}}
    one = {seed: {"train": tallies} for seed, tallies in after.items()}
    other = {seed: {"train": dict.fromkeys(tallies, (0, 1))} for seed, tallies in after.items()}
    found = paired_difference("m", "train", one, other)
    assert found is not None and found.task_count == 5
    assert found.by_seed == pytest.approx({0: 0.2, 1: 0.4, 2: 0.6})
    assert found.mean == pytest.approx(0.4) and found.p == pytest.approx(0.0742, abs=1e-4)


@pytest.mark.parametrize(
    ("mean", "seeds", "p", "corrected_p", "result"),
    [
        (0.15, 3, 0.01, 0.04, "significantly higher"),
        (-0.15, 5, 0.01, 0.04, "significantly lower"),
        (0.15, 3, 0.01, 0.05, "suggestive: higher, but not after correction"),
        (0.15, 3, 0.05, 0.05, "no significant difference"),
        (0.15, 2, 0.01, 0.01, "higher in these runs; too few seeds (2)"),
        (0.15, 2, 0.06, 0.06, "no significant difference"),
    ],
)
def test_significance(mean: float, seeds: int, p: float, corrected_p: float, result: str) -> None:
    one = Difference(
        method="m",
        tasks="train",
        mean=mean,
        by_seed=dict.fromkeys(range(seeds), mean),
        task_count=9,
        interval=(0.1, 0.2),
        p=p,
        corrected_p=corrected_p,
    )
    assert significance(one) == result


def test_each_held_out_set_has_its_column_and_its_differences(tmp_path: Path) -> None:
    def scores(solved: int) -> Scores:
        return {
            "instances_validation": {"i": [1] * solved + [0] * (4 - solved), "j": [1, 0]},
            "families_validation": {"f": [0, 1], "g": [1, 1]},
        }

    for seed in range(3):
        write_run(tmp_path / "new" / f"seed-{seed}", RunRecords(base=scores(1), final=scores(3)))
    page = page_of(tmp_path, [], None, None)
    assert cells(page, "Success rate", "new")[0][:2] == [
        "62.5 ± 0.0 (62.5, 62.5, 62.5)",
        "75.0 ± 0.0 (75.0, 75.0, 75.0)",
    ]
    differences = cells(page, "Difference from base model", "new")
    assert differences[0][:2] == ["new instances (validation) (2)", "+25.0 (+25.0, +25.0, +25.0)"]
    titles = [one["title"] for section in page["sections"] for one in section.get("curves", ())]
    assert titles[0] == "Success rate on new instances (validation), in evaluations"
    charts = [one["title"] for section in page["sections"] for one in section.get("intervals", ())]
    assert charts[1] == "New goal families (validation): difference in percentage points"
    terminal = "\n".join(terminal_lines(load_comparison(tmp_path, [], None, None)[0]))
    assert "Difference from base model in percentage points, with its 95% interval:" in terminal
    assert "corrected p" in terminal and "new goal families (validation) (2)" in terminal


def test_curves_are_means_over_seeds_with_their_range() -> None:
    curves = [[(0.0, 0.0), (10.0, 1.0)], [(0.0, 0.2), (5.0, 0.4), (12.0, 1.1)]]
    found = [(point.x, point.mean, point.low, point.high) for point in average_curves(curves)]
    assert found[0] == pytest.approx((0.0, 0.1, 0.0, 0.2))
    assert found[1] == pytest.approx((5.0, 0.45, 0.4, 0.5))
    assert found[2] == pytest.approx((10.0, 0.95, 0.9, 1.0)) and len(found) == 3
    assert average_curves([]) == average_curves([[], []]) == ()
    assert average_curves([[(3.0, 0.5)]]) == (CurvePoint(x=3.0, mean=0.5, low=0.5, high=0.5),)


def test_the_curves_of_a_run(tmp_path: Path) -> None:
    write_two(tmp_path)
    curves = {key: by_method["arpo"] for key, by_method in read(tmp_path).curves.items()}
    assert [(point.x, point.mean) for point in curves["train"]] == [(0.0, 0.125), (20.0, 0.875)]
    assert [(point.x, point.mean) for point in curves["without_signal"]] == [(10.0, 0.5), (20.0, 0.5)]
    assert [point.mean for point in curves["sampled"]] == pytest.approx([0.15, 0.15])
    assert [point.mean for point in curves["replay_age"]] == [
        3.0,
        3.0,
    ]  # batches without a rescue do not count


def test_success_rates_average_partial_scores(tmp_path: Path) -> None:
    """As in the run's summary; replay.threshold does not matter."""
    write_run(
        tmp_path / "seed-0", replace(records(4, 2, 1), final={"train": {"a": [0.6, 0.6], "b": [0.1, 1]}})
    )
    assert success_rate(read_run(tmp_path / "seed-0").tallies_at("final")["train"]) == pytest.approx(
        (0.6 + 0.55) / 2
    )


def test_curves_of_offline_methods_have_two_points(tmp_path: Path) -> None:
    stored = replace(NEW, train=replace(NEW.train, method="rft"))
    write_run(tmp_path / "rft" / "seed-0", replace(records(4, 2, 1, between=BASE), config=stored))
    (tmp_path / "collected" / "seed-0").mkdir(parents=True)
    (tmp_path / "collected" / "seed-0" / "timing.jsonl").write_text(
        '{"step": 1, "rollout": 30.0}\n{"step": 2, "rollout": 20.0}\n'
    )
    run = read_run(tmp_path / "rft" / "seed-0")
    assert run.seconds == 150.0
    points = compare_runs([run], {"rft": [0]}, "rft", {}).curves["train"]["rft"]
    assert [point.x for point in points] == [0.0, 20.0]


def test_tasks_by_difficulty() -> None:
    solved = {
        "never": (0, 16),
        "hard": (3, 16),
        "half": (3.5, 8),
        "often": (9, 16),
        "always": (4, 4),
        "unplayed": (0, 0),
    }
    assert bin_by_difficulty([*solved, "unknown"], solved) == {
        "never": ("never",),
        "1–3 of 16": ("hard",),
        "4–8 of 16": ("half",),
        "9–13 of 16": ("often",),
        "14–16 of 16": ("always",),
    }


def test_difficulty_uses_screening_counts_if_there_are_any(tmp_path: Path) -> None:
    write_two(tmp_path)
    runs = [read_run(folder) for folder in sorted(tmp_path.glob("*/seed-*"))]
    wanted = {"arpo": range(2), "grpo": range(2)}
    by_base = compare_runs(runs, wanted, "grpo", {"a": Count(successes=0, rollouts=0)})
    assert not by_base.screened and by_base.bins == {"never": ("b",), "4–8 of 16": ("a",)}
    screened = compare_runs(runs, wanted, "grpo", {"a": Count(successes=2, rollouts=16)})
    assert screened.screened and screened.bins == {"1–3 of 16": ("a",)}
    assert row(screened, "arpo").by_difficulty["1–3 of 16"].mean == 1.0


def test_the_page_has_the_figures_and_the_json_holds_the_raw_counts(tmp_path: Path) -> None:
    write_two(tmp_path)
    shown = cells(page_of(tmp_path, [], None, "grpo"), "Success rate", "arpo")[0]
    assert shown[:4] == ["87.5 ± 17.7 (75.0, 100.0)", "75.0 ± 35.4 (50.0, 100.0)", "20", "3:20"]
    assert shown[4:] == ["50% (4 of 8)", "25% (2 of 8)"]
    # Recompute the success rate from the raw counts in the JSON.
    content = compared(tmp_path, [], None, "grpo")
    for run in content["runs"]:
        last = [one for one in run["evaluations"] if one["landmark"] == "final"][-1]
        shares = [solved / rollouts for solved, rollouts in last["tallies"]["train"].values()]
        success = next(one for one in content["rows"] if one["name"] == run["method"])["success"]["train"]
        assert success["seeds"][str(run["seed"])] == sum(shares) / len(shares)


def test_unfinished_runs_are_listed_and_show_their_curves(tmp_path: Path) -> None:
    write_run(tmp_path / "arpo" / "seed-0", records(4, 1, 1))
    write_run(tmp_path / "grpo" / "seed-0", RunRecords(base=BASE, batches=((4, 1, 0, 0.0),), config=NEW))
    with (tmp_path / "grpo" / "seed-0" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "epi')  # an incomplete line
    words = ["arpo", "grpo", "third"]
    page = page_of(tmp_path, words, 2, "base")
    assert page["warning"].endswith(": arpo: seed 1; grpo: seed 0, 1; third: seed 0, 1.")
    assert cells(page, "Success rate", "grpo")[0][:3] == ["–", "–", "–"]
    content = compared(tmp_path, words, 2, "base")
    assert content["curves"]["without_signal"]["grpo"] == [
        {"x": 10.0, "mean": 0.25, "low": 0.25, "high": 0.25}
    ]
    assert {one["method"] for one in content["differences"]} == {"arpo"}


def test_a_page_without_any_finished_run_lists_the_unfinished(tmp_path: Path) -> None:
    page = page_of(tmp_path, ["arpo", "grpo"], 1, None)
    assert page["warning"].endswith(": arpo: seed 0; grpo: seed 0.")
    assert [section["title"] for section in page["sections"]] == ["Success rate", "Time"]


def test_rows_follow_the_order_of_recipes_else_the_baseline_comes_first(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_run(tmp_path / name / "seed-0", records(4, 1, 1))

    def rows(recipes: list[str], against: str | None) -> tuple[str, list[str]]:
        content = compared(tmp_path, recipes, None, against)
        return content["reference"], [row["name"] for row in content["rows"]]

    assert rows(["c", "a"], None) == ("c", ["base", "c", "a"])
    assert rows(["c", "a"], "a") == ("a", ["base", "c", "a"])
    assert rows([], "b") == ("b", ["base", "b", "a", "c"])
    assert rows([], None) == ("base", ["base", "a", "b", "c"])


def test_the_report_lists_settings_that_differ_from_the_baseline(tmp_path: Path) -> None:
    other = replace(NEW, replay=replace(NEW.replay, capacity=1))
    write_run(tmp_path / "a" / "seed-0", replace(records(4, 1, 1), config=other))
    write_run(tmp_path / "b" / "seed-0", records(4, 1, 1))
    write_run(tmp_path / "c" / "seed-0", records(4, 1, 1))
    for against, expected in (
        ("b", ["a differs from b in 1 setting", "  replay.capacity  1 (b: 8)", "c has the settings of b"]),
        ("base", ["b differs from a in 1 setting", "  replay.capacity  8 (a: 1)"]),
    ):
        section = page_of(tmp_path, [], None, against)["sections"][-1]
        assert section["title"] == "Recipes" and section["text"].splitlines()[: len(expected)] == expected


def test_methods_with_different_models_have_no_base_model(tmp_path: Path) -> None:
    other = replace(NEW, model=replace(NEW.model, path="elsewhere"))
    write_run(tmp_path / "arpo" / "seed-0", records(4, 1, 1))
    write_run(tmp_path / "grpo" / "seed-0", replace(records(2, 1, 1), config=other))
    comparison = read(tmp_path)
    assert row(comparison, "base").success == {}
    assert {one.method for one in comparison.differences} == {"arpo"}


def test_damaged_and_foreign_folders_are_errors(tmp_path: Path) -> None:
    write_two(tmp_path)
    write_run(tmp_path / "base" / "seed-0", records(4, 1, 1))  # reserved name: ignored
    (tmp_path / "notes.txt").write_text("mine")
    foreign = tmp_path / "other" / "seed-old"
    foreign.mkdir(parents=True)
    (foreign / "recipe.toml").write_text("")
    load_comparison(tmp_path, ["arpo", "grpo"], None, None)
    absurd = tmp_path / "grpo" / "seed-99999999999"  # the report lists every seed up to the largest
    shutil.copytree(tmp_path / "grpo" / "seed-0", absurd)
    with pytest.raises(UserError, match=r"seed-99999999999: run folders of a comparison are named seed-0"):
        load_comparison(tmp_path, ["arpo", "grpo"], None, None)
    shutil.rmtree(absurd)
    with pytest.raises(
        UserError, match=r"seed-old: run folders of a comparison are named seed-0, seed-1, …: move it away"
    ):
        load_comparison(tmp_path, [], None, None)
    (tmp_path / "arpo" / "seed-1" / "summary.json").write_text('{"episodes": ')
    with pytest.raises(UserError, match=r"seed-1/summary\.json: damaged, not JSON \(Expecting value\)"):
        load_comparison(tmp_path, ["arpo", "grpo"], None, None)
    (tmp_path / "arpo" / "seed-0" / "metrics.jsonl").write_text('{"step": "a"}\n')
    with pytest.raises(UserError, match=r"seed-0/metrics\.jsonl: line 1: damaged, step"):
        read_run(tmp_path / "arpo" / "seed-0")
    (tmp_path / "arpo" / "seed-0" / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"seed-0/metrics\.jsonl: line 1: damaged, no 'step'"):
        load_comparison(tmp_path, ["arpo", "grpo"], None, None)


def test_folders_without_a_comparison_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no runs: start them with `arpo compare RECIPE"):
        load_comparison(tmp_path, [], None, None)
    with pytest.raises(UserError, match="no such folder"):
        load_comparison(tmp_path / "x", [], None, None)
    write_two(tmp_path)
    with pytest.raises(UserError, match=r"contains no runs of desk: choose from arpo, grpo"):
        load_comparison(tmp_path, ["arpo", "desk"], None, None)
    with pytest.raises(
        UserError, match=r"--against gpro: not part of this comparison \(did you mean grpo\?\)"
    ):
        load_comparison(tmp_path, [], None, "gpro")
