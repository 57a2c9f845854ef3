"""Asynchronous training on Desk with the shipped model: one step an episode, verdicts written here."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from arpo.config import Config
from arpo.errors import Outage, UserError
from arpo.learner.base import Batch
from arpo.reporting.display import Display
from arpo.storage.checkpoint import CHECKPOINTS, latest
from arpo.storage.codec import group_of
from arpo.storage.run_folder import RunFolder
from arpo.tasks.order import TaskOrder
from arpo.training.group_stream import _staleness
from arpo.training.trainer import Trainer, run_training
from arpo.types import Task, Trajectory
from trained import group_numbers, lines, train_to_end
from trajectories import group, trajectory, turn
from verdicts import A, B, C, D, Reachable, Scripted, Slow, Stuck, small_config

ASYNC = ("--train.max_staleness=1", "--env.parallel=4")
SINGLE = (*ASYNC, "--train.tasks_per_batch=1", "--train.tasks_per_update=1")


def train(config: Config) -> Trainer:
    return train_to_end(Trainer, config)


def trained_groups(config: Config) -> list[int]:
    return group_numbers(lines(config, "groups.jsonl"))


def tasks_of(config: Config, numbers: list[int]) -> Counter[str]:
    """How often each task is in these groups, by the stored episodes."""
    by_group = {
        int(episode["episode_id"].split("-")[1]): episode["task_id"]
        for episode in lines(config, "trajectories.jsonl")
        if episode["episode_id"].startswith("group-")
    }
    return Counter(by_group[number] for number in numbers)


@pytest.mark.slow
def test_every_task_of_every_epoch_is_trained_once(tmp_path: Path) -> None:
    Scripted.play({A: [0, 1] * 9, B: [1, 0] * 9, C: [1, 1] * 9})
    config = small_config(tmp_path, [A, B, C, D], *ASYNC, "--train.epochs=3")
    trainer = train(config)
    numbers = trained_groups(config)
    assert sorted(numbers) == list(range(12))
    assert tasks_of(config, numbers) == {A: 3, B: 3, C: 3, D: 3}
    metrics = lines(config, "metrics.jsonl")[1:]
    assert [record["step"] for record in metrics] == [1, 2, 3, 4, 5, 6]
    assert [record["groups"] for record in metrics] == [2] * 6
    assert metrics[-1]["episodes"] == trainer.run.progress.episodes == 24
    assert all(0 <= record["staleness_mean"] <= record["staleness_max"] <= 1 for record in metrics)
    assert trainer.run.learner.weights().version == 6
    assert trainer.run.progress.success.keys() == {"base", "final"}


class Overtaking(Display):
    """Lets the slow group end when the group after it has ended, and only then."""

    trainer: Trainer

    def episode_done(self) -> None:
        if "group-1-0" in self.trainer.source.waiting_episodes():
            Slow.overtaken.set()


@pytest.mark.slow
def test_a_slow_group_is_not_overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of one group. The first group ends after the next one, and is trained before it."""
    Scripted.play({})
    config = small_config(tmp_path, [A, B, C, D], *SINGLE, "--train.epochs=3", env="Slow")
    display = Overtaking()
    with closing(RunFolder(Path(config.run.dir))) as store:
        display.trainer = Trainer(config, store, display)
        [first] = display.trainer.order.take(0, 1)
        monkeypatch.setattr(Slow, "slow", first.id)
        monkeypatch.setattr(Slow, "scored", 0)
        monkeypatch.setattr(Slow, "overtaken", asyncio.Event(), raising=False)
        assert asyncio.run(display.trainer.train())
    numbers = trained_groups(config)
    assert numbers == list(range(12))
    assert tasks_of(config, numbers) == {A: 3, B: 3, C: 3, D: 3}
    episodes = lines(config, "trajectories.jsonl")
    ended = [group_of(one["episode_id"]) for one in episodes if one["episode_id"].startswith("group-")]
    assert list(dict.fromkeys(ended))[:2] == ["group-1", "group-0"]
    assert len(set(ended)) == 12  # none was played in vain
    metrics = lines(config, "metrics.jsonl")[1:]
    assert max(record["staleness_max"] for record in metrics) == 1


