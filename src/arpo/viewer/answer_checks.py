"""Warns when the answers do not depend on the task, or are always the same action.

Both checks look at the newest phase of a run (a batch or an evaluation), at one episode per task. They warn
only if most of these episodes failed: if few different answers solve the tasks, all is well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arpo.config.checks import shorten
from arpo.reporting.display import count_noun
from arpo.reporting.numbers import format_number
from arpo.viewer.played import Played, phase_title, phases

MIN_TASKS = 8  # with fewer tasks, equal answers may be chance
OPENING = 3  # answers of an episode that are compared: many tasks begin with the same click
COMMON_OPENING = 0.5  # share of tasks with the same opening
DISTINCT_OPENINGS = 0.125  # different openings per task
COMMON_ACTION = 0.8  # share of answers with the same action
MOSTLY_SOLVED = 0.5

ReadAnswers = Callable[[str], Sequence[str]]  # from an episode id
Instruction = Callable[[str], str]  # from a task id; "" if it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStats:
    """How much the answers of one phase vary between tasks with different instructions."""

    phase: str
    tasks: int
    solved: int
    openings: int  # different sequences of the first OPENING actions
    common_opening: int  # tasks with the most frequent one
    answers: int
    common_action: str
    common_actions: int

    @property
    def collapsed(self) -> bool:
        """Nearly all answers are one action."""
        return self._conclusive and self.common_actions >= COMMON_ACTION * self.answers

    @property
    def same_for_all_tasks(self) -> bool:
        return self._conclusive and (
            self.common_opening >= COMMON_OPENING * self.tasks
            or self.openings <= DISTINCT_OPENINGS * self.tasks
        )

    @property
    def _conclusive(self) -> bool:
        return self.tasks >= MIN_TASKS and self.solved < MOSTLY_SOLVED * self.tasks


def answer_stats(
    phase: str, played: Sequence[Played], instruction: Instruction, read: ReadAnswers
) -> AnswerStats:
    """Statistics of the first episode of each instruction: tasks with the same one count once."""
    episodes = {instruction(one.task) or one.task: one for one in reversed(played)}
    actions = [[_action(answer) for answer in read(one.id)] for one in episodes.values()]
    openings = Counter(tuple(sequence[:OPENING]) for sequence in actions)
    common = Counter(action for sequence in actions for action in sequence).most_common(1)
    return AnswerStats(
        phase=phase,
        tasks=len(episodes),
        solved=sum(one.solved for one in episodes.values()),
        openings=len(openings),
        common_opening=max(openings.values(), default=0),
        answers=sum(map(len, actions)),
        common_action=common[0][0] if common else "",
        common_actions=common[0][1] if common else 0,
    )


def answer_warnings(played: Sequence[Played], instruction: Instruction, read: ReadAnswers) -> list[str]:
    """Warnings about the newest phase. Their advice depends on the first phase: was it so before training?"""
    found = list(phases(played, "").items())
    if not found:
        return []
    first, last = (
        answer_stats(phase, of_phase, instruction, read) for phase, of_phase in (found[0], found[-1])
    )
    phase = f"({phase_title(last.phase)})"
    if last.collapsed:
        share = format_number(last.common_actions / last.answers, percent=True)
        return [
            f"The model nearly always gives the same answer. In the newest episodes {phase}, {share} of "
            f"{last.answers:,} answers are {shorten(last.common_action)}. {_advice(first.collapsed)}"
        ]
    if last.same_for_all_tasks:
        return [
            f"The answers do not depend on the task. In the newest episodes {phase}, {last.common_opening:,} "
            f"of {last.tasks:,} tasks with different instructions begin with the same actions; together they "
            f"begin in {count_noun(last.openings, 'different way')}. {_advice(first.same_for_all_tasks)}"
        ]
    return []


def _advice(from_start: bool) -> str:
    if from_start:
        return (
            "It was so from the start of the run. Read an episode below: does the prompt contain the "
            "instruction (model.prompt), does the screenshot show the task, and do the drawn actions hit the "
            "screen (model.coordinates)?"
        )
    return (
        "It was different at the beginning of the run: training has destroyed the variety of answers. Train "
        "again with a lower optim.lr or a higher loss.kl."
    )


def _action(answer: str) -> str:
    """The action of an answer without its thought, or the whole answer if it has none."""
    thought, found, action = answer.partition("Action:")
    return (action if found else thought).strip()
