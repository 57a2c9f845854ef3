"""The explanations of metrics."""

import re
from pathlib import Path

import pytest

from arpo.config.recipe import keys
from arpo.reporting.metrics import METRICS, TIMES, describe_metrics, find_metric
from arpo.training.trainer import Trainer
from trained import lines, train_to_end
from verdicts import A, B, Scripted, small_config


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_every_metric_of_a_run_is_explained(tmp_path: Path, max_staleness: int) -> None:
    Scripted.play({A: [0, 1, 0] * 4, B: [1, 0, 1] * 4})
    overall = f"--tasks.overall={tmp_path / 'heldout.json'}"
    settings = (f"--train.max_staleness={max_staleness}", "--train.epochs=2")
    config = small_config(tmp_path, [A, B], overall, *settings)
    train_to_end(Trainer, config)
    names = {name for line in lines(config, "metrics.jsonl") for name in line}
    assert ("staleness_mean" in names) == (max_staleness > 0)
    assert names - {"step"} - METRICS.keys() == set()
    times = {name for line in lines(config, "timing.jsonl") for name in line}
    assert "env_lost" in times and times - {"step"} - TIMES.keys() == set()


def test_every_metric_of_an_offline_method_is_explained() -> None:
    source = Path("src/arpo/algorithms/preference_losses.py").read_text("utf-8")
    names = set(re.findall(r'^ +"(\w+)": ', source, re.MULTILINE))
    assert {"margin", "accuracy", "z0"} <= names <= METRICS.keys()


def test_success_rates_on_held_out_sets_are_explained() -> None:
    found = find_metric("eval_families_test")
    assert found is not None and found.percent and found.title == "Success rate on new goal families (test)"
    mine = find_metric("eval_mine")
    assert mine is not None and mine.title == "Success rate on held-out tasks, mine"
    assert find_metric("mine") is None and find_metric("loss") == METRICS["loss"]


def test_explanations_name_existing_keys() -> None:
    known = {key.name for key in keys()}
    sections = {name.split(".")[0] for name in known}
    for name, metric in METRICS.items():
        named = set(re.findall(r"\b([a-z]+\.[a-z_]+)\b", metric.explanation))
        assert {key for key in named if key.split(".")[0] in sections} <= known, name


def test_the_listing_has_every_metric() -> None:
    listing = describe_metrics()
    assert all(f"\n{name}  ({metric.title})\n" in listing for name, metric in METRICS.items())
    assert all(f"\n{name} " in listing for name in TIMES)
    assert max(map(len, listing.splitlines())) <= 110
