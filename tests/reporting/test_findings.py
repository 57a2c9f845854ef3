"""Findings about the answers of a run."""

from __future__ import annotations

from collections.abc import Sequence

from arpo.reporting.findings import Answered, AnswerStats, answer_findings, answer_stats, engine_findings

Answers = Sequence[Sequence[str]]  # of each task
VARIED = [
    [
        "Thought: Open it\nAction: click(start_box='(1,1)')",
        f"Action: type(content='{n}')",
        "Action: finished()",
    ]
    for n in range(16)
]
SAME = [["Action: click(start_box='(1,1)')", "Action: wait()", "Action: finished()"]] * 16


def stats(phase: str, answers: Answers, *, solved: bool = False, malformed: int = 0) -> AnswerStats:
    """`malformed`: in the first ones of the episodes, an answer does not parse."""
    return answer_stats(
        phase,
        {
            f"Open file {n}": Answered(solved=solved, malformed=n < malformed, answers=one)
            for n, one in enumerate(answers)
        },
    )


def texts(first: Answers, newest: Answers, *, solved: bool = False) -> list[str]:
    phases = (
        stats("training batch 1", first, solved=solved),
        stats("training batch 2", newest, solved=solved),
    )
    return [finding.text for finding in answer_findings(*phases)]


def test_a_common_first_click_is_no_finding() -> None:
    assert texts(VARIED, VARIED) == []


def test_equal_answers_to_different_tasks() -> None:
    (text,) = texts(VARIED, SAME)
    assert text.startswith(
        "The answers do not depend on the task. In the newest episodes (training batch 2), 16 of"
    )
    assert "16 of 16 tasks with different instructions begin with the same actions" in text
    assert "lower optim.lr or a higher loss.kl" in text


def test_the_advice_is_another_one_if_it_was_so_from_the_start() -> None:
    (text,) = texts(SAME, SAME)
    assert "It was so from the start of the run" in text and "model.prompt" in text


def test_two_openings_for_all_tasks_are_too_few() -> None:
    other = ["Action: wait()", "Action: wait()", "Action: finished()"]
    assert len(texts(VARIED, [*SAME[:8], *[other] * 8])) == 1


def test_one_action_for_everything() -> None:
    (text,) = texts(VARIED, [["Action: wait()"] * 15] * 16)
    assert text.startswith("The model nearly always gives the same answer.")
    assert "(training batch 2), 100% of 240 answers are 'wait()'." in text


def test_answers_that_cannot_be_read() -> None:
    read, unread = stats("training batch 1", VARIED), stats("training batch 2", VARIED, malformed=8)
    (finding,) = answer_findings(read, unread)
    assert finding.text.startswith(
        "The answers cannot be read. In the newest episodes (training batch 2), 8 of 16 tasks"
    )
    assert "training has damaged the answers" in finding.text and "optim.lr" in finding.text
    (finding,) = answer_findings(unread, unread)
    assert "does model.dialect match the format" in finding.text
    assert answer_findings(read, stats("training batch 2", VARIED, malformed=7)) == []
    assert answer_findings(read, stats("training batch 2", VARIED, malformed=16, solved=True)) == []


def test_the_first_batch_is_played_before_training_and_cannot_be_its_fault() -> None:
    evaluated, faulty = (stats("evaluation before training", answers) for answers in (VARIED, SAME))
    first_batch, second_batch = (stats(f"training batch {number}", SAME) for number in (1, 2))
    assert answer_findings(evaluated, first_batch) == []
    (finding,) = answer_findings(evaluated, second_batch)
    assert "training has destroyed" in finding.text
    (finding,) = answer_findings(faulty, first_batch)
    assert "It was so from the start of the run" in finding.text


def test_no_finding_without_evidence() -> None:
    assert texts(VARIED, SAME, solved=True) == []  # the same answer solves all of them
    assert texts(SAME[:7], SAME[:7]) == []  # too few tasks


def test_a_long_list_of_batches_is_cut() -> None:
    (finding,) = engine_findings([{"step": step, "engine_alarm": 1.0} for step in range(1, 12)])
    assert "in batch 1, 2, 3, 4, 5, 6, 7, 8 and 3 more. Not trained on: 0 of 11." in finding.text
