"""The successes that replay used in a real run are found again."""

from collections import Counter
from pathlib import Path

import pytest

from arpo.training.trainer import Trainer
from trained import lines, train_to_end
from verdicts import A, B, Scripted, small_config
from viewed_runs import answer_of

ASYNCHRONOUS = ("--train.max_staleness=1", "--env.parallel=2")


@pytest.mark.parametrize("settings", [(), ASYNCHRONOUS])
def test_the_replays_of_a_run_are_found_again(settings: tuple[str, ...], tmp_path: Path) -> None:
    # Each list: the base evaluation, the two episodes of each of three batches, the final evaluation.
    Scripted.play({A: [0, 1, 0, 0, 0, 1, 0, 0], B: [1, 0, 1, 0, 0, 0, 0, 0]})
    config = small_config(tmp_path, [A, B], "--train.epochs=3", *settings)
    trainer = train_to_end(Trainer, config)
    rows = answer_of(config, "episodes")["episodes"]
    found = Counter(batch for row in rows for batch in row["replayed_in"])
    rescued = {line["step"]: line["rescued"] for line in lines(config, "metrics.jsonl") if "rescued" in line}
    assert {step: found[step] for step in rescued} == rescued
    assert sum(rescued.values()) >= 2
    assert {row["episode"] for row in rows if row["replayed_in"]} <= {
        name for names in trainer.replay.state().values() for name in names
    }
    trained = {row["batch"] for row in rows if row["phase"].startswith("batch")}
    assert trained == {1, 2, 3}
