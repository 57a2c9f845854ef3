import asyncio

import pytest

from arpo.config import EnvConfig
from arpo.envs.pool import EnvPool
from arpo.errors import EngineError
from arpo.testing import FakeEnv, failing, hanging, lying, screenshot, task
from arpo.types import Failure, Observation, Screenshot, StepResult, StopReason, Trajectory

TASK = task("t")


def trajectory(score):
    return Trajectory(
        episode_id="e",
        task_id="t",
        turns=(),
        final=screenshot(0),
        score=score,
        malformed=False,
        stop=StopReason.FINISHED,
    )


async def episode(env):
    await env.start(TASK)
    await env.step(())
    return trajectory(await env.evaluate())


def config(**changes):
    return EnvConfig(**{"attempts": 1, "quarantine_after": 99, "parallel": 2, **changes})


class Made:
    """A factory that remembers its environments."""

    def __init__(self, **arguments):
        self.envs = []
        self.arguments = arguments

    def __call__(self):
        self.envs.append(FakeEnv(**self.arguments))
        return self.envs[-1]


def test_a_good_episode_is_handed_through_and_its_environment_closed():
    made = Made(score=lambda actions: 0.25)
    pool = EnvPool(made, config())
    outcome = asyncio.run(pool.run(TASK, "e", episode))
    assert isinstance(outcome, Trajectory)
    assert outcome.score == 0.25
    assert made.envs[0].calls == ["start", "step", "evaluate", "close"]
    assert not pool.faults


@pytest.mark.parametrize("at", ["start", "step", "evaluate"])
def test_a_fault_is_retried_in_a_fresh_environment(at):
    made = Made()
    pool = EnvPool(failing(made, at, times=2), config(attempts=3))
    assert isinstance(asyncio.run(pool.run(TASK, "e", episode)), Trajectory)
    assert len(made.envs) == 3
    assert all(env.calls[-1] == "close" for env in made.envs)
    assert pool.faults == {f"{at}:EnvError": 2}


def test_after_the_last_attempt_it_is_a_failure():
    pool = EnvPool(failing(FakeEnv, "step", times=99), config(attempts=3))
    assert asyncio.run(pool.run(TASK, "e7", episode)) == Failure(
        episode_id="e7",
        task_id="t",
        kind="EnvError",
        where="step",
        message="RuntimeError: chaos at step",
        attempts=3,
    )


@pytest.mark.parametrize("at", ["start", "step", "evaluate"])
def test_an_environment_that_hangs_is_late(at):
    short = config(start_seconds=0.01, step_seconds=0.01, evaluate_seconds=0.01)
    pool = EnvPool(hanging(FakeEnv, at, times=1), short)
    outcome = asyncio.run(pool.run(TASK, "e", episode))
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.where) == ("EnvTimeout", at)


@pytest.mark.parametrize("verdict", [None, float("nan"), float("inf"), 7, -0.1, "1.0"])
def test_a_verdict_that_is_none_is_a_fault(verdict):
    pool = EnvPool(lying(FakeEnv, verdict), config())
    outcome = asyncio.run(pool.run(TASK, "e", episode))
    assert isinstance(outcome, Failure)
    assert outcome.where == "evaluate"
    assert repr(verdict) in outcome.message


def test_a_torn_picture_is_the_environments_fault():
    """Found later, in a prefill, it would be a fault of all who share that prefill."""

    class Torn(FakeEnv):
        async def step(self, actions):
            whole = (await super().step(actions)).observation.screenshot.png
            return StepResult(observation=Observation(screenshot=Screenshot.of(whole[:-20])))

    outcome = asyncio.run(EnvPool(Torn, config()).run(TASK, "e", episode))
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.where, outcome.message) == (
        "EnvError",
        "step",
        "the screenshot is a damaged PNG",
    )


def test_closing_may_fail_or_hang_without_harm():
    for broken in (failing, hanging):
        pool = EnvPool(broken(FakeEnv, "close", times=1), config(step_seconds=0.01))
        assert isinstance(asyncio.run(pool.run(TASK, "e", episode)), Trajectory)
        assert sum(pool.faults.values()) == 1
        assert all(name.startswith("close:") for name in pool.faults)


def test_a_factory_that_raises_is_a_fault():
    def factory():
        raise OSError("no display")

    outcome = asyncio.run(EnvPool(factory, config()).run(TASK, "e", episode))
    assert isinstance(outcome, Failure)
    assert outcome.message == "OSError: no display"


def test_only_so_many_at_once():
    alive, most = 0, 0

    async def counted(env):
        nonlocal alive, most
        alive, most = alive + 1, max(most, alive + 1)
        await asyncio.sleep(0.001)
        alive -= 1
        return trajectory(0.0)

    async def main():
        pool = EnvPool(FakeEnv, config(parallel=3))
        await asyncio.gather(*(pool.run(TASK, str(number), counted) for number in range(10)))

    asyncio.run(main())
    assert most == 3


def test_a_task_that_keeps_failing_is_set_aside():
    made = Made()
    pool = EnvPool(failing(made, "start", times=99), config(quarantine_after=2))

    async def main():
        return [await pool.run(TASK, str(number), episode) for number in range(4)]

    kinds = [(outcome.kind, outcome.attempts) for outcome in asyncio.run(main())]
    assert kinds == [("EnvError", 1), ("EnvError", 1), ("Quarantined", 0), ("Quarantined", 0)]
    assert len(made.envs) == 2
    assert pool.quarantined == {"t"}


def test_a_success_ends_the_row_of_failures():
    pool = EnvPool(failing(FakeEnv, "start", times=1), config(quarantine_after=2))

    async def main():
        for number in range(2):
            await pool.run(TASK, str(number), episode)
        return pool

    assert not asyncio.run(main()).quarantined
    assert not pool._failed_in_a_row


def test_an_engine_at_fault_sets_no_task_aside():
    async def dead(env):
        raise EngineError("generate", "gone")

    pool = EnvPool(FakeEnv, config(quarantine_after=1))
    outcome = asyncio.run(pool.run(TASK, "e", dead))
    assert isinstance(outcome, Failure)
    assert outcome.kind == "EngineError"
    assert not pool.quarantined


def test_a_cancelled_episode_still_closes_its_environment():
    made = Made()

    async def endless(env):
        await asyncio.Event().wait()

    async def main():
        pool = EnvPool(made, config())
        running = asyncio.create_task(pool.run(TASK, "e", endless))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert made.envs[0].calls == ["close"]


def test_an_error_of_our_own_is_not_caught():
    async def wrong(env):
        raise AssertionError("ours")

    with pytest.raises(AssertionError, match="ours"):
        asyncio.run(EnvPool(FakeEnv, config()).run(TASK, "e", wrong))
