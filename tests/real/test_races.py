"""Two desktops run the same task at the same time; one is solved. Each gets its own score.

The evaluator of this task copies a file from the guest into the cache.
"""

import asyncio

import pytest

from arpo.tasks.lists import load_tasks
from player import play
from solvers import own

NAME = "calc-total"


async def evaluated_together(hosts, solutions):
    (task,) = (task for task in load_tasks("osworld:train") if task.id == NAME)
    ready = asyncio.Barrier(len(solutions))

    async def episode(solution):
        async with hosts.lease() as env:
            try:
                first = await env.start(task)
                await play(env, first.screenshot, solution)
                await ready.wait()
                return await env.evaluate()
            finally:
                await env.close()

    async with asyncio.timeout(300):
        return await asyncio.gather(*map(episode, solutions))


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.full)])
def test_each_desktop_gets_its_own_score(rounds, hosts):
    pairs = [[own.SOLUTIONS[NAME], []], [[], own.SOLUTIONS[NAME]]]
    scores = [asyncio.run(evaluated_together(hosts, pairs[number % 2])) for number in range(rounds)]
    assert scores == [[1.0, 0.0], [0.0, 1.0]] * (rounds // 2)
