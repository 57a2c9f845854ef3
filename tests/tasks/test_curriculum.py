from collections import Counter
from collections.abc import Sequence

from arpo.tasks.curriculum import Count, Curriculum, epoch_order, learnable, middle
from arpo.types import Task


def names(tasks: Sequence[Task]) -> list[str]:
    return [task.id for task in tasks]


def tasks(*ids: str, instruction: str = "do {}") -> list[Task]:
    return [
        Task(id=name, instruction=instruction.format(name), snapshot="", config=(), evaluator={})
        for name in ids
    ]


def test_screening_keeps_what_was_solved_at_least_once() -> None:
    counts = {
        "never": Count(successes=0, rollouts=16),
        "once": Count(successes=1, rollouts=16),
        "always": Count(successes=16, rollouts=16),
    }
    assert list(learnable(counts, drop_always=False)) == ["once", "always"]
    assert list(learnable(counts, drop_always=True)) == ["once"]


def test_the_middle_is_nearest_to_half_and_of_two_the_harder_then_the_earlier():
    of_16 = {"a": 16, "b": 12, "c": 4, "d": 8, "e": 0, "f": 4, "g": 9, "h": 1}
    counts = {name: Count(successes=successes, rollouts=16) for name, successes in of_16.items()}
    ranked = ["d", "g", "c", "f", "b", "h"]  # 8, 9, 4, 4, 12 and 1 of 16; never and always are left out
    for number in range(1, 8):
        assert set(middle(counts, number)) == set(ranked[:number])
    assert list(middle(counts, 3)) == ["c", "d", "g"]  # in the order of the counts


def test_rates_decide_the_middle_where_some_episodes_failed():
    """1 of 2 is the middle; 7 of 15 is nearer to it than 7 of 16."""
    counts = {
        "a": Count(successes=7, rollouts=16),
        "b": Count(successes=7, rollouts=15),
        "c": Count(successes=1, rollouts=2),
    }
    assert list(middle(counts, 2)) == ["b", "c"]


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


def test_a_rate_of_screening_is_never_0_nor_1() -> None:
    assert Count(successes=0, rollouts=16).rate == 0.5 / 17
    assert Count(successes=8, rollouts=16).rate == 0.5
    assert Count(successes=1, rollouts=1).rate == 0.75


def test_no_curriculum_is_the_plain_shuffle() -> None:
    plain = Curriculum(kind="none", passes=3, counts={})
    pool = tasks(*"abcdefgh")
    for epoch in range(3):
        assert plain.order(pool, 5, epoch) == epoch_order(pool, 5, epoch)


def test_tasks_of_middle_difficulty_come_more_often() -> None:
    # Weights 0.0785, 0.3, 0.3, 0.0785, together 0.757: of four draws b and c have 1.585 each, a and d 0.415.
    middle = Curriculum(kind="middle", passes=2000, counts=counted(a=0, b=8, c=8, d=16))
    pool, drawn = tasks(*"abcd"), Counter[str]()
    for epoch in range(2000):
        order = names(middle.order(pool, 0, epoch))
        assert len(order) == 4
        times = Counter(order)
        assert all(times[name] in (1, 2) for name in "bc") and all(times[name] in (0, 1) for name in "ad")
        drawn += times
    assert all(abs(drawn[name] / 2000 - 1.585) < 0.04 for name in "bc")
    assert all(abs(drawn[name] / 2000 - 0.415) < 0.04 for name in "ad")
    assert middle.order(pool, 0, 7) == middle.order(pool, 0, 7) != middle.order(pool, 1, 7)
    assert len({tuple(names(middle.order(pool, 0, epoch))) for epoch in range(50)}) > 20


def test_the_hardest_set_to_draw_from_repeats_a_task_at_most_four_times() -> None:
    hard = Curriculum(kind="middle", passes=1, counts=counted(a=8, **{f"t{n}": 0 for n in range(127)}))
    pool = tasks("a", *(f"t{n}" for n in range(127)))
    times = [Counter(names(hard.order(pool, 0, epoch))) for epoch in range(50)]
    assert {count["a"] for count in times} == {3, 4}  # 128 x 0.3 / (0.3 + 127 x 0.0785) = 3.74
    assert all(count.total() == 128 for count in times)


def test_easy_tasks_come_first() -> None:
    successes = dict(zip("abcdefgh", (0, 15, 3, 16, 8, 1, 12, 2), strict=True))
    easy = Curriculum(kind="easy_first", passes=6, counts=counted(**successes))
    passes = [Counter(names(easy.order(tasks(*"abcdefgh"), 0, epoch))) for epoch in range(6)]
    assert passes[0] == passes[1] == Counter("dbge" * 2)
    for dealt in passes[2:4]:
        assert set(dealt) == set("dbgech") and dealt.total() == 8 and max(dealt.values()) == 2
    assert passes[4] == passes[5] == Counter("abcdefgh")
    order = names(easy.order(tasks(*"abcdefgh"), 0, 0))
    assert set(order[:4]) == set(order[4:]) == set("dbge")


def test_easy_tasks_come_first_in_a_run_of_a_number_of_tasks() -> None:
    """13 tasks of 4 are four epochs: two of the easier half, one of three quarters, one of all."""
    easy = Curriculum(kind="easy_first", passes=30, counts=counted(a=1, b=2, c=3, d=4), total=13)
    passes = [set(names(easy.order(tasks(*"abcd"), 0, epoch))) for epoch in range(4)]
    assert passes == [{*"cd"}, {*"cd"}, {*"bcd"}, {*"abcd"}]


def test_an_odd_number_of_tasks_and_a_single_pass() -> None:
    easy = Curriculum(kind="easy_first", passes=1, counts=counted(a=1, b=2, c=3))
    assert Counter(names(easy.order(tasks(*"abc"), 0, 0))).keys() == {"b", "c"}
    alone = Curriculum(kind="middle", passes=1, counts=counted(a=1))
    assert names(alone.order(tasks("a"), 0, 0)) == ["a"]
