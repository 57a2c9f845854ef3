"""Success rates by task."""

from arpo.viewer.pages.tasks import evaluation_note, read_evaluation, task_rows


def evaluation(step, landmark="", **sets):
    return read_evaluation({"step": step, "episodes": 0, "landmark": landmark, "sets": sets})


BASE = evaluation(
    0, "base", train={"b": [1, 0], "a": [0, 0]}, heldout={"c": [0]}, overall={"a": [1], "d": [1]}
)
MIDDLE = evaluation(4, train={"a": [0, 1], "b": [0, 0]}, heldout={"c": [1]})
FINAL = evaluation(8, "final", train={"a": [1, 1], "b": [1, 1]}, heldout={"c": [0]}, overall={"d": [0]})


def rows(*evaluations):
    return [(row.task, row.task_set, row.before, row.after) for row in task_rows(evaluations)]


def test_the_largest_gain_of_a_set_is_first():
    assert rows(BASE, MIDDLE, FINAL) == [
        ("a", "training", [0, 0, 1], [1, 1]),
        ("b", "training", [1, 0], [1, 1]),
        ("c", "held-out", [0], [0]),
        ("d", "other", [1], [0]),
    ]


def test_levels_come_between_held_out_and_other_tasks():
    one = evaluation(0, "base", overall={"d": [1]}, applications_test={"x": [0]}, heldout={"c": [0]})
    assert [row[:2] for row in rows(one)] == [
        ("c", "held-out"),
        ("x", "new applications (test)"),
        ("d", "other"),
    ]


def test_a_run_that_was_stopped_is_compared_with_its_newest_evaluation():
    assert rows(BASE, MIDDLE) == [
        ("a", "training", [0, 0, 1], [0, 1]),
        ("b", "training", [1, 0], [0, 0]),
        ("c", "held-out", [0], [1]),
        ("d", "other", [1], None),
    ]


def test_with_one_evaluation_the_hardest_task_is_first():
    assert [row[0] for row in rows(BASE)] == ["a", "b", "c", "d"]
    assert rows() == []


def test_an_evaluation_without_episodes_of_a_task_has_no_rate():
    (row,) = task_rows([evaluation(0, train={"a": []}), evaluation(1, train={"a": [1]})])
    assert row.change is None


def test_the_note_says_which_evaluations_are_missing():
    assert evaluation_note([BASE, MIDDLE, FINAL], 4) == (
        "Evaluations in this run: before training, after batch 4, after batch 8."
    )
    assert "has not reached its last evaluation" in evaluation_note([BASE, MIDDLE], 4)
    assert "the next evaluation is after batch 4" in evaluation_note([BASE], 4)
    assert "the next evaluation is at the end of training" in evaluation_note([BASE], 0)
    assert evaluation_note([], 4) == "The run has no evaluation yet."
