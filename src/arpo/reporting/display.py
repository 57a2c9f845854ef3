"""Progress output of a run, and the table of results at its end.

`open_display` chooses: on a terminal, a live progress bar with the latest metrics; otherwise plain lines.
LogDisplay logs notes. A display only receives data. It measures rates and remaining time with its own clock.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from arpo.config.task_set_names import (
    HELDOUT,
    TRAIN,
    TRAINING_EPISODES,
    explain_heldout,
    in_order,
    set_label,
)
from arpo.reporting.numbers import NO_VALUE, format_change, format_count, unsigned_zero
from arpo.reporting.statistics import change_of_counts
from arpo.storage.codec import parse_changes
from arpo.types import Failure

# The displayed metrics of a batch: name, label, format.
BATCH_METRICS = (
    ("success", "success", "{:.1%}"),
    ("reward", "reward", "{:+.3f}"),
    ("judge_false_positives", "judge's false successes", "{:.0%}"),
    ("rescued", "rescued", "{:.0f}"),
    ("without_signal", "no signal", "{:.0f}"),
    ("loss", "loss", "{:+.4f}"),
    ("clip_fraction", "clipped", "{:.2%}"),
    ("entropy", "entropy", "{:.3f}"),
    ("logprob_gap", "gap", "{:.1e}"),
    ("staleness_mean", "staleness", "{:.2f}"),
)

CHANGE = "change (95% interval)"
MIN_KIND_EPISODES, SHOWN_KINDS = 8, 3  # of the kinds of tasks in the summary


@dataclass(slots=True, kw_only=True)
class PartProgress:
    """Progress of one part (a domain) of an evaluation. `ended` includes failed episodes, `played` does not.

    >>> PartProgress(name="chrome", total=46, ended=10, played=9, successes=3.0)
    """

    name: str
    total: int
    ended: int = 0
    played: int = 0
    successes: float = 0.0

    def add(self, score: float | None) -> None:
        """Count an episode that has ended. `score` is None if it failed."""
        self.ended += 1
        if score is not None:
            self.played += 1
            self.successes += score


class Display:
    """Receives the progress of a run: `begin`, then `episode_done` per episode and `batch` per batch.

    This one shows nothing. Subclasses show what they override.
    """

    def begin(self, title: str, total_episodes: int, done: int = 0) -> None:
        """Start a phase: training or an evaluation. `done` episodes were completed before a resume."""

    def episode_done(self) -> None:
        """One more episode of the phase has ended."""

    def batch(self, step: int, metrics: Mapping[str, float]) -> None:
        """Batch `step` was trained."""

    def evaluation(self, name: str, successes: float, episodes: int) -> None:
        """A task set was evaluated."""

    def part_progress(self, parts: Sequence[PartProgress]) -> None:
        """Called with all parts whenever one of them has changed."""

    def note(self, text: str) -> None:
        """A message for the user."""

    def mention(self, text: str) -> None:
        """A message for those who watch, of no use in a log."""
        self.note(text)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Show the results of the run, the content of summary.json."""

    def close(self) -> None:
        """The run has ended."""


class LogDisplay(Display):
    """Logs notes as warnings, which Python prints to stderr by default. Shows no progress."""

    def note(self, text: str) -> None:
        logging.getLogger("arpo").warning("%s", text)

    def mention(self, text: str) -> None:
        """Not logged."""


class Pace:
    """Episodes per second and remaining time. Ignores the episodes before a resume."""

    def __init__(self, total: int, done: int, clock: Callable[[], float]) -> None:
        self.total, self.done = total, done
        self._first, self._clock, self._began = done, clock, clock()

    @property
    def rate(self) -> float:
        """Episodes per second; 0 before the first one."""
        elapsed = self._clock() - self._began
        return (self.done - self._first) / elapsed if elapsed > 0 else 0.0

    @property
    def remaining(self) -> str:
        return format_duration((self.total - self.done) / self.rate) if self.rate else "?"


