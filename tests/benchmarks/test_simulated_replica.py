"""The time of a simulated GPU: prompts one after the other, then all sequences together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest
from simulation.clock import Clock, Meter, run_simulated
from simulation.replica import EPISODE, AnswerTexts, EpisodeOf, Gpu, Request, Server
from simulation.service_times import ServiceTimes, learner_efficiency

from arpo.config.recipe import load_config
from arpo.engines.http_exchange import TransientError
from arpo.engines.vllm_client import UNCHANGED
from arpo.models.loading import load_renderer
from arpo.testing import screenshot

# A token of one sequence takes 1 s, of two sequences 1.1 s; 100 tokens are prefilled in 1 s.
TIMES = ServiceTimes(decode_step=0.9, decode_sequence=0.1, prefill_token=0.01, screenshot_tokens=100)


def request(prefill: float, tokens: float, prompt: int = 100) -> Request:
    done = asyncio.get_running_loop().create_future()
    return Request(prompt=prompt, prefill=prefill, tokens=tokens, done=done)


def simulated(test: Any) -> Any:
    async def main() -> Any:
        clock = Clock()
        clock.start()
        busy = Meter(clock)
        return await test(clock, Gpu(clock, TIMES, busy, Meter(clock)), busy)

    return run_simulated(main())


async def ended(clock: Clock, *work: Coroutine[Any, Any, None]) -> list[float]:
    """The times at which they end."""

    async def timed(one: Coroutine[Any, Any, None]) -> float:
        await one
        return round(clock.now(), 6)

    return await asyncio.gather(*map(timed, work))


def test_prompts_are_prefilled_first_and_sequences_share_the_decoding_steps() -> None:
    async def test(clock: Clock, gpu: Gpu, busy: Meter) -> Any:
        times = await ended(clock, gpu.run(request(1, 10)), gpu.run(request(1, 20)))
        await clock.sleep(100)
        return times, round(busy.total, 6)

    # 2 s of prefill, 10 tokens of both in 11 s, 10 tokens of the second one alone in 10 s
    assert simulated(test) == ([13.0, 23.0], 23.0)


def test_a_paused_gpu_does_nothing() -> None:
    async def test(clock: Clock, gpu: Gpu, busy: Meter) -> Any:
        async def pause() -> None:
            await clock.sleep(3)
            gpu.pause(True)
            await clock.sleep(7)
            gpu.pause(False)

        times = await ended(clock, gpu.run(request(1, 10)), pause())
        return times, round(busy.total, 6)

    assert simulated(test) == ([18.0, 10.0], 11.0)


def test_new_weights_prefill_running_answers_again() -> None:
    async def test(clock: Clock, gpu: Gpu, busy: Meter) -> Any:
        running = request(1, 10, prompt=200)

        async def update() -> None:
            await clock.sleep(5)  # 4 of 10 tokens are decoded
            gpu.restart("old")

        times = await ended(clock, gpu.run(running), update())
        return times, [(label, round(tokens, 6)) for label, tokens in running.spans], round(running.tokens, 6)

    assert simulated(test) == ([13.0, 5.0], [("old", 4.0)], 6.0)  # 5 s, 2 s of prefill, 6 tokens


def test_a_cancelled_request_frees_the_gpu() -> None:
    async def test(clock: Clock, gpu: Gpu, busy: Meter) -> Any:
        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await gpu.run(request(50, 10))

        return await ended(clock, give_up(), gpu.run(request(1, 10)))

    assert simulated(test) == [2.0, 13.0]


def server_of(clock: Clock, gpu: Gpu, times: ServiceTimes = TIMES) -> Server:
    renderer = load_renderer(load_config("desk", []).model)
    return Server(clock, times, AnswerTexts(renderer, screenshot(128), compact=True), gpu)


def prompt_of(screenshots: int) -> dict[str, Any]:
    return {"token_ids": [1], "content_parts": [{}] * screenshots, "sampling_params": {}}


def test_only_the_new_tokens_of_an_episode_are_prefilled_until_the_weights_change() -> None:
    async def test(clock: Clock, gpu: Gpu, busy: Meter) -> Any:
        server, episode = server_of(clock, gpu), EpisodeOf(random=Random(0), answers=2)
        EPISODE.set(episode)
        seconds = []
        for screenshots in (1, 2):
            began, before = clock.now(), episode.sampled
            answer = json.loads((await server.answer("/inference/v1/generate", prompt_of(screenshots)))())
            seconds.append(round(clock.now() - began - (episode.sampled - before), 6))
        await server.answer("/reset_prefix_cache", {})
        began, before = clock.now(), episode.sampled
        await server.answer("/inference/v1/generate", prompt_of(2))
        return seconds, round(clock.now() - began - (episode.sampled - before), 6), before, answer

    seconds, again, sampled, answer = simulated(test)
    assert seconds == [1.0, 1.0]  # one screenshot each
    assert again == 2.0 + sampled / 100  # two screenshots and all answers
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_killed_server_loses_its_requests_and_its_weights() -> None:
    async def test(clock: Clock, gpu: Gpu, busy: Meter) -> Any:
        server = server_of(clock, gpu)
        await server.answer("/update_weight_version", {"new_version": "seven"})
        EPISODE.set(EpisodeOf(random=Random(0), answers=2))
        calls = [("/inference/v1/generate", prompt_of(1)), ("/collective_rpc", {})]
        running = [asyncio.create_task(server.answer(*call)) for call in calls]
        await clock.sleep(2)
        server.kill(30)
        failed = await asyncio.gather(*running, return_exceptions=True)
        with pytest.raises(TransientError):
            await server.answer("/weight_info", {})
        await clock.sleep(30)
        return failed, busy.total, await server.answer("/weight_info", {})

    failed, used, weights = simulated(test)
    assert all(isinstance(error, TransientError) for error in failed)
    assert (used, weights) == (2.0, {"weight_version": UNCHANGED})


def test_a_full_cache_forgets_the_episode_that_was_not_used_for_the_longest_time() -> None:
    async def test(clock: Clock, gpu: Gpu, busy: Meter) -> Any:
        times = ServiceTimes(
            decode_step=1e-6, decode_sequence=0, prefill_token=0.01, screenshot_tokens=100, cache_tokens=700
        )
        server = server_of(clock, Gpu(clock, times, busy, Meter(clock)), times)
        episodes = [EpisodeOf(random=Random(number), answers=9) for number in range(3)]

        async def ask(number: int) -> float:
            EPISODE.set(episodes[number])
            began = clock.now()
            await server.answer("/inference/v1/generate", prompt_of(1))
            return round(clock.now() - began, 1)

        first = [await ask(number) for number in (0, 1, 2)]  # about 250 tokens each: 0 is forgotten
        return first, await ask(2), await ask(0), episodes[0].sampled

    first, kept, forgotten, _ = simulated(test)
    assert first == [1.0, 1.0, 1.0]
    assert kept == 0.0  # the prompt is in the cache
    assert forgotten > 2.0  # one screenshot and an answer of more than 100 tokens


@pytest.mark.parametrize(("screenshots", "seconds"), [(1, 0.8), (3, 1.55), (5, 2.3), (10, 5.2), (15, 8.1)])
def test_learning_is_interpolated_between_measured_lengths(screenshots: int, seconds: float) -> None:
    assert ServiceTimes().learn(screenshots) == seconds
    assert ServiceTimes(learning_scale=2).learn(screenshots) == 2 * seconds


def test_the_measured_engine_is_reproduced() -> None:
    """16 and 32 episodes of 15 answers of 150 tokens: 71 and 116 s of encoding, prefill and decoding."""
    times = ServiceTimes()
    for episodes, measured in ((16, 71), (32, 116)):
        prefill = episodes * 15 * 2850 * times.prefill_token
        assert prefill + 15 * 150 * times.decode(episodes) == pytest.approx(measured, rel=0.03)
    assert [learner_efficiency(gpus) for gpus in (1, 8, 9)] == [1.0, 0.95, 0.9]
