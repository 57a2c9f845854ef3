"""The simulated cluster: durations that can be computed by hand, with the real trainer, pool and engine."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from cluster_simulation import begins, compare
from simulation.clock import Clock, run_simulated
from simulation.cluster import Cluster, Parts, run_real, settings, simulate
from simulation.replica import EPISODE, EpisodeOf
from simulation.roles import Barrier, SimulatedLearner
from simulation.service_times import ServiceTimes

import constant_times
from arpo.engines.vllm import VllmEngine
from arpo.learner.base import Batch
from arpo.testing import screenshot
from arpo.types import Prompt, Sample, Sampling

TIMES = replace(constant_times.TIMES, learning_scale=0.0)
SMALL = Cluster(
    environments=4, replicas=1, learner_gpus=1, groups=2, group_size=2, updates=1, batches=2, times=TIMES
)


def test_a_lock_step_batch_takes_its_episodes_and_the_new_weights() -> None:
    result = simulate(SMALL)
    assert result.seconds == pytest.approx(2 * 25)
    assert result.per_hour == pytest.approx(4 * 3600 / 25)
    assert (result.environments, result.engine) == pytest.approx((23 / 25, 2 / 25))
    assert result.queue == pytest.approx(4 * 2 / 25)  # four requests for 2 s
    assert (result.gpu_hours, result.env_hours) == pytest.approx((1000 * 2 / 576, 1000 * 4 / 576))
    assert result.bottleneck == "environments"


def test_half_of_the_environments_take_twice_as_long() -> None:
    assert simulate(replace(SMALL, environments=2)).seconds == pytest.approx(2 * 48)


def test_shared_gpus_sleep_while_the_learner_works() -> None:
    """3 s to sleep and 3 s to wake per batch, and half of the GPUs."""
    result = simulate(replace(SMALL, shared=True))
    assert result.seconds == pytest.approx(2 * 31)
    assert result.cluster.gpus == 1


def test_asynchronous_rollouts_continue_during_learning() -> None:
    """A learner as slow as the rollouts halves the rate of lock step."""
    slow = replace(SMALL, times=replace(TIMES, learning_scale=4.0), batches=6)  # 4.7 s per episode
    lock_step, asynchronous = simulate(slow), simulate(replace(slow, max_staleness=2))
    assert lock_step.learner > 0 and asynchronous.learner > lock_step.learner
    assert 1.3 < asynchronous.per_hour / lock_step.per_hour <= 2
    assert asynchronous.environments > lock_step.environments


@pytest.mark.slow
def test_slow_tasks_delay_their_own_batch_only() -> None:
    """Every tenth task takes four times as long. No episode is played in vain."""
    lock_step = Cluster(
        environments=32, replicas=8, learner_gpus=8, groups=16, group_size=2, updates=1, batches=8,
        times=constant_times.TIMES, slow=4.0,
    )  # fmt: skip
    waiting, asynchronous = simulate(lock_step), simulate(replace(lock_step, max_staleness=1))
    assert asynchronous.per_hour > 1.6 * waiting.per_hour
    assert asynchronous.lost == 0


@pytest.mark.slow
def test_the_simulation_repeats_itself() -> None:
    cluster = replace(SMALL, max_staleness=1, times=replace(ServiceTimes(), hangs=0.2))
    assert simulate(cluster) == simulate(cluster)


@pytest.mark.slow
def test_a_run_with_the_real_clock_takes_at_least_its_service_times() -> None:
    """A second per batch; longer on a busy machine."""
    real = run_real(replace(SMALL, batches=1), speed=25.0)
    assert real.seconds >= 25 * 0.99
    assert (real.episodes, real.failures) == (4, 0)


def test_coupled_environments_wait_for_the_slowest_at_every_call() -> None:
    times = replace(TIMES, answers=(4, 4), step_sigma=0.8)
    coupled, free = (simulate(replace(SMALL, times=times, coupled=one)) for one in (True, False))
    assert coupled.seconds > free.seconds  # the sum of the longest steps, not the longest sum
    assert coupled.environments < free.environments


def test_a_barrier_opens_when_all_members_wait_or_leave() -> None:
    async def main() -> float:
        barrier = Barrier()
        for _ in range(3):
            barrier.join()

        async def leave() -> None:
            await asyncio.sleep(7)
            barrier.leave()

        await asyncio.gather(barrier.wait(), barrier.wait(), leave())
        return asyncio.get_running_loop().time()

    assert run_simulated(main()) == 7.0


def sample(screenshots: int) -> Sample:
    return Sample(
        token_ids=(1,),
        mask=(True,),
        images=(screenshot(0),) * screenshots,
        behaviour_logprobs=(0.0,),
        advantage=1.0,
        weight=1.0,
        replayed=False,
    )


def test_the_longest_samples_of_an_update_are_spread_first() -> None:
    """8.1, 2.3, 2.3, 2.3 and 0.8 s on two GPUs: 8.1 and 7.7."""

    async def main() -> float:
        clock = Clock()
        clock.start()
        learner = SimulatedLearner(clock, ServiceTimes(), gpus=2)
        await learner.train(Batch(updates=(tuple(map(sample, (5, 1, 15, 5, 5))),)))
        return clock.now()

    assert run_simulated(main()) == pytest.approx(8.1 / 0.95)


@pytest.mark.parametrize(("replicas", "waves"), [(1, 1), (4, 4), (8, 4), (10, 4)])
def test_a_rolling_update_takes_four_loads_whatever_the_number_of_replicas(
    replicas: int, waves: int, tmp_path: Path
) -> None:
    async def main() -> tuple[float, float]:
        cluster = replace(SMALL, replicas=replicas, times=replace(TIMES, decode_step=1.0))
        config = settings(cluster, tmp_path, 1.0)
        clock = Clock()
        clock.start()
        parts = Parts(cluster, config, clock, tmp_path)
        with parts.opened(shared=False):
            engine = VllmEngine(config, parts.renderer, "", learning=True)
            await engine.start()
        began = clock.now()
        await engine.load(await parts.publisher.publish())
        idle = clock.now() - began - 1  # without writing
        EPISODE.set(EpisodeOf(random=Random(0), answers=1))
        prompt = Prompt(episode_id="one", token_ids=(1, 2), images=(), messages=())
        running = asyncio.create_task(
            engine.generate(prompt, Sampling(temperature=1, max_tokens=500, seed=0))
        )
        await parts.learner.train(Batch(updates=()))
        await clock.sleep(5)
        began = clock.now()
        await engine.load(await parts.publisher.publish())
        rolling = clock.now() - began - 1
        await running
        await engine.close()
        return idle, rolling

    assert run_simulated(main()) == pytest.approx((1.0, float(waves)))


@pytest.mark.slow
def test_the_command_compares_lock_step_with_asynchronous_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = argparse.Namespace(
        gpus=2, environments=8, groups=1, staleness=[1], batches=1, slow=1.0, gpu_price=2.0, env_price=0.5
    )
    found = compare(options)
    lock_step, asynchronous = found["lock step"], found["S = 1"]
    ratio = asynchronous["episodes_per_hour"] / lock_step["episodes_per_hour"]
    assert found["ratio"] == pytest.approx(ratio, rel=0.02)
    expected = 2.0 * lock_step["gpu_hours"] + 0.5 * lock_step["environment_hours"]
    assert lock_step["cost"] == pytest.approx(expected, abs=0.02)
    assert "S = 1, 1 + 1 GPUs" in capsys.readouterr().err


def test_a_bottleneck_begins_at_its_smallest_size() -> None:
    few = simulate(SMALL)
    slow = replace(few, waiting=2.0)  # a whole batch of two groups waits
    assert begins({8: slow, 2: few, 4: few, 16: slow}) == {"environments": 2, "learner cycle": 8}
