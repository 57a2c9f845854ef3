"""Shares of time with a clock that the test sets."""

import asyncio
from contextlib import suppress

from arpo.actions import Action
from arpo.config import EnvConfig, RolloutConfig
from arpo.dialects.ui_tars import UI_TARS_1_5
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.errors import EnvTimeout
from arpo.rollout.activity import Activity, EpisodeCalls
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import Scheduler
from arpo.testing import FakeEnv, task
from arpo.types import Observation, Prompt, Sampling, StepResult, Task
from players import DONE, RENDERER, TEMPLATE, WAIT, scripted


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_shares_of_the_time_of_all_environments() -> None:
    """Two environments in 10 s: one starts (4 s) and waits for the engine (6 s), one steps (5 s)."""
    clock = Clock()
    activity = Activity(clock)
    with activity("start"), activity("step"):
        clock.now = 4
    with activity("engine"):
        with activity("step"):
            clock.now = 5
        clock.now = 10
    assert activity.shares(2) == {
        "env_start": 0.2,
        "env_step": 0.25,
        "env_evaluate": 0.0,
        "env_engine": 0.3,
        "env_idle": 0.25,
        "env_lost": 0.0,
        "engine_busy": 0.6,
    }


def test_an_activity_across_two_batches_counts_in_both() -> None:
    clock = Clock()
    activity = Activity(clock)
    with activity("evaluate"):
        clock.now = 3
        assert activity.shares(1)["env_evaluate"] == 1.0
        clock.now = 4
    clock.now = 7
    assert activity.shares(1)["env_evaluate"] == 0.25


def test_the_time_of_an_attempt_that_fails_is_lost() -> None:
    """Two environments in 10 s: one attempt fails after 4 s, another is played to its end."""
    clock = Clock()
    activity = Activity(clock)
    with suppress(EnvTimeout), activity.episode("failed", "") as measure:
        with measure("start"):
            clock.now = 3
        with measure("step"):
            clock.now = 4
            raise EnvTimeout("step", "late")
    with activity.episode("played", "") as measure, measure("start"):
        clock.now = 10
    assert activity.shares(2)["env_lost"] == 0.2
    clock.now = 20
    assert activity.shares(2)["env_lost"] == 0.0


def test_a_failed_call_ends_its_activity() -> None:
    clock = Clock()
    activity = Activity(clock)
    try:
        with activity("step"):
            clock.now = 1
            raise RuntimeError
    except RuntimeError:
        clock.now = 4
    assert activity.shares(1)["env_step"] == 0.25


def test_without_time_there_are_no_shares() -> None:
    assert Activity(Clock()).shares(4) == {}


def test_the_scheduler_measures_every_call_of_an_episode() -> None:
    """Start 8 s, two answers of 2 s, two steps of 1 s, evaluation 4 s: 18 s with one environment."""
    clock = Clock()

    class Slow(FakeEnv):
        async def start(self, task: Task) -> Observation:
            clock.now += 8
            return await super().start(task)

        async def step(self, actions: tuple[Action, ...]) -> StepResult:
            clock.now += 1
            return await super().step(actions)

        async def evaluate(self) -> float:
            clock.now += 4
            return await super().evaluate()

    def answer(prompt: Prompt, sampling: Sampling) -> str:
        clock.now += 2
        return DONE if len(prompt.images) == 2 else WAIT

    agent = Agent(engine=scripted(answer), renderer=RENDERER, template=TEMPLATE, dialect=UI_TARS_1_5)
    scheduler = Scheduler(
        pool=EnvPool(LocalEnvs(Slow, 1), EnvConfig(width=56, height=56)),
        agent=agent,
        settings=RolloutConfig(group_size=2, max_answer_tokens=99),
        seed=0,
        activity=Activity(clock),
    )
    asyncio.run(scheduler.episode(task("t"), "e"))
    assert {name: round(18 * share) for name, share in scheduler.activity.shares(1).items()} == {
        "env_start": 8,
        "env_step": 2,
        "env_evaluate": 4,
        "env_engine": 4,
        "env_idle": 0,
        "env_lost": 0,
        "engine_busy": 4,
    }


def test_the_calls_of_an_attempt_are_reported_with_their_times() -> None:
    """Two episodes overlap; the second one fails in its step."""
    clock = Clock()
    activity = Activity(clock)
    reported: list[EpisodeCalls] = []
    activity.report = reported.append
    with activity.episode("one", "") as measure:
        with measure("start"):
            clock.now = 3
        with suppress(EnvTimeout), activity.episode("two", "http://a:8700") as other:
            with other("engine"):
                clock.now = 5
            with other("step"):
                clock.now = 9
                raise EnvTimeout("step", "no answer within 4 s")
        with measure("evaluate"):
            clock.now = 10
    assert reported == [
        EpisodeCalls(
            episode_id="two",
            host="http://a:8700",
            fault="EnvTimeout",
            calls=(("engine", 3, 2), ("step", 5, 4)),
        ),
        EpisodeCalls(episode_id="one", host="", fault="", calls=(("start", 0, 3), ("evaluate", 9, 1))),
    ]
    assert activity.shares(1)["env_step"] == 0.4
