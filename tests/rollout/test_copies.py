"""A batch played in copies of this process is the same, also if a copy fails, dies or is interrupted."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from arpo.config import EnvConfig, RolloutConfig
from arpo.dialects.ui_tars import UI_TARS_1_5
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.models.feature_cache import FeatureCache
from arpo.rollout import copies
from arpo.rollout.activity import EpisodeCalls
from arpo.rollout.agent import Agent
from arpo.rollout.copies import Copies
from arpo.rollout.player import open_player
from arpo.rollout.scheduler import Scheduler
from arpo.tasks.lists import load_tasks
from arpo.testing import FakeEnv, task
from arpo.types import Completion, Group, Observation, Prompt, Sampling, Screenshot, Task
from env_hosts import FAKE
from players import DONE, RENDERER, TEMPLATE, WAIT, scripted
from processes import descendants, wait_until
from verdicts import A, small_config

TASKS = [(number, task(name)) for number, name in enumerate("abcdef")]
SETTINGS = RolloutConfig(group_size=2, max_steps=4, max_images=4, max_answer_tokens=40)
HERE = os.getpid()


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MIN_EPISODES", 1)


def scheduler(env: type = FakeEnv, *, alone: bool = False, **changes: Any) -> Scheduler:
    torch.set_num_threads(2)
    config = EnvConfig(name=FAKE, parallel=4, attempts=1, quarantine_after=2)
    visual = SimpleNamespace(feature_cache=FeatureCache(1))
    agent = Agent(
        engine=scripted(lambda prompt, sampling: DONE if sampling.seed % 3 == 0 else WAIT),
        renderer=RENDERER,
        template=TEMPLATE,
        dialect=UI_TARS_1_5,
    )
    parts = {
        "agent": agent,
        "copies": None if alone else Copies(SimpleNamespace(model=SimpleNamespace(visual=visual))),
    }
    return Scheduler(
        pool=EnvPool(LocalEnvs(env, 4), config), settings=SETTINGS, seed=0, **{**parts, **changes}
    )


def played(playing: Scheduler) -> list[Group]:
    return asyncio.run(playing.run("0", TASKS, lambda *_: None))


ALONE = played(scheduler(alone=True))


def test_long_and_short_tasks_in_turn_are_split_evenly() -> None:
    torch.set_num_threads(2)
    parts = Copies(None).split(TASKS, 2, 4)
    assert [[number for number, _ in part] for part in parts] == [[0, 3, 4], [1, 2, 5]]


@pytest.mark.parametrize(("threads", "least", "parallel"), [(1, 1, 4), (2, 7, 4), (2, 1, 1)])
def test_one_core_few_episodes_or_one_environment_need_no_copy(
    threads: int, least: int, parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MIN_EPISODES", least)
    torch.set_num_threads(threads)
    assert Copies(None).split(TASKS, 2, parallel) == [TASKS]


def test_copies_play_the_same_batch_and_report_as_this_process_does() -> None:
    playing = scheduler()
    ended: list[tuple[int, str]] = []
    seen: list[tuple[Screenshot, Screenshot | None]] = []
    calls: list[EpisodeCalls] = []
    playing.activity.report = calls.append
    groups = asyncio.run(
        playing.run(
            "0",
            TASKS,
            lambda index, outcome: ended.append((index, outcome.episode_id)),
            on_screenshot=lambda *pair: seen.append(pair),
        )
    )
    assert groups == ALONE
    episodes = [f"0-{index}-{number}" for index in range(6) for number in range(2)]
    assert sorted(name for _, name in ended) == sorted(call.episode_id for call in calls) == episodes
    assert len(seen) == sum(
        len({turn.screenshot for turn in t.turns} | {t.final}) for g in groups for t in g.trajectories
    )
    assert torch.get_num_threads() == 2


def test_processes_share_the_number_of_environments(tmp_path: Any) -> None:
    """Each process notes how many of its episodes run at a time."""

    class Counting(FakeEnv):
        running = 0

        async def start(self, task: Task) -> Observation:
            Counting.running += 1
            (tmp_path / f"{os.getpid()}-{Counting.running}").touch()
            await asyncio.sleep(0)
            return await super().start(task)

        async def close(self) -> None:
            Counting.running -= 1

    played(scheduler(Counting))
    processes = {path.name.split("-")[0] for path in tmp_path.iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == {f"{one}-{n}" for one in processes for n in (1, 2)}
    assert len(processes) == 2


class EndsElsewhere(FakeEnv):
    """Kills the copy that starts it."""

    async def start(self, task: Task) -> Observation:
        if os.getpid() != HERE and task.id == "f":
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().start(task)


class FailsElsewhere(FakeEnv):
    async def start(self, task: Task) -> Observation:
        if os.getpid() != HERE:
            raise RuntimeError("no display")
        return await super().start(task)


def test_this_process_plays_what_a_killed_copy_did_not() -> None:
    playing = scheduler(EndsElsewhere)
    notes: list[str] = []
    assert playing.copies is not None
    playing.copies.report = notes.append
    assert played(playing) == ALONE
    [note] = notes
    assert "SIGKILL" in note


def test_without_a_free_process_everything_is_played_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    playing = scheduler()
    notes: list[str] = []
    assert playing.copies is not None
    playing.copies.report = notes.append
    monkeypatch.setattr(os, "fork", refuse)
    assert played(playing) == ALONE
    [note] = notes
    assert "Resource temporarily unavailable" in note
    assert torch.get_num_threads() == 2


def test_an_episode_that_fails_in_a_copy_is_played_here() -> None:
    playing = scheduler(FailsElsewhere)
    assert played(playing) == ALONE
    assert not playing.pool.faults


def test_a_failure_of_a_task_is_counted_once() -> None:
    class Broken(FakeEnv):
        async def start(self, task: Task) -> Observation:
            if task.id == "b":
                raise RuntimeError("no such file")
            return await super().start(task)

    playing = scheduler(Broken)
    groups = played(playing)
    assert [len(group.failures) for group in groups] == [0, 2, 0, 0, 0, 0]
    assert playing.pool.faults == {"start:EnvError": 2}


def test_a_success_in_a_copy_ends_a_series_of_failures() -> None:
    playing = scheduler()
    playing.pool.quarantine.failed("b", 0)
    played(playing)
    assert playing.pool.quarantine.failures("b") == 0


def test_an_interrupt_ends_the_copies() -> None:
    class Hanging(FakeEnv):
        async def start(self, task: Task) -> Observation:
            await asyncio.sleep(600)
            return await super().start(task)

    before = set(descendants(HERE))  # of other tests

    async def scenario() -> None:
        running = asyncio.create_task(scheduler(Hanging).run("0", TASKS, lambda *_: None))
        assert await asyncio.to_thread(wait_until, lambda: set(descendants(HERE)) - before)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    assert wait_until(lambda: not set(descendants(HERE)) - before)
    assert torch.get_num_threads() == 2


def test_an_error_here_ends_the_copies_and_is_raised() -> None:
    def on_episode(index: int, outcome: object) -> None:
        raise OSError("disk full")

    before = set(descendants(HERE))
    with pytest.raises(OSError, match="disk full"):
        asyncio.run(scheduler().run("0", TASKS, on_episode))
    assert wait_until(lambda: not set(descendants(HERE)) - before)


@pytest.mark.parametrize(
    ("settings", "copied"),
    [
        (("--env.name=desk",), True),
        (("--env.name=desk", "--train.max_staleness=1"), False),
        (("--env.name=verdicts:Scripted",), False),
    ],
)
def test_only_desk_in_lock_step_is_played_in_copies(
    settings: tuple[str, ...], copied: bool, tmp_path: Path
) -> None:
    with closing(open_player(small_config(tmp_path, [A], *settings))) as player:
        assert (player.scheduler.copies is not None) is copied


def test_a_large_model_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arpo.models.cores.SMALL_PARAMETERS", 1000)
    with closing(open_player(small_config(tmp_path, [A], "--env.name=desk"))) as player:
        assert player.scheduler.copies is None


def test_a_model_answers_in_a_copy_as_it_does_here(tmp_path: Path) -> None:
    """Log-probabilities may differ by rounding: a copy runs other requests together."""
    config = small_config(tmp_path, [A], "--env.name=desk", "--rollout.max_steps=2", "--run.threads=2")
    tasks = list(enumerate(load_tasks(config.tasks.train) * 2))
    with closing(open_player(config)) as player:
        plan = player.scheduler
        there, here = (
            asyncio.run(one.run("0", tasks, lambda *_: None)) for one in (plan, replace(plan, copies=None))
        )
    answers = [
        [turn.completion for g in groups for t in g.trajectories for turn in t.turns]
        for groups in (there, here)
    ]
    assert len(answers[0]) >= 4
    for copied, own in zip(*answers, strict=True):
        assert copied.token_ids == own.token_ids
        assert copied.logprobs == pytest.approx(own.logprobs, abs=1e-5)


def test_vision_features_of_a_copy_come_back() -> None:
    playing = scheduler()
    assert playing.copies is not None
    features = playing.copies._model.model.visual.feature_cache
    features.put("known", torch.zeros(1, 1, 2))

    class Encoding:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
            if os.getpid() != HERE:
                features.put(prompt.episode_id, torch.full((1, 1, 2), 0.1))
            return await self._inner.generate(prompt, sampling)

        async def release(self, episode_id: str) -> None:
            await self._inner.release(episode_id)

    agent: Any = playing.agent
    played(replace(playing, agent=replace(agent, engine=Encoding(agent.engine))))
    theirs = [f"0-{index}-{number}" for index in (1, 2, 5) for number in (0, 1)]
    assert sorted(features.names()) == [*theirs, "known"]
    assert torch.equal(features.get("0-1-0"), torch.full((1, 1, 2), 0.1))
