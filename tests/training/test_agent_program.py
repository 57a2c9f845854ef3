"""Training with an agent program: the built-in loop as a program learns the same."""

import asyncio
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from arpo.errors import UserError
from arpo.evaluation.evaluate import run_evaluation
from arpo.reporting.display import Display
from arpo.rollout.player import AGENT_LOGS
from arpo.storage.run_folder import RunFolder
from arpo.training.collect import run_collection
from arpo.training.trainer import Trainer, run_training
from trained import lines, train_to_end
from verdicts import A, B, Scripted, small_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent.py"
SCORES = {A: [0.0, 1.0, 0.0, 1.0], B: [0.0, 0.0, 1.0, 1.0]}
LOOP = ("--rollout.max_steps=3", "--rollout.max_images=2", "--env.parallel=1", "--eval.rollouts=0")


def config(folder, *overrides, program=EXAMPLE):
    agent = "" if program is None else f"{sys.executable} {program}"
    folder.mkdir(exist_ok=True)
    return small_config(folder, [A, B], f"--rollout.agent={agent}", *LOOP, *overrides)


def trained(settings):
    Scripted.play(SCORES)
    return dict(train_to_end(Trainer, settings).run.player.model.state_dict())


def episodes(settings):
    return {record["episode_id"]: record for record in lines(settings, "trajectories.jsonl")}


def gradients(settings):
    """Norms of the gradients of all batches."""
    return [record["grad_norm"] for record in lines(settings, "metrics.jsonl") if "grad_norm" in record]


@pytest.mark.slow
def test_the_built_in_loop_as_a_program_learns_the_same(tmp_path):
    built_in, own = config(tmp_path / "built-in", program=None), config(tmp_path / "own")
    expected, found = trained(built_in), trained(own)
    assert episodes(own) == episodes(built_in)
    assert any(turn["restart"] for one in episodes(own).values() for turn in one["turns"][1:])
    assert gradients(own) == gradients(built_in) and gradients(own)[0] > 0
    assert all(found[name].equal(tensor) for name, tensor in expected.items())
    assert not (Path(own.run.dir) / AGENT_LOGS).exists()


class StopsAfterOneBatch(Display):
    trainer: Trainer

    def batch(self, step, metrics):
        self.trainer.run.stopping = True


@pytest.mark.slow
def test_asynchronous_training_with_a_program_resumes_and_evaluates(tmp_path):
    settings = config(tmp_path, "--train.max_staleness=1", "--env.parallel=2", "--train.epochs=2")
    Scripted.play({task: [0.0, 1.0] * 8 for task in (A, B)})
    with closing(RunFolder(Path(settings.run.dir))) as store:
        store.write_recipe(settings)
        display = StopsAfterOneBatch()
        display.trainer = Trainer(settings, store, display)
        assert not asyncio.run(display.trainer.train())
    train_to_end(Trainer, settings)
    assert len(gradients(settings)) == 2 and min(gradients(settings)) > 0
    assert all(len(record["turns"]) == 3 for record in episodes(settings).values())
    other = replace(settings, rollout=replace(settings.rollout, agent="python3 other.py"))
    with pytest.raises(UserError, match=r"must keep rollout\.agent"):
        run_training(other, Display())
    settings = config(tmp_path, "--eval.rollouts=1")
    assert run_evaluation(settings, tmp_path / "rates.json") == 0


def test_a_broken_program_ends_training(tmp_path):
    program = tmp_path / "broken.py"
    program.write_text("import sys\nprint('I give up')\nsys.exit(3)\n")
    settings = config(tmp_path, "--env.attempts=1", program=program)
    with pytest.raises(UserError, match=r"exit code 3.*I give up.*Fix the agent program, then run the same"):
        run_training(settings)
    log = Path(settings.run.dir) / AGENT_LOGS / "eval0-heldout-0-0.log"
    assert log.read_text() == "I give up\n"
    collected = config(tmp_path / "collected", "--env.attempts=1", program=program)
    with pytest.raises(UserError, match="I give up"):
        run_collection(collected)
    assert (Path(collected.run.dir) / AGENT_LOGS / "collect-0-0.log").read_text() == "I give up\n"