def test_staleness_of_a_batch() -> None:
    """The learner has version 4. The first episode is stale from its second token on."""
    first = trajectory(
        0, turn([1], [1, 2], versions=[4, 2], restart=True), turn([1], [3, 4], versions=[4, 3])
    )
    fresh = trajectory(1, turn([1], [1, 2, 3, 4], version=4, restart=True))
    assert _staleness([group(first, fresh)], 4) == {
        "staleness_mean": 3 / 8,
        "staleness_max": 2.0,
        "stale_fraction": 3 / 8,
    }
    assert set(_staleness([group(failures=2)], 4).values()) == {0.0}


def test_failures_leave_a_smaller_group_as_in_lock_step(tmp_path: Path) -> None:
    Scripted.play({B: [0, 1] * 9})
    settings = ("--env.attempts=1", "--env.quarantine_after=99", "--train.epochs=2")
    config = small_config(tmp_path, [A, B], *ASYNC, *settings, env="Fragile")
    trainer = train(config)
    metrics = lines(config, "metrics.jsonl")[1:]
    assert [record["too_small"] for record in metrics] == [1, 1]
    assert trainer.run.progress.failures == len(lines(config, "failures.jsonl")) == 6  # 2 evaluations
    assert metrics[-1]["episodes"] == 4


class StopsAfter(Display):
    """Asks its run to stop after so many episodes of training, as Ctrl-C does."""

    def __init__(self, episodes: int) -> None:
        self._left = episodes
        self.trainer: Trainer
        self.texts: list[str] = []
        self.stopped = threading.Event()

    def begin(self, title: str, total_episodes: int, done: int = 0) -> None:
        self.training = title == "training"

    def episode_done(self) -> None:
        self._left -= self.training
        if not self._left:
            self.trainer.run.stop()
            self.stopped.set()

    def note(self, text: str) -> None:
        self.texts.append(text)


def state(config: Config) -> dict[str, Any]:
    newest, _ = latest(Path(config.run.dir) / CHECKPOINTS)
    assert newest is not None
    return dict(json.loads((newest.path / "state.json").read_text("utf-8")))


@pytest.mark.slow
def test_a_stop_while_groups_play_keeps_the_finished_ones(tmp_path: Path) -> None:
    """Batches of 2 groups, 4 episodes each, one environment: the first group ends after 4 episodes.

    Its screenshots survive pruning: the resumed run trains on it.
    """
    Scripted.play({A: [0, 1] * 20, B: [1, 0] * 20})
    settings = ("--train.max_staleness=1", "--env.parallel=1", "--rollout.group_size=4", "--train.epochs=2")
    config = small_config(tmp_path, [A, B], *settings, "--store.prune_every=1")
    display = StopsAfter(4)
    with closing(RunFolder(Path(config.run.dir))) as store:
        store.write_recipe(config)
        display.trainer = Trainer(config, store, display)
        assert not asyncio.run(display.trainer.train())
    [note] = [text for text in display.texts if text.startswith("stopping")]
    assert "Finished groups are kept, others are played again" in note
    saved = state(config)
    [finished] = saved["stream"]["finished"]
    assert finished["trajectories"] == [f"group-0-{number}" for number in range(4)]
    assert [number for number, _ in saved["stream"]["unplayed"]] == [1]
    assert (saved["progress"]["batch"], saved["progress"]["tasks"], saved["progress"]["episodes"]) == (
        0,
        0,
        0,
    )
    train(config)
    numbers = trained_groups(config)
    assert sorted(numbers) == [0, 1, 2, 3] and 0 in numbers[:2]
    assert tasks_of(config, numbers) == {A: 2, B: 2}
    played = [e["episode_id"] for e in lines(config, "trajectories.jsonl") if "group" in e["episode_id"]]
    assert len(played) == len(set(played)) == 16


