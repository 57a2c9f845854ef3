"""Success rates by task."""

from arpo.viewer.pages.report import evaluation_note
from arpo.viewer.pages.tasks import evaluated_tasks, read_evaluation


def evaluation(step, landmark="", **sets):
    return read_evaluation({"step": step, "episodes": 0, "landmark": landmark, "sets": sets})


BASE = evaluation(
    0, "base", train={"b": [1, 0], "a": [0, 0]}, heldout={"c": [0]}, overall={"a": [1], "d": [1]}
)
MIDDLE = evaluation(4, train={"a": [0, 1], "b": [0, 0]}, heldout={"c": [1]})
FINAL = evaluation(8, "final", train={"a": [1, 1], "b": [1, 1]}, heldout={"c": [0]}, overall={"d": [0]})


def rates(*evaluations):
    found = evaluated_tasks(evaluations)
    return {task: (row["task_set"], row["before"], row["after"]) for task, row in found.items()}


def test_the_first_evaluation_is_compared_with_the_newest_one_of_a_task():
    assert rates(BASE, MIDDLE, FINAL) == {
        "a": ("training", 1 / 3, 1.0),
        "b": ("training", 0.5, 1.0),
        "c": ("held-out", 0.0, 0.0),
        "d": ("other", 1.0, 0.0),
    }
    stopped = rates(BASE, MIDDLE)
    assert (stopped["b"], stopped["d"]) == (("training", 0.5, 0.0), ("other", 1.0, None))
    assert rates() == {}


def test_a_level_of_held_out_tasks_has_a_label():
    one = evaluation(0, "base", applications_test={"x": [0]})
    assert rates(one) == {"x": ("new applications (test)", 0.0, None)}


def test_an_evaluation_without_episodes_of_a_task_has_no_rate():
    found = evaluated_tasks([evaluation(0, train={"a": []}), evaluation(1, train={"a": [1]})])
    assert found["a"]["change"] is None


def test_the_note_says_which_evaluations_are_missing():
    assert evaluation_note([BASE, MIDDLE, FINAL], 4) == (
        "Evaluations in this run: before training, after batch 4, after batch 8."
    )
    assert "has not reached its last evaluation" in evaluation_note([BASE, MIDDLE], 4)
    assert "the next evaluation is after batch 4" in evaluation_note([BASE], 4)
    assert "the next evaluation is at the end of training" in evaluation_note([BASE], 0)
    assert evaluation_note([], 4) == "The run has no evaluation yet."
