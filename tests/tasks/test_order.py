"""The sequence of training tasks: lists in epochs, tasks of desk:fresh by visit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from arpo.config import Config, ReplayConfig, RunConfig, TasksConfig, TrainConfig
from arpo.errors import UserError
from arpo.tasks.lists import load_tasks
from arpo.tasks.order import MiddleOrder, TaskOrder, epoch_order, open_order
from arpo.tasks.screened import Count
from arpo.tasks.sources import open_tasks
from arpo.types import Task


def config(count: int, distinct: int = 0) -> Config:
    return Config(
        run=RunConfig(seed=5),
        tasks=TasksConfig(train="desk:fresh", distinct=distinct, goals="1"),
        train=TrainConfig(tasks=count),
        replay=ReplayConfig(enabled=False),
    )


def order_of(settings: Config) -> TaskOrder:
    return open_order(settings, open_tasks(settings.tasks.train, settings))


def names(tasks: Sequence[Task]) -> list[str]:
    return [task.id for task in tasks]


def tasks(*ids: str, instruction: str = "do {}") -> list[Task]:
    return [
        Task(id=name, instruction=instruction.format(name), snapshot="", config=(), evaluator={})
        for name in ids
    ]


def test_every_visit_of_fresh_tasks_is_a_new_one_whatever_is_taken_at_once() -> None:
    settings = config(50)
    order, tasks = order_of(settings), open_tasks("desk:fresh", settings)
    assert order.total == 50
    taken = [
        task for start, count in ((0, 8), (8, 1), (9, 20), (29, 40)) for task in order.take(start, count)
    ]
    assert taken == list(tasks) and len(set(names(taken))) == 50
    assert order.take(50, 8) == []
    assert order.take(3, 2) == tasks[3:5]  # again, as after a batch that was abandoned


def test_distinct_tasks_are_repeated_in_epochs_as_those_of_a_list() -> None:
    settings = config(20, distinct=8)
    order, tasks = order_of(settings), open_tasks("desk:fresh", settings)
    assert len(tasks) == 8 and order.total == 20
    taken = order.take(0, 5) + order.take(5, 15)
    expected = [task for epoch in range(3) for task in epoch_order(list(tasks), 5, epoch)][:20]
    assert taken == expected
    assert sorted(Counter(names(taken)).values()) == [2] * 4 + [3] * 4


def test_train_tasks_ends_the_training_on_a_list() -> None:
    tasks = load_tasks("desk:32")
    whole = open_order(Config(train=TrainConfig(epochs=2)), tasks)
    part = open_order(Config(train=TrainConfig(epochs=2, tasks=40)), tasks)
    assert (whole.total, part.total) == (64, 40)
    assert part.take(0, 64) == whole.take(0, 40)


def test_the_order_of_an_epoch_is_computed_once() -> None:
    class Counting(TaskOrder):
        def epoch(self, epoch: int) -> Sequence[Task]:
            epochs.append(epoch)
            return super().epoch(epoch)

    epochs: list[int] = []
    tasks = load_tasks("desk:32")
    order = Counting(tasks, 5, 64)
    one_by_one = [task for start in range(64) for task in order.take(start, 1)]
    assert epochs == [0, 1]
    assert one_by_one == [*epoch_order(tasks, 5, 0), *epoch_order(tasks, 5, 1)] == order.take(0, 64)


def test_each_epoch_is_a_shuffle_of_its_own_that_seed_and_number_decide() -> None:
    pool = tasks(*"abcdefgh")
    orders = {(seed, epoch): names(epoch_order(pool, seed, epoch)) for seed in (0, 1) for epoch in (0, 1, 2)}
    assert len({tuple(order) for order in orders.values()}) == 6
    assert all(Counter(order) == Counter("abcdefgh") for order in orders.values())
    assert names(epoch_order(pool, 1, 2)) == orders[1, 2]
    # written down: a change of this order would break the resumption of every stored run
    assert "".join(orders[0, 0]) == "eadhcbgf"
    assert names(pool) == list("abcdefgh")


def counted(**successes: int) -> dict[str, Count]:
    return {name: Count(successes=count, rollouts=16) for name, count in successes.items()}


def test_tasks_of_middle_difficulty_come_more_often() -> None:
    # Weights 0.0785, 0.3, 0.3, 0.0785, together 0.757: of four draws b and c have 1.585 each, a and d 0.415.
    pool, drawn = tasks(*"abcd"), Counter[str]()

    def middle(seed: int, epoch: int) -> list[str]:
        return names(MiddleOrder(pool, seed, 4, counted(a=0, b=8, c=8, d=16)).epoch(epoch))

    for epoch in range(2000):
        order = middle(0, epoch)
        assert len(order) == 4
        times = Counter(order)
        assert all(times[name] in (1, 2) for name in "bc") and all(times[name] in (0, 1) for name in "ad")
        drawn += times
    assert all(abs(drawn[name] / 2000 - 1.585) < 0.04 for name in "bc")
    assert all(abs(drawn[name] / 2000 - 0.415) < 0.04 for name in "ad")
    assert middle(0, 7) == middle(0, 7) != middle(1, 7)
    assert len({tuple(middle(0, epoch)) for epoch in range(50)}) > 20


def test_the_hardest_set_to_draw_from_repeats_a_task_at_most_four_times() -> None:
    pool = tasks("a", *(f"t{n}" for n in range(127)))
    hard = MiddleOrder(pool, 0, 128, counted(a=8, **{f"t{n}": 0 for n in range(127)}))
    times = [Counter(names(hard.epoch(epoch))) for epoch in range(50)]
    assert {count["a"] for count in times} == {3, 4}  # 128 x 0.3 / (0.3 + 127 x 0.0785) = 3.74
    assert all(count.total() == 128 for count in times)


def test_a_single_task_of_medium_difficulty_is_its_whole_epoch() -> None:
    assert names(MiddleOrder(tasks("a"), 0, 1, counted(a=1)).epoch(0)) == ["a"]


def test_a_curriculum_needs_counts() -> None:
    def order(source: str) -> TaskOrder:
        settings = Config(tasks=TasksConfig(train=source), train=TrainConfig(curriculum="middle"))
        return open_order(settings, load_tasks(source))

    assert isinstance(order("desk:32"), MiddleOrder)
    remedy = r"desk:pool has no screening counts.* `arpo screen --tasks desk:pool --out kept\.json`"
    with pytest.raises(UserError, match=remedy):
        order("desk:pool")