@pytest.mark.slow
@pytest.mark.parametrize("lower", [1, 0])
def test_staleness_is_lowered_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lower: int) -> None:
    """Batches of one group. The learner trains on the first one until three others wait for it.

    They are trained as they are; the lower limit holds for groups that start later.
    """
    Scripted.play({task: [0, 1] * 20 for task in (A, B, C, D)})
    settings = ("--env.parallel=2", "--train.tasks_per_batch=1", "--train.tasks_per_update=1")
    run = partial(small_config, tmp_path, [A, B, C, D], *settings, "--train.epochs=2")
    config, display = run("--train.max_staleness=3"), StopsAfter(8)
    with closing(RunFolder(Path(config.run.dir))) as store:
        store.write_recipe(config)
        display.trainer = Trainer(config, store, display)
        learn = display.trainer.run.learner.train

        def learn_when_others_wait(batch: Batch) -> Mapping[str, float]:
            assert display.stopped.wait(60)
            return learn(batch)

        monkeypatch.setattr(display.trainer.run.learner, "train", learn_when_others_wait)
        assert not asyncio.run(display.trainer.train())
    waiting = [group["index"] for group in state(config)["stream"]["finished"]]
    assert len(waiting) == 3
    assert run_training(run(f"--train.max_staleness={lower}"), Display()) == 0
    numbers = trained_groups(config)
    assert numbers == list(range(8))
    assert tasks_of(config, numbers) == {A: 2, B: 2, C: 2, D: 2}
    staleness = [line["staleness_max"] for line in lines(config, "metrics.jsonl")[1:]]
    assert max(staleness[:4]) == 3 and max(staleness[4:]) <= lower


@pytest.mark.slow
def test_an_outage_ends_the_run_and_keeps_the_finished_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts: 3 of the base evaluation, 4 of two groups, then none."""
    Scripted.play({})
    settings = ("--train.max_staleness=1", "--env.parallel=1", "--env.attempts=2", "--env.outage_seconds=0")
    batch = ("--train.tasks_per_batch=4", "--train.tasks_per_update=4", "--train.epochs=2")
    config = small_config(tmp_path, [A, B], *settings, *batch, env="Reachable")
    monkeypatch.setattr(Reachable, "starts", 7)
    with pytest.raises(Outage, match="no environment has worked for 0 s"):
        run_training(config, Display())
    assert [group["index"] for group in state(config)["stream"]["finished"]] == [0, 1]
    monkeypatch.setattr(Reachable, "starts", math.inf)
    train(config)
    assert sorted(trained_groups(config)) == [0, 1, 2, 3]
    assert not lines(config, "failures.jsonl")


def test_a_learner_that_fails_ends_the_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted.play({})
    Stuck.started = Stuck.closed = 0
    config = small_config(tmp_path, [A, B, C, D], *SINGLE, "--train.epochs=2", env="Stuck")
    with closing(RunFolder(Path(config.run.dir))) as store:
        trainer = Trainer(config, store, Display())

        def fail(batch: object) -> Mapping[str, float]:
            raise RuntimeError("the GPU is gone")

        monkeypatch.setattr(trainer.run.learner, "train", fail)
        with pytest.raises(RuntimeError, match="the GPU is gone"):
            asyncio.run(trainer.train())
    assert Stuck.closed == Stuck.started - 1 <= 2


@pytest.mark.parametrize("stopping", [False, True])
def test_an_error_of_the_store_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopping: bool
) -> None:
    Scripted.play({})
    config = small_config(tmp_path, [A, B], *ASYNC)
    with closing(RunFolder(Path(config.run.dir))) as store:
        trainer = Trainer(config, store, Display())
        add = store.add_trajectory

        def full(trajectory: Trajectory) -> None:
            if trajectory.episode_id.startswith("group-"):
                trainer.run.stopping = stopping
                raise OSError("no space left on device")
            add(trajectory)

        monkeypatch.setattr(store, "add_trajectory", full)
        with pytest.raises(OSError, match="no space left on device"):
            asyncio.run(trainer.train())


@pytest.mark.slow
def test_no_checkpoint_keeps_a_group_that_is_stored_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second episode of group 1 cannot be stored while the learner trains on group 0."""
    Scripted.play({})
    config = small_config(tmp_path, [A, B], *SINGLE, "--env.parallel=1")
    with closing(RunFolder(Path(config.run.dir))) as store:
        store.write_recipe(config)
        trainer = Trainer(config, store, Display())
        add, learn, failed = store.add_trajectory, trainer.run.learner.train, threading.Event()

        def full(trajectory: Trajectory) -> None:
            if trajectory.episode_id == "group-1-1":
                failed.set()
                raise OSError("no space left on device")
            add(trajectory)

        def learn_later(batch: Batch) -> Mapping[str, float]:
            assert failed.wait(60)  # in the thread of the learner
            return learn(batch)

        monkeypatch.setattr(store, "add_trajectory", full)
        monkeypatch.setattr(trainer.run.learner, "train", learn_later)
        with pytest.raises(OSError, match="no space left on device"):
            asyncio.run(trainer.train())
        assert trainer.run.learner.weights().version == 1
    monkeypatch.undo()
    train(config)
    assert sorted(trained_groups(config)) == [0, 1]


