"""The episodes of the report: default choice, and --episodes."""

import pytest

from arpo.errors import UserError
from arpo.types import StopReason
from arpo.viewer.pages.report import choose_episodes
from played_episodes import played


def ids(*arguments):
    return [tuple(one.episode for one in shown) for shown in choose_episodes(*arguments)]


def evaluated(task, before, after):
    return [
        played(f"eval0-train-{task}-0", task, solved=before),
        played(f"eval4-train-{task}-0", task, solved=after),
    ]


RUN = [
    played("eval0-train-0-0", "a"),
    *(played(f"batch{number}-0-0", "a", solved=number % 2 == 1) for number in range(20)),
    played("batch20-0-0", "b", stop=StopReason.PARSE_ERROR),
    played("batch20-1-0", "a", solved=True, shown=False),
]


def test_by_default_the_same_tasks_before_and_after():
    run = [one for task in "abc" for one in evaluated(task, False, True)]
    run += [one for task in "de" for one in evaluated(task, True, False)]
    run += evaluated("f", False, False) + evaluated("g", True, True)
    pairs = [(f"eval0-train-{task}-0", f"eval4-train-{task}-0") for task in "adbfce"]
    assert ids(run) == pairs  # learned, forgotten, learned, never solved; then again
    assert ids(run, "before-after:7")[-1] == ("eval0-train-g-0", "eval4-train-g-0")


def test_without_a_second_evaluation_the_newest_batch_is_after():
    run = [played("eval0-train-0-0"), played("batch0-0-0"), played("batch3-0-0"), played("batch3-0-1")]
    assert ids(run) == [("eval0-train-0-0", "batch3-0-0")]


def test_without_pairs_the_first_and_last_of_each_outcome():
    run = [played(f"collect-{number}-0", str(number), solved=number % 2 == 1) for number in range(40)]
    assert ids(run) == [(f"collect-{number}-0",) for number in (1, 3, 5, 35, 37, 39, 0, 2, 4, 34, 36, 38)]
    assert ids([]) == []


def test_episodes_are_chosen_by_id_task_and_kind():
    assert ids(RUN, "batch3-0-0") == [("batch3-0-0",)]
    assert ids(RUN, "task:a:2") == [("eval0-train-0-0",), ("batch19-0-0",)]
    assert ids(RUN, "task:b") == [("batch20-0-0",)]
    assert ids(RUN, "solved:3") == [("batch1-0-0",), ("batch3-0-0",), ("batch19-0-0",)]
    assert len(ids(RUN, "failed")) == 6
    assert ids(RUN, "parse-errors,batch20-0-0, batch0-0-0") == [("batch20-0-0",), ("batch0-0-0",)]
    assert ids([*RUN, played("batch9-9-9", replayed_in=(11,))], "replayed") == [("batch9-9-9",)]


def test_an_id_of_a_task_may_contain_a_colon():
    assert ids([played("batch0-0-0", "web:1"), played("batch0-0-1", "web:1")], "task:web:1:1") == [
        ("batch0-0-0",)
    ]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("batch99-0-0", "--episodes batch99-0-0: no such episode (did you mean batch9-0-0?)"),
        ("batch20-1-0", "--episodes batch20-1-0: its screenshots were deleted (store.prune_every)"),
        ("task:pool", "--episodes task:pool: no episode of this task (there are 2: a, b, …)"),
        ("replayed", "--episodes replayed: no episode matches. The run has episodes of 2 tasks: 10 solved, "
         "12 failed, 0 replayed, 1 parse-errors; 1 tasks before-after. 1 more have no screenshots"),
        ("faild", "--episodes 'faild': unknown. Write an episode id, task:ID, solved, failed, replayed,"),
        ("failed:0", "--episodes 'failed:0': the number after the colon must be an integer from 1 to 9999"),
        ("failed:x", "must be an integer from 1 to 9999"),
        ("failed,", "--episodes '': unknown"),
    ],
)  # fmt: skip
def test_a_choice_without_episodes_is_one_clear_error(wanted, message):
    with pytest.raises(UserError) as raised:
        choose_episodes(RUN, wanted)
    assert message in str(raised.value)


def test_a_run_without_episodes_says_so():
    with pytest.raises(UserError, match="the run has no episodes with screenshots yet"):
        choose_episodes([], "task:a")
