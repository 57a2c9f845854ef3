"""The stored episodes of a run: phases, and the successes that replay used."""

from pathlib import Path

from arpo.storage.run_folder import RunFolderReader
from arpo.training.trainer import Trainer
from arpo.viewer.played import phase_title, read_played
from played_episodes import played
from trained import lines, train_to_end
from verdicts import A, B, Scripted, small_config


def test_phases_have_titles():
    titles = {"eval0": "evaluation before training", "eval1200": "evaluation after batch 1,200"}
    titles |= {"batch0": "training batch 1", "batch1535": "training batch 1,536", "collect": "collect"}
    assert {phase: phase_title(phase) for phase in titles} == titles


def test_the_replays_of_a_run_are_found_again(tmp_path: Path) -> None:
    # Each list: the base evaluation, the two episodes of each of four batches, the final evaluation.
    Scripted.play({A: [0, 1, 1, 0, 0, 1, 0, 0, 0, 0], B: [1, 0, 1, 1, 0, 0, 0, 0, 0, 0]})
    config = small_config(tmp_path, [A, B], "--train.epochs=4")
    trainer = train_to_end(Trainer, config)
    found = read_played(RunFolderReader(Path(config.run.dir)), config)
    batches = [batch for one in found for batch in one.replayed_in]
    rescued = {line["step"]: line["rescued"] for line in lines(config, "metrics.jsonl") if "rescued" in line}
    assert {step: batches.count(step) for step in rescued} == rescued
    assert sum(rescued.values()) == 4
    assert {one.id for one in found if one.replayed_in} <= {
        name for names in trainer.replay.state().values() for name in names
    }


def test_the_replays_of_an_asynchronous_run_are_found_again(tmp_path: Path) -> None:
    Scripted.play({A: [0, 1, 1, 0, 0, 1, 0, 0, 0, 0], B: [1, 0, 1, 1, 0, 0, 0, 0, 0, 0]})
    settings = ("--train.max_staleness=1", "--env.parallel=2", "--train.epochs=4")
    config = small_config(tmp_path, [A, B], *settings)
    train_to_end(Trainer, config)
    found = read_played(RunFolderReader(Path(config.run.dir)), config)
    batches = [batch for one in found for batch in one.replayed_in]
    rescued = {line["step"]: line["rescued"] for line in lines(config, "metrics.jsonl") if "rescued" in line}
    assert {step: batches.count(step) for step in rescued} == rescued
    assert sum(rescued.values()) >= 2
    trained = [one for one in found if one.id.startswith("group-")]
    assert sorted({one.phase for one in trained}) == ["batch0", "batch1", "batch2", "batch3"]


def test_a_group_in_no_batch_has_a_phase_of_its_own() -> None:
    assert phase_title(played("group-3-0").phase) == "training, in no batch"
