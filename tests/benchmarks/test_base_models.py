"""The comparison of two tiny models, with worked numbers."""

from pathlib import Path

from base_models import differences, run_line, write_recipe

from arpo.config.recipe import load_config
from arpo.dialects.registry import choose_dialect


def test_the_recipe_names_the_model_and_a_dialect_that_reads_tool_calls(tmp_path: Path) -> None:
    dialect = "tools.pretrain.language:TOOL_CALLS"
    path = write_recipe(tmp_path / "tool_calls" / "model", dialect, None, tmp_path / "out")
    config = load_config(str(path))
    assert path.stem == "tool_calls"
    assert config.model.path == str(tmp_path / "tool_calls" / "model") and config.train.epochs == 4
    chosen = choose_dialect(config.model.dialect, config.model.path, None)
    assert chosen.prompt == "desk" and chosen.parse(chosen.examples[0]).actions
    path = write_recipe(tmp_path / "tool_calls" / "model", dialect, 2e-4, tmp_path / "out")
    assert config.optim.lr == 1e-4 and load_config(str(path)).optim.lr == 2e-4


def test_a_line_per_run_and_the_difference_over_all_held_out_tasks(tmp_path: Path) -> None:
    """Two held-out tasks, two episodes each. Tool calls win one episode less on one of them: 25 points."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"malformed": 0.5}\n{"malformed": 0.0}\n')
    first = {"train": {"t": [0, 1]}, "instances_test": {"b": [1, 2], "a": [0, 2]}}
    won = {"train": {"t": [1, 1]}, "instances_test": {"b": [1, 2], "a": [2, 2]}}
    less = {"train": {"t": [0, 1]}, "instances_test": {"b": [1, 2], "a": [1, 2]}}
    lines = [
        run_line(
            {
                "method": name,
                "seed": 3,
                "episodes": 8,
                "seconds": 1.2,
                "evaluations": [{"tallies": first}, {"tallies": last}],
            },
            tmp_path,
        )
        for name, last in (("desk_fresh", won), ("tool_calls", less))
    ]
    assert lines[0]["after"] == {"train": [1, 1], "instances_test": [3, 4]}
    assert lines[0]["successes_by_task"]["instances_test"] == [2, 1] and lines[0]["malformed"] == [0.5, 0.0]
    found = differences(lines, "tool_calls")
    assert found["before"]["difference"] == 0.0 and found["after"]["difference"] == -25.0
    assert found["after"]["tool_calls"] == {"train": 0.0, "instances_test": 50.0}
    assert found["gain"]["difference"] == -25.0
    assert found["seeds"] == 1 and found["within_3_points"] is False
