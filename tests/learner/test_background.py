"""The learner's thread: the event loop goes on, and errors, cancellation and Ctrl-C arrive."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from functools import partial
from random import Random
from typing import Any

import pytest
import torch

from arpo.config import Config, ModelConfig, OptimConfig, TrainConfig
from arpo.engines.base import Weights
from arpo.engines.in_process import InProcessEngine
from arpo.engines.slot_passes import SlotPasses
from arpo.interrupts import run_interruptibly
from arpo.learner.background import in_background
from arpo.learner.base import Batch
from arpo.learner.local import LocalLearner
from arpo.models.trainable import copy_trained, set_trainable
from arpo.types import Completion, Message, Sample
from tiny_vlm import first_prompt, sampling, screenshot, tiny_model, tiny_renderer

SECONDS = 30  # timeout of waits that end at once


def test_the_event_loop_goes_on_and_the_result_arrives() -> None:
    """The work ends only if the loop runs a callback meanwhile."""
    called = threading.Event()

    def work() -> str:
        assert threading.current_thread() is not threading.main_thread()
        assert called.wait(SECONDS), "the event loop is blocked"
        return "metrics"

    async def main() -> str:
        asyncio.get_running_loop().call_later(0, called.set)
        return await in_background(work)

    assert asyncio.run(main()) == "metrics"


def test_an_exception_of_the_learner_arrives() -> None:
    def work() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        asyncio.run(in_background(work))


def test_a_cancelled_caller_waits_for_the_thread() -> None:
    """Cancelled twice: both times before the work ends."""
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert may_end.wait(SECONDS)
        ended.set()
        raise RuntimeError("nobody reads this")

    async def main() -> None:
        task = asyncio.create_task(in_background(work))
        assert await asyncio.to_thread(began.wait, SECONDS)
        for _ in range(2):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


def test_ctrl_c_waits_for_the_thread() -> None:
    """The second Ctrl-C cancels the run: the update ends first."""
    stopped, ended = threading.Event(), threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)
        assert cancelled.wait(SECONDS)
        ended.set()

    cancelled = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(in_background(work), stop=stopped.set, on_cancel=cancelled.set)
    assert ended.is_set()


RENDERER = tiny_renderer()


def sample(seed: int) -> Sample:
    rendered = RENDERER.render([Message(role="user", text="open the file", screenshot=screenshot(seed))])
    sampled = tuple(Random(seed).randrange(4, 30) for _ in range(6))
    return Sample(
        token_ids=(*rendered.token_ids, *sampled), mask=(False,) * len(rendered.token_ids) + (True,) * 6,
        images=rendered.images, behaviour_logprobs=(-5.0,) * 6, advantage=1.0, weight=0.1, replayed=False,
    )  # fmt: skip


BATCH = Batch(updates=tuple((sample(2 * index), sample(2 * index + 1)) for index in range(8)))


@pytest.mark.slow
@pytest.mark.parametrize("train", ["all", "lora"])
def test_engine_and_learner_at_the_same_time_give_the_results_of_each_alone(train: Any) -> None:
    """They share frozen weights, and the caches of screenshots and of their layouts."""
    config = Config(
        model=ModelConfig(train=train, lora_rank=4),
        train=TrainConfig(max_staleness=1),
        optim=OptimConfig(lr=1e-2),
    )

    def parts() -> tuple[InProcessEngine, LocalLearner]:
        model: Any = tiny_model()
        set_trainable(model, config.model, 0)
        passes = SlotPasses(model, RENDERER.pad_id, 1)
        learner = LocalLearner(copy_trained(model), RENDERER, config)
        return InProcessEngine(model, RENDERER, passes, in_flight=True), learner

    async def ask(engine: InProcessEngine, number: int) -> Completion:
        prompt = first_prompt(RENDERER, "e", screenshot(number % 20, 56 + 28 * (number % 3)))
        completion = await engine.generate(prompt, sampling(number))
        await engine.release("e")
        return completion

    async def at_once() -> tuple[list[Completion], int]:
        learning = asyncio.create_task(in_background(partial(learner.train, BATCH)))
        answers = [await ask(engine, 0)]
        while not learning.done():
            answers.append(await ask(engine, len(answers)))
        await learning
        during = len(answers)
        await engine.load(learner.weights())
        return [*answers, await ask(engine, 0)], during

    engine, learner = parts()
    answers, during = asyncio.run(at_once())
    assert during > 1
    assert [answer.policy_version for answer in answers] == [0] * during + [1]

    quiet_engine, quiet_learner = parts()
    expected = [asyncio.run(ask(quiet_engine, number)) for number in range(during)]
    quiet_learner.train(BATCH)
    asyncio.run(quiet_engine.load(Weights(version=1, handle=quiet_learner.weights().handle)))
    assert answers == [*expected, asyncio.run(ask(quiet_engine, 0))]
    pairs = zip(*(one.weights().handle.parameters() for one in (learner, quiet_learner)), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
