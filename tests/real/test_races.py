"""Two desktops on the same task at the same time, one solved and one left alone: never a wrong reward.

The verdict on this task is made of a file that is fetched from the guest into the cache.
"""

import asyncio

import pytest

from arpo.envs.task_files import load_tasks
from player import play
from solvers import own

NAME = "calc-total"


async def judged_together(hosts, solutions):
    (task,) = (task for task in load_tasks("desktop:train") if task.id == NAME)
    ready = asyncio.Barrier(len(solutions))

    async def episode(solution):
        async with hosts.lease() as env:
            try:
                begun = await env.start(task)
                await play(env, begun.screenshot, solution)
                await ready.wait()
                return await env.evaluate()
            finally:
                await env.close()

    async with asyncio.timeout(300):
        return await asyncio.gather(*map(episode, solutions))


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.full)])
def test_each_is_judged_by_what_it_did(rounds, hosts):
    pairs = [[own.SOLUTIONS[NAME], []], [[], own.SOLUTIONS[NAME]]]
    verdicts = [asyncio.run(judged_together(hosts, pairs[turn % 2])) for turn in range(rounds)]
    assert verdicts == [[1.0, 0.0], [0.0, 1.0]] * (rounds // 2)
