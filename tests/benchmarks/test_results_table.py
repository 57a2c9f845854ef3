"""benchmarks/results/README.md lists every stored run."""

from results_table import PAGE, Row, format_cell, make_page, read_rows


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == make_page(), "run: python benchmarks/results_table.py"


def test_rows_of_runs_by_name() -> None:
    (row,) = read_rows({"g2-s4-10": {"base": [64, 128], "final": [96, 128]}})
    assert row == Row(run="g2-s4", seed=10, before={"train": [64, 128]}, after={"train": [96, 128]})
    assert format_cell(row, "train") == "50.0 → 75.0"


def test_rows_of_a_comparison() -> None:
    evaluations = [
        {"tallies": {"train": {"a": [1, 2], "b": [0, 2]}}},
        {"tallies": {"train": {"a": [2, 2], "b": [1, 2]}}},
    ]
    (row,) = read_rows({"runs": [{"method": "paper-grpo", "seed": 1, "evaluations": evaluations}]})
    assert row == Row(run="paper/grpo", seed=1, before={"train": (1, 4)}, after={"train": (3, 4)})
