"""One thread per operation: forks of this process compute, whatever threads it used before."""

from __future__ import annotations

import asyncio

import torch
from torch.nn.functional import linear

from arpo.models.cores import one_thread_per_operation, use_cores
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
