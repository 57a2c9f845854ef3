"""The learner's model: shared with the engine in lock step, a copy in asynchronous training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arpo.config import Config, ModelConfig, TrainConfig
from arpo.rollout.player import Player
from arpo.training.run import open_learner
from tiny_vlm import tiny_model, tiny_renderer


def learner_model(player_model: Any, **sections: Any) -> Any:
    player = Player(scheduler=None, renderer=tiny_renderer(), model=player_model)  # type: ignore[arg-type]
    return open_learner(player, replace(Config(), **sections)).weights().handle


def test_in_lock_step_engine_and_learner_share_one_module() -> None:
    model = tiny_model()
    assert learner_model(model) is model


@pytest.mark.parametrize("train", ["all", "language", "lora"])
def test_in_asynchronous_training_they_share_frozen_parameters_only(train: Any) -> None:
    model = tiny_model()
    settings = ModelConfig(train=train, lora_rank=4)
    learned = learner_model(model, model=settings, train=TrainConfig(max_staleness=1))
    own, theirs = dict(learned.named_parameters()), dict(model.named_parameters())
    assert own.keys() == theirs.keys()
    assert [name for name in own if (own[name] is theirs[name]) == own[name].requires_grad] == []
    assert any(".lora." in name for name in own) == (train == "lora")