class PlainDisplay(Display):
    """Prints lines: one per batch, per 10% of a phase, per completed part and per note."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._completed: set[str] = set()
        self._title, self._pace = "", Pace(0, 0, clock)

    def begin(self, title: str, total_episodes: int, done: int = 0) -> None:
        self._title, self._pace = title, Pace(total_episodes, done, self._clock)
        self.note(f"{title}: {total_episodes} episodes" + (f", {done} already done" if done else ""))

    def episode_done(self) -> None:
        pace = self._pace
        pace.done += 1
        if pace.total >= 10 and pace.done * 10 // pace.total > (pace.done - 1) * 10 // pace.total:
            self.note(
                f"{self._title}: {pace.done}/{pace.total}, {pace.rate:.1f} episodes/s, {pace.remaining} left"
            )

    def batch(self, step: int, metrics: Mapping[str, float]) -> None:
        numbers = [
            *(f"{label} {text}" for label, text in format_metrics(metrics)),
            f"{self._pace.remaining} left",
        ]
        self.note(f"batch {step}: {', '.join(numbers)}")

    def evaluation(self, name: str, successes: float, episodes: int) -> None:
        self.note(f"{name}: {format_rate(successes, episodes)}")

    def part_progress(self, parts: Sequence[PartProgress]) -> None:
        for part in parts:
            if part.ended == part.total and part.name not in self._completed:
                self._completed.add(part.name)
                self.note(f"{part.name}: {format_rate(part.successes, part.played)}")

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def summary(self, summary: Mapping[str, Any]) -> None:
        console = Console(file=self._stream, width=100, highlight=False, color_system=None)
        console.print(_summary_table(summary))


class LiveDisplay(Display):
    """A progress bar of the phase above the metrics of the newest batch."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._pace = Pace(0, 0, clock)
        self._numbers = Table(box=None, show_edge=False, padding=(0, 2))
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
        )
        self._phase = self._bar.add_task("", total=None, pace="")
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)
        self._live.start()

    def begin(self, title: str, total_episodes: int, done: int = 0) -> None:
        self._pace = Pace(total_episodes, done, self._clock)
        self._bar.remove_task(self._phase)
        self._phase = self._bar.add_task(title, total=total_episodes, completed=done, pace="")

    def episode_done(self) -> None:
        self._pace.done += 1
        pace = f"{self._pace.rate:.1f}/s, {self._pace.remaining} left"
        self._bar.update(self._phase, completed=self._pace.done, pace=pace)

    def batch(self, step: int, metrics: Mapping[str, float]) -> None:
        numbers = Table(box=None, show_edge=False, padding=(0, 2))
        row = [("batch", str(step)), *format_metrics(metrics)]
        for label, _ in row:
            numbers.add_column(label, justify="right", header_style="dim")
        numbers.add_row(*[text for _, text in row])
        self._numbers = numbers

    def evaluation(self, name: str, successes: float, episodes: int) -> None:
        self.note(f"{name}: {format_rate(successes, episodes)}")

    def part_progress(self, parts: Sequence[PartProgress]) -> None:
        table = Table(box=None, show_edge=False, padding=(0, 2))
        for label in ("", "done", "success"):
            table.add_column(label, justify="right" if label else "left", header_style="dim")
        for part in parts:
            done = f"{part.ended}/{part.total}"
            table.add_row(part.name, done, format_rate(part.successes, part.played) if part.played else "")
        self._numbers = table

    def note(self, text: str) -> None:
        self._console.print(text, markup=False)

    def summary(self, summary: Mapping[str, Any]) -> None:
        self.close()
        self._console.print(_summary_table(summary))

    def close(self) -> None:
        self._bar.update(self._phase, visible=False)
        self._live.stop()

    def _render(self) -> Group:
        return Group(self._bar, self._numbers)


def open_display(stream: TextIO) -> Display:
    if stream.isatty():
        return LiveDisplay(Console(file=stream, highlight=False))
    return PlainDisplay(stream)


def note_cancel(display: Display, *, stored: bool = True) -> None:
    """Say what the first Ctrl-C does in an evaluation: it waits for no episode. `stored`: it is resumable."""
    state = "stored" if stored else "not stored"
    display.note(
        f"stopping: finished episodes are {state}; closing the environments, usually some seconds. Press "
        "Ctrl-C again to stop at once"
    )


