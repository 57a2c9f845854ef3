"""Training runs whose engine has a planted fault: the first batch that it touches has an alarm."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arpo.config import Config, ModelConfig
from arpo.learner.base import Batch
from arpo.reporting.display import Display
from arpo.storage.run_folder import RunFolder
from arpo.training.engine_check import disagreements, fresh_samples
from arpo.training.trainer import Trainer
from arpo.types import Completion, Group, Prompt, Sample, Sampling, Trajectory
from engine_faults import (
    Plant,
    lost_layer,
    no_adapters,
    no_pixels,
    old_weights,
    other_temperature,
    other_template,
    swapped_images,
)
from trained import lines
from trajectories import group, trajectory, turn
from verdicts import A, B, Scripted, small_config


def train(config: Config, plant: Plant) -> list[dict[str, Any]]:
    """The metrics of each batch of a run with this engine."""
    with closing(RunFolder(Path(config.run.dir))) as store:
        store.write_recipe(config)
        trainer = Trainer(config, store, Display())
        plant(trainer.run.scheduler.agent.engine)
        assert asyncio.run(trainer.train())
    return [line for line in lines(config, "metrics.jsonl") if line["step"]]


def alarms(batches: Sequence[dict[str, Any]]) -> list[bool]:
    return ["engine_alarm" in line for line in batches]


def desk_config(folder: Path, staleness: int, *words: str) -> Config:
    """Two batches of the shipped model; episodes of up to three steps. Without a script, all of them fail."""
    Scripted.play({})
    return small_config(
        folder,
        [A, B],
        "--model.path=base",
        "--rollout.max_steps=3",
        "--train.epochs=2",
        "--tasks.heldout=",
        "--eval.rollouts=0",
        f"--train.max_staleness={staleness}",
        *words,
    )


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("plant", [no_pixels, other_temperature, other_template, swapped_images, lost_layer])
def test_a_fault_is_found_in_the_first_batch_without_signal(
    tmp_path: Path, plant: Plant, staleness: int
) -> None:
    batches = train(desk_config(tmp_path, staleness), plant)
    assert all(line["without_signal"] == 2 for line in batches)
    assert alarms(batches) == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("plant", [no_pixels, other_temperature, other_template, swapped_images, lost_layer])
def test_a_fault_is_found_in_bfloat16(tmp_path: Path, plant: Plant) -> None:
    assert alarms(train(desk_config(tmp_path, 0, "--model.dtype=bfloat16"), plant)) == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize(
    ("plant", "words"),
    [(old_weights, ["--optim.lr=1e-3"]), (no_adapters, ["--optim.lr=1e-2", "--model.train=lora"])],
)
def test_a_fault_of_the_weights_is_found_once_they_have_changed(
    tmp_path: Path, plant: Plant, words: list[str], staleness: int
) -> None:
    config = desk_config(tmp_path, staleness, "--rollout.temperature=2", "--optim.warmup_updates=0", *words)
    Scripted.play({A: [0, 1] * 8, B: [1, 0] * 8})
    assert alarms(train(config, plant)) == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_sound_engine_is_compared_in_every_batch_and_raises_no_alarm(
    tmp_path: Path, staleness: int
) -> None:
    batches = train(desk_config(tmp_path, staleness, "--train.epochs=4"), lambda engine: None)
    assert not any(alarms(batches))
    assert all(line["engine_tokens"] and line["engine_kl"] < 1e-6 for line in batches)


@pytest.mark.slow
def test_a_sound_engine_raises_no_alarm_in_bfloat16(tmp_path: Path) -> None:
    batches = train(desk_config(tmp_path, 0, "--model.dtype=bfloat16"), lambda engine: None)
    assert not any(alarms(batches))
    assert all(line["engine_kl"] < 0.005 * line["engine_surprise"] for line in batches)


VERSION = 3


def episode_of(version: int, tokens: int) -> Trajectory:
    """Two answers with so many tokens each."""
    sampled = range(5, 5 + tokens)
    first = turn((1, 2), sampled, restart=True, version=version)
    return trajectory(0.0, first, turn((3,), sampled, version=version))


def compared(played: Sequence[Group], engine: Any) -> list[Sample]:
    batch = Batch(updates=((),))
    return asyncio.run(fresh_samples(played, batch, VERSION, engine, Config()))


class Answering:
    """An engine that answers with token 9, or not at all."""

    def __init__(self, version: int = VERSION, *, fails: bool = False) -> None:
        self.version, self.fails = version, fails
        self.prompts: list[Prompt] = []

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        self.prompts.append(prompt)
        if self.fails:
            raise OSError("the server is gone")
        return Completion(token_ids=(9,), logprobs=(-0.25,), text="", finish="stop", versions=(self.version,))

    async def release(self, episode_id: str) -> None: ...


def test_fresh_episodes_are_compared_until_there_are_enough_tokens() -> None:
    played = [group(*[episode_of(VERSION, 40)] * 2, index=index) for index in range(3)]
    engine = Answering()
    samples = compared(played, engine)
    assert [len(sample.behaviour_logprobs) for sample in samples] == [80, 80]
    assert not engine.prompts


def test_prompts_of_stale_episodes_are_answered_again() -> None:
    played = [group(episode_of(VERSION - 1, 2), episode_of(VERSION, 4))]
    engine = Answering()
    fresh, answered = compared(played, engine)
    assert len(fresh.behaviour_logprobs) == 8
    [prompt] = engine.prompts
    assert prompt.token_ids == (1, 2, 5, 6, 3)
    assert answered.token_ids == (*prompt.token_ids, 9)
    assert bytes(answered.mask) == b"\0\0\0\0\0\1" and answered.behaviour_logprobs == (-0.25,)


@pytest.mark.parametrize("engine", [Answering(VERSION - 1), Answering(fails=True)])
def test_an_answer_of_other_weights_or_none_compares_nothing(engine: Answering) -> None:
    assert compared([group(*[episode_of(VERSION - 1, 2)] * 2)], engine) == []
    assert len(engine.prompts) == 2


@pytest.mark.parametrize("found", [math.nan, math.inf, 1.0])
def test_thresholds(found: float) -> None:
    exact, rounded = Config(), replace(Config(), model=ModelConfig(dtype="bfloat16"))
    assert disagreements({"engine_kl": found, "stale_kl": 0.4}, rounded)
    assert disagreements({"stale_kl": found}, exact)
    assert disagreements({"engine_kl": 0.001}, exact) and not disagreements({"engine_kl": 0.001}, rounded)
    near, far = {"engine_kl": 0.001, "engine_surprise": 0.1}, {"engine_kl": 0.003, "engine_surprise": 0.1}
    assert disagreements(far, rounded) == ["engine_kl is 0.003, above train.engine_kl_alarm = 0.002"]
    assert disagreements(near, rounded) == []
    assert disagreements({"engine_kl": 0.053, "engine_surprise": 4.1}, rounded) == []  # rounding behind vLLM
    assert not disagreements({"engine_tokens": 0.0}, exact)
