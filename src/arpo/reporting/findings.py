"""What is wrong with a run, in words. The report shows it; `arpo train` prints it when it becomes true."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arpo.config.checks import shorten
from arpo.reporting.display import count_noun
from arpo.reporting.numbers import format_number
from arpo.storage.codec import BATCH, COLLECTED, EVALUATED, GROUP, PLAYED, SEED

MIN_TASKS = 8  # with fewer tasks, equal answers may be chance
OPENING = 3  # answers of an episode that are compared: many tasks begin with the same click
COMMON_OPENING = 0.5  # share of tasks with the same opening
DISTINCT_OPENINGS = 0.125  # different openings per task
COMMON_ACTION = 0.8  # share of answers with the same action
UNREADABLE = 0.5  # share of tasks whose episode has an answer that does not parse or is cut
MOSTLY_SOLVED = 0.5
LISTED_BATCHES = 8
NUMBERED_PHASE = re.compile(rf"({BATCH}|{EVALUATED})(\d{{1,9}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`name` is its kind: a run prints each kind once while it trains."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answers of one episode. `malformed`: one of them does not parse or is cut."""

    solved: bool
    malformed: bool
    answers: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStats:
    """How much the answers of one phase vary between tasks with different instructions."""

    phase: str  # its title: "training batch 3"
    tasks: int
    solved: int
    openings: int  # different sequences of the first OPENING actions
    common_opening: int  # tasks with the most frequent one
    answers: int
    common_action: str
    common_actions: int
    malformed: int = 0  # tasks; checkpoints of earlier versions do not have it

    @property
    def unreadable(self) -> bool:
        return self._conclusive and self.malformed >= UNREADABLE * self.tasks

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
    def faulty(self) -> bool:
        return self.unreadable or self.collapsed or self.same_for_all_tasks

    @property
    def _conclusive(self) -> bool:
        return self.tasks >= MIN_TASKS and self.solved < MOSTLY_SOLVED * self.tasks


def phase_title(phase: str) -> str:
    """eval0: evaluation before training; eval12: evaluation after batch 12; batch1: training batch 1."""
    match = NUMBERED_PHASE.fullmatch(phase)
    if not match:
        titles = {GROUP: "training, in no batch", COLLECTED: "collected", PLAYED: "arpo play", SEED: "seeds"}
        return titles.get(phase, phase)
    number = int(match[2])
    if match[1] == BATCH:
        return f"training batch {number:,}"
    return f"evaluation after batch {number:,}" if number else "evaluation before training"


def answer_stats(phase: str, episodes: Mapping[str, Answered]) -> AnswerStats:
    """Statistics of one episode for each instruction, the key of `episodes`."""
    actions = [[_action(answer) for answer in one.answers] for one in episodes.values()]
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
        malformed=sum(one.malformed for one in episodes.values()),
    )


def answer_findings(first: AnswerStats, newest: AnswerStats) -> list[Finding]:
    """Findings about the newest phase. Their advice depends on the first one: was it so before training?

    The untrained model plays the first batch too, at another temperature than the first evaluation. If only
    the batch has a fault, that is chance.
    """
    if newest.phase == phase_title(f"{BATCH}1") and not first.faulty:
        return []
    phase = f"({newest.phase})"
    if newest.unreadable:
        text = (
            f"The answers cannot be read. In the newest episodes {phase}, {newest.malformed:,} of "
            f"{newest.tasks:,} tasks with different instructions have an answer without a valid action, or "
            f"one that is cut at rollout.max_answer_tokens. {_reading_advice(first.unreadable)}"
        )
        return [Finding(name="unreadable answers", text=text)]
    if newest.collapsed:
        share = format_number(newest.common_actions / newest.answers, percent=True)
        text = (
            f"The model nearly always gives the same answer. In the newest episodes {phase}, {share} of "
            f"{newest.answers:,} answers are {shorten(newest.common_action)}. {_advice(first.collapsed)}"
        )
        return [Finding(name="one answer", text=text)]
    if newest.same_for_all_tasks:
        text = (
            f"The answers do not depend on the task. In the newest episodes {phase}, "
            f"{newest.common_opening:,} of {newest.tasks:,} tasks with different instructions begin with the "
            f"same actions; together they begin in {count_noun(newest.openings, 'different way')}. "
            f"{_advice(first.same_for_all_tasks)}"
        )
        return [Finding(name="same answers", text=text)]
    return []


def _advice(from_start: bool) -> str:
    if from_start:
        return (
            "It was so from the start of the run. Read an episode (arpo view): does the prompt contain the "
            "instruction (model.prompt), does the screenshot show the task, and do the drawn actions hit the "
            "screen (model.dialect)?"
        )
    return (
        "It was different at the beginning of the run: training has destroyed the variety of answers. Train "
        "again with a lower optim.lr or a higher loss.kl."
    )


def _reading_advice(from_start: bool) -> str:
    if from_start:
        return (
            "It was so from the start of the run. Read an episode (arpo view): does model.dialect match the "
            "format of the answers, and is rollout.max_answer_tokens large enough?"
        )
    return (
        "It was different at the beginning of the run: training has damaged the answers. Train again with a "
        "lower optim.lr or a higher loss.kl."
    )


def _action(answer: str) -> str:
    """The action of an answer without its thought, or the whole answer if it has none."""
    thought, found, action = answer.partition("Action:")
    return (action if found else thought).strip()


def engine_findings(metrics: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Findings about the batches in which engine and learner disagreed, or were not compared."""
    batches = list(metrics)
    alarms = [record for record in batches if record.get("engine_alarm")]
    unseen = [record for record in batches if record.get("engine_tokens") == 0]
    untrained = sum(bool(record.get("untrained")) for record in alarms)
    disagreed = (
        "Engine and learner disagreed about the probabilities of the same tokens: engine_kl or stale_kl "
        f"exceeded its threshold in batch {_steps(alarms)}. Not trained on: {untrained:,} of {len(alarms):,}."
        " `arpo doctor --gap RUN` finds the cause."
    )
    not_compared = f"Engine and learner were not compared in batch {_steps(unseen)}."
    return [
        Finding(name=name, text=text)
        for name, text, found in (
            ("disagreement", disagreed, alarms),
            ("not compared", not_compared, unseen),
        )
        if found
    ]


def _steps(records: Sequence[Mapping[str, Any]]) -> str:
    listed = ", ".join(f"{record['step']:,}" for record in records[:LISTED_BATCHES])
    more = len(records) - LISTED_BATCHES
    return f"{listed} and {more:,} more" if more > 0 else listed
