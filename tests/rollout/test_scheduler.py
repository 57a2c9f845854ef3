import asyncio
from dataclasses import replace

import pytest

from arpo.config import EnvConfig, RolloutConfig
from arpo.dialects.ui_tars import UI_TARS_1_5
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.errors import UserError
from arpo.reporting.display import describe_failure
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import Scheduler
from arpo.testing import FakeEnv, failing, task
from arpo.types import Failure, Trajectory
from env_hosts import FAKE
from players import DONE, RENDERER, TEMPLATE, WAIT, scripted

SETTINGS = RolloutConfig(group_size=3, max_steps=4, max_images=4, max_answer_tokens=40)
TASKS = [(1, task("b")), (0, task("a")), (2, task("c"))]


def scheduler(engine, factory=FakeEnv, attempts=1, parallel=4):
    config = EnvConfig(name=FAKE, parallel=parallel, attempts=attempts, quarantine_after=99)
    pool = EnvPool(LocalEnvs(factory, parallel), config)
    agent = Agent(engine=engine, renderer=RENDERER, template=TEMPLATE, dialect=UI_TARS_1_5)
    return Scheduler(pool=pool, agent=agent, settings=SETTINGS, seed=0)


def by_the_draw(prompt, sampling):
    return DONE if sampling.seed % 3 == 0 else WAIT


def ignore(index, outcome):
    pass


def test_groups_are_by_index_and_episodes_by_number():
    heard = []
    plan = scheduler(scripted([WAIT, DONE]))
    groups = asyncio.run(
        plan.run("7", TASKS, lambda index, outcome: heard.append((index, outcome.episode_id)))
    )
    assert [(group.index, group.task_id) for group in groups] == [(0, "a"), (1, "b"), (2, "c")]
    assert [t.episode_id for t in groups[1].trajectories] == ["7-1-0", "7-1-1", "7-1-2"]
    assert sorted(heard) == [(index, f"7-{index}-{number}") for index in range(3) for number in range(3)]


def test_the_same_batch_is_the_same_however_many_run_at_once():
    def batch(parallel):
        return asyncio.run(scheduler(scripted(by_the_draw), parallel=parallel).run("0", TASKS, ignore))

    assert batch(1) == batch(4) == batch(9)
    assert len({len(t.turns) for group in batch(9) for t in group.trajectories}) > 1


def test_failed_episodes_leave_a_smaller_group():
    plan = scheduler(scripted([DONE]), failing(FakeEnv, "step", times=2))
    groups = asyncio.run(plan.run("0", TASKS, ignore))
    assert sum(len(group.failures) for group in groups) == 2
    assert all(len(group.trajectories) + len(group.failures) == 3 for group in groups)
    assert all(
        isinstance(failure, Failure) and failure.where == "step" for g in groups for failure in g.failures
    )


def test_a_retried_episode_is_the_one_that_would_have_been():
    calm = asyncio.run(scheduler(scripted(by_the_draw)).run("0", TASKS, ignore))
    chaos = scheduler(scripted(by_the_draw), failing(FakeEnv, "step", times=3), attempts=4)
    assert asyncio.run(chaos.run("0", TASKS, ignore)) == calm
    assert chaos.pool.faults == {"step:EnvError": 3}


def test_no_episode_waits_for_another():
    """One environment hangs until every other episode has ended."""
    others_done = asyncio.Event()
    ended = []

    class Slow(FakeEnv):
        async def start(self, task):
            if task.id == "a":
                await others_done.wait()
            return await super().start(task)

    def heard(index, outcome):
        ended.append(index)
        if len(ended) == 6:
            others_done.set()

    plan = scheduler(scripted([WAIT, DONE]), Slow)
    groups = asyncio.run(plan.run("0", TASKS, heard))
    assert ended[6:] == [0, 0, 0]
    assert all(isinstance(t, Trajectory) for group in groups for t in group.trajectories)


def test_cancelling_closes_every_environment():
    envs = []
    all_at_work = asyncio.Event()

    class Endless(FakeEnv):
        async def step(self, actions):
            envs.append(self)
            if len(envs) == 9:
                all_at_work.set()
            await asyncio.Event().wait()

    async def main():
        running = asyncio.create_task(
            scheduler(scripted([WAIT]), Endless, parallel=9).run("0", TASKS, ignore)
        )
        async with asyncio.timeout(5):
            await all_at_work.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(main()) == []
    assert [env.calls[-1] for env in envs] == ["close"] * 9


def test_a_prompt_that_does_not_fit_costs_its_own_task_alone():
    envs = []

    def make():
        envs.append(FakeEnv())
        return envs[-1]

    tasks = [(0, task("short")), (1, replace(task("long"), instruction="click " * 1000))]
    plan = scheduler(scripted([DONE]), make, attempts=3)
    plan = replace(plan, settings=replace(SETTINGS, max_context_tokens=1000))
    short, long = asyncio.run(plan.run("0", tasks, ignore))
    assert (len(short.trajectories), len(short.failures)) == (3, 0)
    assert [(failure.kind, failure.attempts) for failure in long.failures] == [("PromptTooLong", 1)] * 3
    assert describe_failure(long.failures[0]).startswith(
        "task long, generate: rollout.max_context_tokens = 1000 is too small: prompt and answer need "
    )
    assert len(envs) == 6  # a retry would show the same task
    assert plan.pool.state().failures == {"long": 3}  # counts towards quarantine


def test_a_users_mistake_comes_out_as_itself():
    def full(index, outcome):
        raise UserError("the disk is full")

    with pytest.raises(UserError, match="the disk is full"):
        asyncio.run(scheduler(scripted([DONE])).run("0", TASKS, full))
