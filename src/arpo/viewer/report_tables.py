"""Tables of the report: success by task, ends of episodes, faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from arpo.reporting.display import count_noun, format_rate
from arpo.reporting.numbers import NO_VALUE, format_points
from arpo.storage.codec import BATCH, EVALUATED
from arpo.types import Failure
from arpo.viewer.played import Played, by_task, phase_title, phases
from arpo.viewer.task_table import Evaluation, TaskRow

MAX_FAULTS = 20  # different messages
MAX_MESSAGE = 1000  # characters

EndOf = Callable[[Played], tuple[str, str]]  # reason and detail


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]], css_class: str = "") -> str:
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join("<tr>" + "".join(f"<td>{_cell(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<table class="{css_class}"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>'


def _cell(text: str) -> str:
    """A newline separates a value from a detail in small print."""
    value, found, detail = text.partition("\n")
    return escape(value) + (f"<small>{escape(detail)}</small>" if found else "")


def tasks_html(
    rows: Sequence[TaskRow],
    evaluations: Sequence[Evaluation],
    instructions: Mapping[str, str],
    played: Sequence[Played],
) -> str:
    """Success rate of each task before and after training, and in training."""
    if not rows:
        return ""
    compared = len(evaluations) > 1
    trained = by_task(one for one in played if one.phase.startswith(BATCH))
    cells = []
    for row in rows:
        episodes = trained.get(row.task, ())
        solved = sum(one.solved for one in episodes)
        cells.append(
            (
                f"{_one_line(instructions.get(row.task, ''))}\n{row.task}",
                row.task_set,
                _rate(row.before),
                *([_rate(row.after), _points(row.change)] if compared else []),
                f"{solved:,} of {len(episodes):,}" if episodes else NO_VALUE,
            )
        )
    after = (f"after batch {evaluations[-1].step:,}", "change") if compared else ()
    order = "largest gain first" if compared else "hardest first"
    head = ("task", "task set", "before", *after, "solved in training")
    return (
        f'<h2>Success rate by task <span class="dim">{count_noun(len(rows), "task")}, {order}</span></h2>'
        f'<div class="scroll tasks">{table_html(head, cells)}</div>'
    )


def _rate(scores: Sequence[float] | None) -> str:
    return NO_VALUE if scores is None else format_rate(sum(scores), len(scores))


def _points(change: float | None) -> str:
    return NO_VALUE if change is None else f"{format_points(change)} points"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def endings_html(played: Sequence[Played], end_of: EndOf) -> str:
    """Why the episodes of the first and the last batch ended; without batches, those of evaluations."""
    by_phase = phases(played, BATCH) or phases(played, EVALUATED) or phases(played, "")
    if not by_phase:
        return ""
    first, last = next(iter(by_phase)), list(by_phase)[-1]
    shown = {
        phase: [(one, *end_of(one)) for one in by_phase[phase]] for phase in dict.fromkeys((first, last))
    }
    counts = {phase: Counter(reason for _, reason, _ in ends) for phase, ends in shown.items()}
    ends = [end for of_phase in shown.values() for end in of_phase]
    solved = {reason: one.solved for one, reason, _ in ends}
    rows = [
        (
            reason + _most_frequent(detail for _, other, detail in ends if other == reason),
            "solved" if solved[reason] else "failed",
            *(format_rate(counts[phase][reason], len(shown[phase])) for phase in shown),
        )
        for reason in sorted(solved, key=lambda reason: (solved[reason], -counts[last][reason], reason))
    ]
    head = ("end of the episode", "result", *map(phase_title, shown))
    return f'<h2>Why episodes failed</h2><div class="scroll tasks">{table_html(head, rows)}</div>'


def _most_frequent(details: Iterable[str]) -> str:
    """The most frequent message, as small print."""
    common = Counter(filter(None, details)).most_common(1)
    return f"\nmost frequent message: {_shorten(common[0][0])}" if common else ""


def faults_html(failures: Sequence[Failure]) -> str:
    """Episodes that an environment or engine fault ended, by message. They have no score."""
    if not failures:
        return ""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        groups.setdefault((failure.where, failure.message), []).append(failure)
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))[:MAX_FAULTS]
    rows = [
        (
            f"{len(members):,}",
            where,
            f"{len({failure.task_id for failure in members}):,}\nfor example {members[0].task_id}",
            _shorten(message),
        )
        for (where, message), members in largest
    ]
    omitted = f", the {MAX_FAULTS} most frequent messages" if len(groups) > MAX_FAULTS else ""
    return (
        f'<h2>Faults <span class="dim">{count_noun(len(failures), "episode")} ended by a fault of the '
        f"environment or the engine{omitted}</span></h2>"
        '<p class="dim lead">These episodes have no score and are not trained on. All messages are in '
        "failures.jsonl. <code>arpo check-env</code> tests an environment.</p>"
        f'<div class="scroll tasks words">{table_html(("episodes", "call", "tasks", "message"), rows)}</div>'
    )


def _shorten(message: str) -> str:
    text = _one_line(message)
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"