def format_metrics(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Labels and formatted values of the displayed metrics, for example [("success", "41.2%"), …].

    A batch in which all episodes failed has no success rate: its value is "–".
    """
    return [
        (label, NO_VALUE if math.isnan(metrics[name]) else unsigned_zero(form.format(metrics[name])))
        for name, label, form in BATCH_METRICS
        if name in metrics
    ]


def format_rate(successes: float, episodes: int) -> str:
    """12.5 successes of 40 episodes: "31.2% (12.5/40)". A partial score counts as a fraction of a success."""
    return (
        f"{successes / episodes:.1%} ({format_count(successes)}/{episodes:,})" if episodes else "no episodes"
    )


def describe_failure(failure: Failure) -> str:
    """One line, for example "task pool-001, step: RuntimeError: the screen went dark (my_env.py:14)"."""
    first_line = failure.message.partition("\n")[0]
    place = f" ({failure.place})" if failure.place else ""
    return f"task {failure.task_id}, {failure.where}: {first_line[:400]}{place}"


def count_noun(number: int, noun: str) -> str:
    """The number with its noun: 1 seed, 3 seeds."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_duration(seconds: float) -> str:
    """3661 seconds: "1:01:01"; 61 seconds: "1:01"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_seconds(seconds: float) -> str:
    """An estimate: "1 s", "20 s", "3 min", "2 h"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{round(seconds / 3600)} h"


def success_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """One row per task set: label, success before and after training, change in points with its interval.

    For example ("training tasks", "25.0% (128/512)", "61.3% (314/512)", "+36.3 (+30.2 to +42.4)").
    summary["success"][when][tasks] is a fraction; `when` is base or final; `tasks` is the name of a task set.
    The optional summary["counts"] has the same keys and holds [successes, episodes], summary["intervals"] the
    interval of each change; a change without one is left out. If the training tasks never repeat, the first
    row has the training episodes of the first and the last batches: these are different tasks.
    """
    success = summary.get("success", {})
    found = in_order(name for when in ("base", "final") for name in success.get(when, {}))
    rows = _training_row(summary.get(TRAINING_EPISODES, {}))
    for tasks in found or ([] if rows else [TRAIN, HELDOUT]):
        before, after = (success.get(when, {}).get(tasks) for when in ("base", "final"))
        texts = [_rate_of(summary, when, tasks) for when in ("base", "final")]
        known = all(rate is not None and not math.isnan(rate) for rate in (before, after))
        interval = summary.get("intervals", {}).get(tasks)
        change = format_change(after - before, interval) if known and interval else ""
        rows.append((set_label(tasks), texts[0], texts[1], change))
    return rows


def _training_row(counted: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """The row of the training episodes; none if they are not counted."""
    if not counted:
        return []
    first, last = counted["first"], counted["last"]
    batches = "batch" if counted["batches"] == 1 else f"{counted['batches']} batches"
    label = f"training, first and last {batches}"
    return [(label, format_rate(*first), format_rate(*last), "different tasks")]


def _rate_of(summary: Mapping[str, Any], when: str, tasks: str) -> str:
    counts = summary.get("counts", {}).get(when, {}).get(tasks)
    if counts:
        return format_rate(*counts)
    fraction = summary.get("success", {}).get(when, {}).get(tasks)
    return NO_VALUE if fraction is None or math.isnan(fraction) else f"{fraction:.1%}"


def heldout_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and meaning of each evaluated held-out set."""
    evaluated = summary.get("success", {}).get("final", {})
    source = summary.get("recipe", {}).get("tasks", {}).get("heldout", "")
    return [(set_label(name), text) for name, text in explain_heldout(source).items() if name in evaluated]


def total_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Labels and values of the totals in the summary."""
    groups = summary.get("groups", {})
    rows = [
        ("episodes", summary.get("episodes")),
        ("groups", groups.get("total")),
        ("groups without signal", groups.get("without_signal")),
        ("groups rescued by replay", groups.get("rescued")),
        ("of these by a seed", groups.get("seeded")),
        ("episodes with a fault", summary.get("failures")),
        ("updates skipped", summary.get("skipped_updates") or None),
        ("batches not trained on", summary.get("untrained_batches") or None),
    ]
    texts = [(label, format_count(value)) for label, value in rows if value is not None]
    if left_out := sorted({task for tasks in summary.get("left_out", {}).values() for task in tasks}):
        names = ", ".join(left_out)
        texts.append((f"{count_noun(len(left_out), 'task')} without a verdict, not in the rates", names))
    texts += [("changed setting", str(change)) for change in parse_changes(summary)]
    texts += _learned_rows(summary.get("kinds", {}))
    if summary.get("seconds") is not None:
        texts.append(("time", format_duration(summary["seconds"])))
    return texts


def _learned_rows(kinds: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The kinds of tasks with the largest and the smallest change, if there are enough of them."""
    changes = [
        (last[0] / last[1] - first[0] / first[1], kind, first, last)
        for kind, last in kinds.get("final", {}).items()
        if (first := kinds.get("base", {}).get(kind)) and min(first[1], last[1]) >= MIN_KIND_EPISODES
    ]
    if len(changes) < 2 * SHOWN_KINDS:
        return []
    changes.sort(key=lambda change: (-change[0], change[1]))
    texts = [
        f"{kind} {first[0] / first[1]:.0%} → {last[0] / last[1]:.0%} ({_points(first, last)})"
        for _, kind, first, last in changes
    ]
    return [
        ("learned most", ", ".join(texts[:SHOWN_KINDS])),
        ("learned least", ", ".join(texts[: -SHOWN_KINDS - 1 : -1])),
    ]


def _points(before: Sequence[float], after: Sequence[float]) -> str:
    """The interval of a change in whole points: "+3 to +41"."""
    texts = (unsigned_zero(f"{100 * end:+.0f}") for end in change_of_counts(before, after))
    return " to ".join(texts).replace("-", "−")


def _summary_table(summary: Mapping[str, Any]) -> Group:
    success = Table(title="success", title_justify="left")
    for column in ("", "before", "after", CHANGE):
        success.add_column(column, justify="right" if column else "left")
    for row in success_rows(summary):
        success.add_row(*row)
    heldout = Table(box=None, show_header=False)
    for label, explained in heldout_rows(summary):
        heldout.add_row(label, explained)
    totals = Table(box=None, show_header=False)
    for pair in total_rows(summary):
        totals.add_row(*pair)
    return Group(success, heldout, totals)
