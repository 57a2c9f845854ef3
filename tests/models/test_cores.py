"""One thread per operation: forks of this process compute, whatever threads it used before."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
import torch
from torch.nn.functional import linear

from arpo.models.cores import map_over_cores, one_thread_per_operation, use_cores
from arpo.processes.fork import Fork, Send


def test_a_fork_computes_after_this_process_has_used_several_threads() -> None:
    """On ARM, with oneDNN, it waits for ever."""
    before = torch.get_num_threads()
    states, weights = torch.randn(2, 512, 512, generator=torch.Generator().manual_seed(0))

    def work(send: Send) -> None:
        send(linear(states, weights).numpy().tobytes())

    async def first_message(fork: Fork) -> bytes:
        async with asyncio.timeout(60):
            return await anext(aiter(fork.messages()))

    try:
        use_cores(2)
        expected = linear(states, weights)
        with (
            one_thread_per_operation(),
            Fork(work) as fork,
        ):
            message = asyncio.run(first_message(fork))
    finally:
        torch.set_num_threads(before)
    actual = torch.frombuffer(bytearray(message), dtype=torch.float32).reshape(512, 512)
    torch.testing.assert_close(actual, expected)


def test_results_wait_for_their_caller_and_an_early_end_waits_for_running_calls() -> None:
    """They may be large: at most two per core are computed ahead."""
    before, started, ended = torch.get_num_threads(), Counter[str](), Counter[str]()

    def call(number: int) -> int:
        started["calls"] += 1
        time.sleep(0.01)
        ended["calls"] += 1
        return number

    try:
        torch.set_num_threads(2)
        assert list(map_over_cores(call, range(9))) == list(range(9))
        started.clear()
        ended.clear()
        results = map_over_cores(call, range(100))
        assert [next(results), next(results)] == [0, 1]
        time.sleep(0.1)
        assert started["calls"] <= 2 + 4
        results.close()
        assert started["calls"] == ended["calls"] <= 2 + 4
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_error_of_a_call_is_raised_and_ends_the_others() -> None:
    before = torch.get_num_threads()

    def call(number: int) -> float:
        return 1 / (2 - number)

    try:
        torch.set_num_threads(2)
        with pytest.raises(ZeroDivisionError):
            list(map_over_cores(call, range(100)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
