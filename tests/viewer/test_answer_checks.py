"""Warnings about answers that do not depend on the task."""

from arpo.viewer.pages.report import answer_warnings
from played_episodes import played

INSTRUCTIONS = {f"t{number}": f"Open file {number}" for number in range(16)}


def warnings(*by_phase, solved=False, instructions=INSTRUCTIONS):
    """`by_phase` has the answers of each task, for each batch."""
    run = [
        played(f"batch{batch}-{index}-0", f"t{index}", solved=solved)
        for batch, answers in enumerate(by_phase)
        for index in range(len(answers))
    ]
    texts = {
        f"batch{batch}-{index}-0": answers
        for batch, of_batch in enumerate(by_phase)
        for index, answers in enumerate(of_batch)
    }
    return answer_warnings(run, lambda task: instructions.get(task, ""), texts.__getitem__)


VARIED = [
    [
        "Thought: Open it\nAction: click(start_box='(1,1)')",
        f"Action: type(content='{n}')",
        "Action: finished()",
    ]
    for n in range(16)
]
SAME = [["Action: click(start_box='(1,1)')", "Action: wait()", "Action: finished()"]] * 16


def test_a_common_first_click_is_no_reason_to_warn():
    assert warnings(VARIED) == []


def test_equal_answers_to_different_tasks_are():
    (text,) = warnings(VARIED, SAME)
    assert text.startswith(
        "The answers do not depend on the task. In the newest episodes (training batch 2), 16 of"
    )
    assert "16 of 16 tasks with different instructions begin with the same actions" in text
    assert "lower optim.lr or a higher loss.kl" in text


def test_the_advice_is_another_one_if_it_was_so_from_the_start():
    (text,) = warnings(SAME, SAME)
    assert "It was so from the start of the run" in text and "model.prompt" in text


def test_two_openings_for_all_tasks_are_too_few():
    other = ["Action: wait()", "Action: wait()", "Action: finished()"]
    assert len(warnings(VARIED, [*SAME[:8], *[other] * 8])) == 1


def test_one_action_for_everything():
    (text,) = warnings(VARIED, [["Action: wait()"] * 15] * 16)
    assert text.startswith("The model nearly always gives the same answer.")
    assert "(training batch 2), 100% of 240 answers are 'wait()'." in text


def test_no_warning_without_evidence():
    assert warnings() == []
    assert warnings(VARIED, SAME, solved=True) == []  # the same answer solves all of them
    assert warnings(SAME[:7]) == []  # too few tasks
    assert warnings(SAME, instructions=dict.fromkeys(INSTRUCTIONS, "Open the file")) == []  # one instruction
