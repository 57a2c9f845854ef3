"""A model of each other family plays on Desk, learns, and plays again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from arpo.learner.base import Batch
from arpo.learner.local import LocalLearner
from arpo.models.families import VisionLanguageModel
from arpo.rollout.player import open_player
from arpo.tasks.lists import load_tasks
from arpo.types import Group
from tiny_vlm import save_folder, tiny_qwen2, tiny_qwen3
from tools.pretrain.tokenizer import desk_tokenizer
from trajectories import all_updates
from verdicts import A, Scripted, small_config


@pytest.mark.slow
@pytest.mark.parametrize("tiny", [tiny_qwen2, tiny_qwen3])
def test_a_model_plays_on_desk_and_learns(tiny: Callable[..., VisionLanguageModel], tmp_path: Path) -> None:
    tokenizer = desk_tokenizer()
    folder = save_folder(tiny(stock=True, tokenizer=tokenizer), tmp_path / "model", tokenizer)
    config = small_config(
        tmp_path,
        [A],
        f"--model.path={folder}",
        "--model.dialect=ui_tars_1_5",  # the prompts of others need a package
        "--rollout.max_answer_tokens=24",
        "--optim.warmup_updates=0",
    )
    player = open_player(config)
    learner = LocalLearner(player.model, player.token_renderer, config)
    before = {name: p.detach().clone() for name, p in player.model.named_parameters()}
    [task] = load_tasks(config.tasks.train)

    async def play() -> Group:
        Scripted.play({A: [1, 0]})
        [group] = await player.scheduler.run("same", [(0, task)], lambda *_: None)
        assert not group.failures and len(group.trajectories) == 2
        return group

    async def play_and_learn() -> tuple[Group, dict[str, float], Group]:
        first = await play()
        updates = all_updates([first], config.loss, tasks_per_update=1, token_budget=24)
        metrics = learner.train(Batch(updates=updates))
        await player.scheduler.agent.engine.load(learner.weights())
        return first, dict(metrics), await play()

    first, metrics, second = asyncio.run(play_and_learn())
    assert metrics["tokens"] == sum(trajectory.sampled_tokens for trajectory in first.trajectories) > 0
    assert metrics["logprob_gap"] < 1e-5
    assert metrics["updates"] == 1 and metrics["skipped"] == 0
    for name, parameter in player.model.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert second.trajectories[0].turns[0].completion.policy_version == 1
    answers = [group.trajectories[0].turns[0].completion for group in (first, second)]
    assert answers[0].logprobs[0] != answers[1].logprobs[0]
