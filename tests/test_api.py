"""The Python interface on Desk: in a script and in a running event loop (Jupyter)."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

import arpo
from arpo.actions import Action, Click
from arpo.api import find_task
from arpo.config.recipe import load_config
from arpo.envs.desk.env import DeskEnv
from arpo.tasks.lists import load_tasks
from arpo.tasks.sources import open_tasks
from arpo.types import Observation, StepResult, StopReason, Task
from clicking_model import clicking_model
from verdicts import HELDOUT, A, B, select_few

SMALL = {
    "run.threads": 1,
    "env.parallel": 4,
    "train.epochs": 1,
    "train.tasks_per_batch": 1,
    "train.tasks_per_update": 1,
    "rollout.max_steps": 2,
    "eval.every": 0,
    "eval.rollouts": 2,
    "eval.heldout_rollouts": 1,
    "store.tensorboard": False,
}


def small(folder: Path, **settings: arpo.api.Setting) -> arpo.Config:
    """Two training tasks, one held-out task, episodes of two steps. `settings` have _ in place of the dot."""
    changes = {key.replace("_", ".", 1): value for key, value in settings.items()}
    parts = {
        "model.path": clicking_model(),
        "tasks.train": select_few(folder / "train.json", "pool", [A, B]),
        "tasks.heldout": select_few(folder / "heldout.json", "heldout", [HELDOUT]),
    }
    return arpo.load("desk", {**SMALL, **parts, "run.dir": folder / "run", **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> arpo.StoredRun:
    return arpo.train(small(tmp_path_factory.mktemp("api")))


class Interrupted(KeyboardInterrupt):
    """Like Ctrl-C, but it would not end the tests."""


class Interrupting(DeskEnv):
    """Is interrupted after `left` verdicts. `starts` counts the environments that started."""

    left: ClassVar[int] = 0
    starts: ClassVar[int] = 0

    async def start(self, task: Task) -> Observation:
        Interrupting.starts += 1
        return await super().start(task)

    async def evaluate(self) -> float:
        if Interrupting.left == 0:
            raise Interrupted
        Interrupting.left -= 1
        return await super().evaluate()


class Closing(DeskEnv):
    """Counts environments that were closed; breaks at the step `breaks_at`."""

    closed: ClassVar[int] = 0
    breaks_at: ClassVar[int] = 0
    steps: ClassVar[int] = 0

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        Closing.steps += 1
        if Closing.steps == self.breaks_at:
            raise RuntimeError("the screen went dark")
        return await super().step(actions)

    async def close(self) -> None:
        Closing.closed += 1
        await super().close()


def test_import_gives_all_names_without_torch():
    code = "import arpo, sys; config = arpo.load(); print('torch' in sys.modules, config.run.dir, dir(arpo))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False runs/desk [") and "'train'" in done.stdout
    assert all(getattr(arpo, name) for name in arpo.__all__)
    assert {*arpo._MODULE_OF} == {*arpo.__all__}
    with pytest.raises(AttributeError, match="module 'arpo' has no attribute 'trian'"):
        arpo.trian  # noqa: B018


def test_load_checks_settings_as_the_command_does(tmp_path):
    config = arpo.load("desk", {"run.dir": tmp_path / "a", "optim.lr": 1, "replay.enabled": False})
    assert config == load_config(
        "desk", [f"--run.dir={tmp_path / 'a'}", "--optim.lr=1", "--replay.enabled=false"]
    )
    assert arpo.load(config, {"optim.lr": 2e-4}).optim.lr == 2e-4
    with pytest.raises(arpo.UserError, match=r"settings: optim.rl: unknown key \(did you mean optim.lr\?\)"):
        arpo.load("desk", {"optim.rl": 1})
    with pytest.raises(arpo.UserError, match="dekst: no such recipe"):
        arpo.load("dekst")


def test_training_prints_nothing_and_returns_the_run(run, capsys):
    assert capsys.readouterr().out == ""
    assert [line["step"] for line in run.metrics] == [0, 1, 2]
    assert run.metrics[1]["episodes"] == 2
    assert run.config == load_config(run.folder / "recipe.toml")
    assert run.config.rollout.max_steps == 2
    assert {name: (score.episodes, len(score.by_task)) for name, score in run.before.items()} == {
        "train": (4, 2),
        "heldout": (1, 1),
    }
    assert run.after.keys() == run.before.keys()
    assert run.after["train"].rate == run.metrics[-1]["eval_train"]
    assert (run.model / "model.safetensors").is_file()
    assert (run.folder / "report.html").is_file()
    assert run.failures == []
    assert repr(run) == f"StoredRun({str(run.folder)!r})"


def test_episodes_are_read_with_their_steps(run):
    every = list(run.episodes())
    assert [episode.id for episode in every if episode.id.startswith("batch")] == [
        *("batch-1-0-0", "batch-1-0-1", "batch-2-0-0", "batch-2-0-1"),
    ]
    mine = list(run.episodes(task=A))
    assert mine and {episode.task for episode in mine} == {A}
    episode = mine[0]
    assert (episode.id, episode.score) == ("eval0-train-0-0", episode.trajectory.score)
    assert episode.stop in StopReason
    assert repr(episode).startswith(f"Episode('eval0-train-0-0', task='{A}', score=")
    first = episode.steps[0]
    assert (first.number, first.screenshot.size) == (1, (224, 168))
    assert first.screenshot.mode == "RGB"
    assert first.answer.startswith(f"Thought: {first.thought}\nAction: ")
    assert isinstance(first.actions[0], Click) and first.error == ""
    assert first.drawing.width == 672 and first.drawing.height > 504
    assert episode.screen_at_end.size == (224, 168)
    with pytest.raises(arpo.UserError, match=r"has no episode of task 'pool-01' \(did you mean pool-0"):
        list(run.episodes(task="pool-01"))


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(arpo.UserError, match="not a run folder"):
        arpo.open_run(tmp_path)


@pytest.mark.slow
def test_train_again_resumes_and_a_longer_run_goes_on(run, capsys):
    again = arpo.train(arpo.load(run.config, {"train.epochs": 2}), display=True)
    assert [line["step"] for line in again.metrics] == [0, 1, 2, 3, 4]
    assert "resuming from" in capsys.readouterr().out


def test_notes_are_logged(run, caplog):
    with caplog.at_level(logging.WARNING, "arpo"):
        arpo.train(run.config)
    assert any("resuming from" in message for message in caplog.messages)


@pytest.mark.slow
def test_an_interrupted_evaluation_with_an_output_file_plays_only_the_missing_episodes(
    run, tmp_path, monkeypatch
):
    settings: dict[str, arpo.api.Setting] = {"env.name": "test_api:Interrupting", "env.parallel": 1}
    config = arpo.load(run.config, settings)
    monkeypatch.setattr(Interrupting, "left", 3)
    monkeypatch.setattr(Interrupting, "starts", 0)
    with pytest.raises(Interrupted):
        arpo.evaluate(config, out=tmp_path / "scores.json")
    assert Interrupting.starts == 4 and not (tmp_path / "scores.json").exists()
    Interrupting.left = 9
    scores = arpo.evaluate(config, out=tmp_path / "scores.json")
    assert Interrupting.starts == 4 + 2  # of 5 episodes, 3 were finished
    assert (scores["train"].episodes, scores["heldout"].episodes) == (4, 1)
    assert json.loads((tmp_path / "scores.json").read_text("utf-8"))["train"]["episodes"] == 4
    assert not (tmp_path / "scores.json.episodes").exists()
    assert scores == arpo.evaluate(config)


def test_evaluate_measures_a_model(run, capsys):
    scores = arpo.evaluate(run.config, model=run.model)
    assert capsys.readouterr().out == ""
    assert scores.keys() == {"train", "heldout"}
    assert set(scores["train"].by_task) == {A, B}
    assert 0 <= scores["train"].rate <= 1
    with pytest.raises(arpo.UserError, match="nowhere"):
        arpo.evaluate(run.config, model="/nowhere")


@pytest.mark.slow
def test_play_shows_each_step_while_it_happens(run):
    config = arpo.load(run.config, {"env.name": "test_api:Closing", "env.partial": 0.0})
    Closing.steps = Closing.breaks_at = 0
    playing = arpo.play(A, config)
    seen = []
    for step in playing:
        assert Closing.steps <= step.number  # the later steps have not been played
        seen.append(step)
    assert [step.number for step in seen] == [1, 2]
    assert playing.task.id == A
    assert playing.episode.steps == tuple(seen)
    assert list(playing) == seen  # watched again, not played again
    assert Closing.steps == 2
    assert playing.episode.stop in (StopReason.MAX_STEPS, StopReason.FINISHED, StopReason.FAIL)
    assert arpo.play(A, config).episode.trajectory == playing.episode.trajectory
    other = arpo.play(A, arpo.load(config, {"run.seed": 1, "eval.temperature": 3.0}))
    assert other.episode.trajectory != playing.episode.trajectory


def test_a_loop_that_is_left_closes_the_environment(run):
    config = arpo.load(run.config, {"env.name": "test_api:Closing"})
    Closing.closed = Closing.steps = Closing.breaks_at = 0
    for _ in arpo.play(A, config):
        break
    assert Closing.closed == 1


def test_a_fault_of_the_environment_is_raised(run):
    config = arpo.load(run.config, {"env.name": "test_api:Closing"})
    Closing.steps, Closing.breaks_at = 0, 1
    with pytest.raises(arpo.EnvError, match="step: RuntimeError: the screen went dark") as caught:
        list(arpo.play(A, config))
    Closing.breaks_at = 0
    assert "test_api.py:" in caught.value.place


def test_the_task_of_play(run):
    assert arpo.play(config=run.config).task.id in (A, B, HELDOUT)
    (task,) = [one for one in load_tasks("desk:pool") if one.id == "pool-040"]
    assert arpo.play(task, run.config).task == task
    with pytest.raises(
        arpo.UserError, match=r"'pool-0100': no such task in the recipe \(did you mean pool-010"
    ):
        arpo.play("pool-0100", run.config)


@pytest.mark.slow
def test_all_of_it_works_in_a_running_event_loop(run, tmp_path):
    async def cell() -> tuple[float, int, int]:
        trained = arpo.train(small(tmp_path))
        scores = arpo.evaluate(trained.config)
        steps = list(arpo.play(A, trained.config))
        await asyncio.sleep(0)
        return scores["train"].rate, len(steps), len(trained.metrics)

    rate, steps, batches = asyncio.run(cell())
    assert 0 <= rate <= 1
    assert (steps, batches) == (2, 3)
    here, there = (
        (folder / "metrics.jsonl").read_bytes().splitlines() for folder in (run.folder, tmp_path / "run")
    )
    assert here[:2] == there[:2]  # the numbers of a script


def press_ctrl_c(batch, metrics, groups):
    """The system may deliver Ctrl-C to any thread: here, to this one."""
    if batch == 1:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("in_a_loop", [False, True])
def test_ctrl_c_saves_and_the_next_call_resumes(tmp_path, in_a_loop):
    config = small(tmp_path, plugins_callback="test_api:press_ctrl_c", train_epochs=3)

    async def cell():
        return arpo.train(config)

    with pytest.raises(KeyboardInterrupt, match="is saved: train again to resume"):
        asyncio.run(cell()) if in_a_loop else arpo.train(config)
    stopped = arpo.open_run(config.run.dir)
    steps = [line["step"] for line in stopped.metrics]
    assert steps in ([0, 1], [0, 1, 2])  # another thread may begin a batch before this one has the signal
    with pytest.raises(arpo.UserError, match="has no final evaluation yet"):
        _ = stopped.after
    with pytest.raises(arpo.UserError, match="has no model yet"):
        _ = stopped.model
    assert [line["step"] for line in arpo.train(config).metrics] == list(range(7))


def test_a_fresh_task_is_found_by_its_id_or_at_random() -> None:
    fresh: dict[str, Any] = {"tasks.train": "desk:fresh", "replay.enabled": False, "tasks.heldout": ""}
    config = arpo.load("desk", {**fresh, "train.tasks": 5})
    assert find_task("fresh-3-99-SetTheme", config).snapshot == "SetTheme"
    assert find_task("random", config) in open_tasks("desk:fresh", config)
    listed = load_config(config, ["--tasks.heldout=desk:instances/validation"])
    assert find_task("random", listed).id.startswith("fresh-")
    with pytest.raises(arpo.UserError, match=r"no such task in the recipe \(.*fresh-0-0-"):
        find_task("fresh-3-99-Fly", config)