def test_a_checkpoint_written_again_leaves_the_screenshots_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop writes the checkpoint of batch 2 again, with more finished groups. That of batch 1 stays."""
    config = small_config(tmp_path, [A, B], *ASYNC, "--store.prune_every=1", "--store.keep_checkpoints=2")
    with closing(RunFolder(Path(config.run.dir))) as store:
        trainer = Trainer(config, store, Display())
        kept: list[set[str]] = []
        monkeypatch.setattr(store, "prune", kept.append)
        for batch, waiting in ((1, "a"), (2, "b"), (2, "c"), (3, "d")):
            trainer.run.progress.batch = batch
            group = {"index": 0, "task_id": A, "trajectories": [waiting], "failures": [], "rescues": []}
            stream = {"started": 1, "unplayed": [], "finished": [group]}
            state = {"stream": stream}
            monkeypatch.setattr(trainer.source, "waiting_episodes", lambda waiting=waiting: {waiting})
            monkeypatch.setattr(trainer.source, "state", lambda state=state: state)
            asyncio.run(trainer.run.save())
    assert kept == [{"a"}, {"a", "b"}, {"a", "c"}, {"c", "d"}]


def test_an_asynchronous_run_does_not_continue_lock_step(tmp_path: Path) -> None:
    Scripted.play({})
    assert run_training(small_config(tmp_path, [A, B]), Display()) == 0
    with pytest.raises(UserError, match=r"must keep train\.max_staleness = 0 .*only be lowered"):
        run_training(small_config(tmp_path, [A, B], *ASYNC), Display())


def test_a_checkpoint_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that starts while a checkpoint is written is not in it."""
    Scripted.play({})
    begin = RunFolder.begin_offsets

    def begin_offsets(store: RunFolder) -> Any:
        trainer.source._queue.append((0, trainer.order.take(0, 1)[0]))  # type: ignore[union-attr]
        return begin(store)

    config = small_config(tmp_path, [A, B], *ASYNC)
    with closing(RunFolder(Path(config.run.dir))) as store:
        trainer = Trainer(config, store, Display())
        monkeypatch.setattr(RunFolder, "begin_offsets", begin_offsets)
        with closing(trainer.run):
            asyncio.run(trainer.run.save())
            found, _ = latest(store.folder / CHECKPOINTS)
    assert found is not None
    assert json.loads((found.path / "state.json").read_text())["stream"]["unplayed"] == []


def test_an_error_of_a_later_task_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first group starts at once, the next ones later, one per turn of the event loop."""
    Scripted.play({})
    take = TaskOrder.take

    def fail(order: TaskOrder, start: int, count: int) -> list[Task]:
        if start == 1:
            raise UserError("the second task is missing")
        return take(order, start, count)

    monkeypatch.setattr(TaskOrder, "take", fail)
    with pytest.raises(UserError, match="the second task is missing"):
        train(small_config(tmp_path, [A, B], *ASYNC))
    assert not caplog.records  # asyncio would log an exception in a callback


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "thread"), [(ASYNC, "learner_0"), ((), "MainThread")])
def test_plug_ins_and_replay_use_a_thread_if_rollouts_continue(
    settings: tuple[str, ...], thread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders, load = set(), RunFolder.load_trajectory

    def loading(store: RunFolder, name: str) -> Trajectory:
        loaders.add(threading.current_thread().name)
        return load(store, name)

    monkeypatch.setattr(RunFolder, "load_trajectory", loading)
    (tmp_path / f"{thread}_seen.py").write_text(
        "import threading\nseen = set()\n"
        "def advantage(rewards, group):\n"
        "    seen.add(threading.current_thread().name)\n"
        "    return [value - sum(rewards) / len(rewards) for value in rewards]\n"
        "def reward(trajectory, task):\n"
        "    seen.add(threading.current_thread().name)\n"
        "    return trajectory.score\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    Scripted.play({A: [0, 1] + [0] * 20, B: [1, 0] * 11})  # later groups of A need a stored success
    plugins = [f"--plugins.{name}={thread}_seen:{name}" for name in ("advantage", "reward")]
    train(small_config(tmp_path, [A, B], *settings, *plugins, "--train.epochs=4"))
    assert importlib.import_module(f"{thread}_seen").seen == {thread}
    assert loaders == {thread}
