"""Every command ends the environment hosts that its player started, also after an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import arpo
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.errors import UserError
from arpo.evaluation.screening import run_screening
from arpo.rollout.player import open_player
from arpo.training.collect import run_collection
from arpo.training.trainer import run_training
from verdicts import A, Scripted, small_config


class Started(LocalEnvs):
    """Environments of this process, counted like hosts: `running` is the number of open sources."""

    running = 0

    def __init__(self, config: Config) -> None:
        super().__init__(Scripted, config.env.parallel)
        Started.running += 1

    def close(self) -> None:
        Started.running -= 1


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Started, "running", 0)
    open_counted = lambda config: EnvPool(Started(config), config.env)  # noqa: E731
    monkeypatch.setattr("arpo.rollout.player.open_pool", open_counted)
    Scripted.play({A: [1.0, 0.0] * 4})


def play(config: Config) -> None:
    playing = arpo.play(A, config)
    for _ in playing:
        break
    assert Started.running == 1  # it can be played again
    assert playing.episode.score == 0.0


COMMANDS: dict[str, Callable[[Config], object]] = {
    "train": run_training,
    "evaluate": arpo.evaluate,
    "screen": lambda config: run_screening(config, config.tasks.train, 2, Path(config.run.dir)),
    "collect": run_collection,
    "play": play,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_its_hosts(tmp_path: Path, command: str) -> None:
    COMMANDS[command](small_config(tmp_path, [A]))
    assert Started.running == 0


def test_a_wrong_model_ends_the_hosts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.path"):
        open_player(small_config(tmp_path, [A], "--model.path=/nowhere"))
    assert Started.running == 0


def test_a_learner_that_cannot_start_ends_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*parts: object) -> None:
        raise UserError("no GPU")

    monkeypatch.setattr("arpo.training.run.open_learner", refuse)
    with pytest.raises(UserError, match="no GPU"):
        run_training(small_config(tmp_path, [A]))
    assert Started.running == 0


@pytest.mark.slow
def test_a_refused_resume_ends_the_hosts(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A], "--train.epochs=2")
    run_training(config)
    with pytest.raises(UserError, match=r"train.epochs = 1: .* has already done 2"):
        run_training(load_config(config, ["--train.epochs=1"]))
    assert Started.running == 0
