"""The sequence of training tasks: lists in epochs, tasks of desk:fresh by visit."""

from __future__ import annotations

from collections import Counter
from typing import Any

from arpo.config import Config, ReplayConfig, RunConfig, TasksConfig, TrainConfig
from arpo.envs.desk.fresh import FreshTasks, fresh_families
from arpo.tasks.curriculum import Curriculum, epoch_order
from arpo.tasks.family_signal import FamilySignal
from arpo.tasks.lists import load_tasks
from arpo.tasks.order import TaskOrder, open_order
from arpo.tasks.sources import open_tasks
from arpo.training.build import open_curriculum
from arpo.types import Task
from trajectories import scored


def config(count: int, distinct: int = 0, **train: Any) -> Config:
    return Config(
        run=RunConfig(seed=5),
        tasks=TasksConfig(train="desk:fresh", distinct=distinct, goals="1"),
        train=TrainConfig(tasks=count, **train),
        replay=ReplayConfig(key="family"),
    )


def order_of(settings: Config) -> TaskOrder:
    return open_order(settings, open_tasks(settings.tasks.train, settings), open_curriculum(settings))


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


def test_every_visit_of_fresh_tasks_is_a_new_one_whatever_is_taken_at_once() -> None:
    settings = config(50)
    order, tasks = order_of(settings), open_tasks("desk:fresh", settings)
    assert order.total == 50
    taken = [
        task for start, count in ((0, 8), (8, 1), (9, 20), (29, 40)) for task in order.take(start, count)
    ]
    assert taken == list(tasks) and len(set(ids(taken))) == 50
    assert order.take(50, 8) == []
    assert order.take(3, 2) == tasks[3:5]  # again, as after a batch that was abandoned


def test_distinct_tasks_are_repeated_in_epochs_as_those_of_a_list() -> None:
    settings = config(20, distinct=8)
    order, tasks = order_of(settings), open_tasks("desk:fresh", settings)
    assert len(tasks) == 8 and order.total == 20
    taken = order.take(0, 5) + order.take(5, 15)
    expected = [task for epoch in range(3) for task in epoch_order(list(tasks), 5, epoch)][:20]
    assert taken == expected
    assert sorted(Counter(ids(taken)).values()) == [2] * 4 + [3] * 4


def test_train_tasks_ends_the_training_on_a_list() -> None:
    tasks = load_tasks("desk:32")
    curriculum = Curriculum(kind="none", passes=30, counts={})
    whole = open_order(Config(train=TrainConfig(epochs=2)), tasks, curriculum)
    part = open_order(Config(train=TrainConfig(epochs=2, tasks=40)), tasks, curriculum)
    assert (whole.total, part.total) == (64, 40)
    assert part.take(0, 64) == whole.take(0, 40)


def test_an_adaptive_order_prefers_families_with_signal() -> None:
    settings = config(400, curriculum="adaptive")
    curriculum, tasks = open_curriculum(settings), open_tasks("desk:fresh", settings)
    assert isinstance(curriculum, FamilySignal) and isinstance(tasks, FreshTasks)
    order = open_order(settings, tasks, curriculum)
    before = order.take(0, 200)
    for task in before:  # FlagMail succeeds in half of its episodes, the others always
        successes = (1, 0) if task.snapshot == "FlagMail" else (1, 1)
        for _ in range(3):
            curriculum.record(scored(*successes, task=task.id).trajectories)
    after = order.take(200, 200)
    share = [sum("FlagMail" in fresh_families(task.id) for task in part) / 200 for part in (before, after)]
    assert share[0] < 0.12 and share[1] > 0.25
    assert len({task.snapshot for task in after}) > 10  # no family disappears


def test_the_order_of_an_epoch_is_computed_once() -> None:
    class Counting(Curriculum):
        def order(self, tasks: Any, seed: int, epoch: int) -> tuple[Task, ...]:
            epochs.append(epoch)
            return epoch_order(tasks, seed, epoch)

    epochs: list[int] = []
    tasks = load_tasks("desk:32")
    settings = Config(run=RunConfig(seed=5), train=TrainConfig(epochs=2))
    order = open_order(settings, tasks, Counting(kind="none", passes=2, counts={}))
    one_by_one = [task for start in range(64) for task in order.take(start, 1)]
    assert epochs == [0, 1]
    assert one_by_one == [*epoch_order(tasks, 5, 0), *epoch_order(tasks, 5, 1)] == order.take(0, 64)
