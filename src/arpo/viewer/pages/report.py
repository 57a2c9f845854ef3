"""Page "Report": a whole run on one page. report.html has it as its first page.

Curves, tasks, faults, screenshots and the recipe are answers of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict

from arpo.comparison.results import FINAL
from arpo.config.checks import shorten
from arpo.config.recipe import nearest
from arpo.config.task_set_names import TRAIN, TRAINING_EPISODES, in_order, set_label
from arpo.errors import UserError
from arpo.evaluation.scoring import change_intervals, over_same_tasks, training_episodes
from arpo.reporting.display import CHANGE, count_noun, format_rate, success_rows, total_rows
from arpo.reporting.findings import (
    Answered,
    AnswerStats,
    Finding,
    answer_findings,
    answer_stats,
    engine_findings,
    phase_title,
)
from arpo.reporting.metrics import EVALUATION
from arpo.storage.codec import BATCH, EVALUATED
from arpo.types import StopReason
from arpo.viewer.pages.episode import describe_end
from arpo.viewer.pages.episodes import Episode, read_episodes
from arpo.viewer.pages.tasks import Evaluation, before_and_after, read_evaluations
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Json

MAX_MESSAGE = 1000  # characters
# (title, labels by metric)
CHARTS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("Success rate of training episodes", {"success": "success rate"}),
    ("Reward", {"reward": "mean"}),
    ("Groups", {"rescued": "rescued by replay", "without_signal": "without signal"}),
    ("Staleness", {"staleness_mean": "mean", "staleness_max": "maximum"}),
    ("Stale tokens", {"stale_fraction": "share of tokens"}),
    ("Loss", {"loss": "loss"}),
    ("Entropy", {"entropy": "nats per token"}),
    ("Clipped tokens", {"clip_fraction": "share of tokens"}),
    ("Log-probability gap between engine and learner", {"logprob_gap": "mean"}),
)
OPTION = "--episodes"
PAIRS = "before-after"
PER_ITEM = 6
KINDS: Mapping[str, Callable[[Episode], bool]] = {
    "solved": lambda one: one.solved,
    "failed": lambda one: not one.solved,
    "replayed": lambda one: bool(one.replayed_in),
    "parse-errors": lambda one: one.stop == StopReason.PARSE_ERROR,
}
# Preferred outcomes of a pair (solved before, solved after), in turn.
_OUTCOMES = ((False, True), (True, False), (False, True), (False, False))

Shown = tuple[Episode, ...]  # one episode, or a task's episodes before and after


def report_page(run: RunSource, wanted: str = "") -> Json:
    """`wanted` is the value of `arpo report --episodes`, such as "task:pool-040,failed:3"."""
    played, evaluations = read_episodes(run, "ORDER BY n"), read_evaluations(run)
    chosen = choose_episodes(played, wanted)
    paired = bool(chosen) and all(len(shown) == 2 for shown in chosen)
    so_far = _summary_so_far(run.metrics.rows, evaluations)
    summary = (
        {"intervals": so_far["intervals"], **run.summary}
        if run.summary
        else {
            **so_far,
            "changes": [asdict(change) for change in run.changes],
        }
    )
    after = "after"
    if not run.summary and evaluations and evaluations[-1].step:
        after = f"after batch {evaluations[-1].step:,}"
    return {
        "finished": bool(run.summary),
        "warnings": [finding.text for finding in report_findings(run, played)],
        "gap": run.gap(),
        "success": {"heads": ["", "before", after, CHANGE], "rows": success_rows(summary)},
        "totals": total_rows(summary),
        "evaluations": evaluation_note(evaluations, run.config.eval.every),
        "charts": [{"title": title, "metrics": names} for title, names in _charts(run.metrics.rows)],
        "endings": _endings(run, played),
        "batches": _end_batches(played),
        "episodes": {
            "title": "Same tasks before and after training" if paired else "Episodes",
            "note": _choice(chosen, paired, wanted, run.identity.shown) + _left_out(played),
            "shown": [[one.episode for one in shown] for shown in chosen],
        },
    }


def report_findings(run: RunSource, played: Sequence[Episode]) -> list[Finding]:
    """What is wrong with the run; `arpo train` prints the same at its end."""
    phases = list(_phases(played).items())
    stats = [_phase_answers(run, *phase) for phase in (*phases[:1], *phases[-1:])]
    answers = answer_findings(*stats) if stats else []
    return answers + engine_findings(run.metrics.rows)


def _phase_answers(run: RunSource, phase: str, played: Sequence[Episode]) -> AnswerStats:
    """Statistics of the first episode of each instruction: tasks with the same one count once."""
    first = {run.instruction(one.task) or one.task: one for one in reversed(played)}
    answers = {
        text: Answered(solved=one.solved, malformed=one.malformed, answers=run.answers(one.episode))
        for text, one in first.items()
    }
    return answer_stats(phase_title(phase), answers)


def _summary_so_far(metrics: Sequence[Json], evaluations: Sequence[Evaluation]) -> Json:
    """The content of summary.json for an unfinished run: its first and its newest evaluation."""
    landmarks = {"base": dict(evaluations[0].by_set)} if evaluations else {}
    if len(evaluations) > 1:
        landmarks["base"], landmarks["final"] = over_same_tasks(landmarks["base"], evaluations[-1].by_set)
    batches = [record for record in metrics if record.get("step")]
    newest = batches[-1] if batches else {}
    groups = {
        total: sum(record.get(name) or 0 for record in batches)
        for total, name in (("total", "groups"), ("without_signal",) * 2, ("rescued",) * 2)
        if name in newest
    }
    return {
        "success": {
            when: {name: score.rate for name, score in sets.items()} for when, sets in landmarks.items()
        },
        "counts": {
            when: {name: (score.successes, score.episodes) for name, score in sets.items()}
            for when, sets in landmarks.items()
        },
        **({} if TRAIN in landmarks.get("base", {}) else {TRAINING_EPISODES: training_episodes(batches)}),
        "intervals": change_intervals(landmarks["base"], landmarks["final"]) if "final" in landmarks else {},
        "left_out": {name: sorted(score.left_out) for name, score in landmarks.get("final", {}).items()},
        "episodes": newest.get("episodes"),
        "failures": newest.get("failures"),
        "groups": groups,
    }


def _charts(metrics: Sequence[Json]) -> list[tuple[str, Mapping[str, str]]]:
    """The charts at the top: (title, labels by metric)."""
    names = (name for record in metrics for name in record if name.startswith(EVALUATION))
    sets = in_order(name.removeprefix(EVALUATION) for name in names)
    evaluated = {f"{EVALUATION}{name}": set_label(name) for name in sets}
    return [("Success rate in evaluations", evaluated), *CHARTS]


def _phases(played: Iterable[Episode], kind: str = "") -> dict[str, list[Episode]]:
    """Episodes by phase, in the order of the run. `kind` is BATCH, EVALUATED, or "" for all phases."""
    found: dict[str, list[Episode]] = {}
    for one in played:
        if one.phase.startswith(kind):
            found.setdefault(one.phase, []).append(one)
    return found


def _endings(run: RunSource, played: Sequence[Episode]) -> Json:
    """Why the episodes of the first and the last batch ended; without batches, those of evaluations."""

    def end_of(one: Episode) -> tuple[str, str]:
        infeasible = run.texts.is_infeasible(one.task)
        return describe_end(one, solved=one.solved, infeasible=infeasible, limits=run.config.rollout)

    by_phase = list((_phases(played, BATCH) or _phases(played, EVALUATED) or _phases(played)).items())
    shown = {
        phase: [(one, *end_of(one)) for one in found] for phase, found in (*by_phase[:1], *by_phase[-1:])
    }
    counts = {phase: Counter(reason for _, reason, _ in found) for phase, found in shown.items()}
    flat = [end for found in shown.values() for end in found]
    solved = {reason: one.solved for one, reason, _ in flat}
    last = next(reversed(counts.values()), Counter[str]())
    return {
        "phases": [phase_title(phase) for phase in shown],
        "rows": [
            {
                "end": reason,
                "detail": _most_frequent(detail for _, other, detail in flat if other == reason),
                "solved": solved[reason],
                "rates": [format_rate(counts[phase][reason], len(shown[phase])) for phase in shown],
            }
            for reason in sorted(solved, key=lambda reason: (solved[reason], -last[reason], reason))
        ],
    }


def _most_frequent(details: Iterable[str]) -> str:
    common = Counter(filter(None, details)).most_common(1)
    text = " ".join(common[0][0].split()) if common else ""
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def _end_batches(played: Sequence[Episode]) -> list[int]:
    """The first and the last batch with episodes, counted from 1."""
    batches = {one.batch for one in played if one.batch is not None}
    return sorted({min(batches), max(batches)}) if batches else []


def _choice(chosen: Sequence[Shown], paired: bool, wanted: str, folder: str) -> str:
    if wanted:
        return f"chosen with --episodes {wanted}"
    hint = f"choose others with arpo report {folder} --episodes failed:3,task:ID"
    if not chosen:
        return "none is stored with screenshots"
    return hint if paired else f"no task was played in two phases yet; {hint}"


def _left_out(played: Sequence[Episode]) -> str:
    pruned = sum(not one.shown for one in played)
    deleted = "their screenshots were deleted (store.prune_every)"
    return f"; {pruned:,} of {len(played):,} stored episodes cannot be shown: {deleted}" if pruned else ""


def evaluation_note(evaluations: Sequence[Evaluation], every: int) -> str:
    """Which evaluations the run folder has, and what is missing."""
    if not evaluations:
        return "The run has no evaluation yet."
    steps = [f"after batch {one.step:,}" if one.step else "before training" for one in evaluations]
    listed = f"Evaluations in this run: {', '.join(steps)}."
    if evaluations[-1].landmark == FINAL:
        return listed
    if len(evaluations) == 1:
        when = f"after batch {every:,}" if every else "at the end of training"
        return f"{listed} There is nothing to compare it with yet: the next evaluation is {when}."
    return f"{listed} The run has not reached its last evaluation: 'after' is the newest one."


def choose_episodes(played: Sequence[Episode], wanted: str = "") -> list[Shown]:
    """The episodes to show. `wanted` is the value of --episodes: items separated by commas; "": the default.

    The default is PER_ITEM tasks before and after. Without such tasks: first and last successes and failures.
    Raises UserError for an item that matches no episode.
    """
    available = [one for one in played if one.shown]
    if not wanted:
        return _choose_pairs(available, PER_ITEM) or [
            (one,)
            for name in ("solved", "failed")
            for one in _first_and_last([one for one in available if KINDS[name](one)], PER_ITEM)
        ]
    chosen: dict[tuple[str, ...], Shown] = {}
    for item in wanted.split(","):
        for shown in _matching(item.strip(), played, available):
            chosen.setdefault(tuple(one.episode for one in shown), shown)
    return list(chosen.values())


def _matching(item: str, played: Sequence[Episode], available: Sequence[Episode]) -> list[Shown]:
    ids = {one.episode: one for one in available}
    if item in ids:
        return [(ids[item],)]
    if any(one.episode == item for one in played):
        raise UserError(
            f"{OPTION} {item}: its screenshots were deleted (store.prune_every): choose another episode"
        )
    if item.startswith("task:"):
        return [(one,) for one in _of_task(item, available)]
    name, count = _with_count(item)
    if name == PAIRS:
        found = _choose_pairs(available, count)
    elif name in KINDS:
        found = [(one,) for one in _first_and_last([one for one in available if KINDS[name](one)], count)]
    elif re.match(r"(batch|eval|collect)\d*-", item):
        raise UserError(f"{OPTION} {item}: no such episode{_nearest_or_some(item, list(ids))}")
    else:
        raise UserError(
            f"{OPTION} {shorten(item)}: unknown. Write an episode id, task:ID, {', '.join(KINDS)} or "
            f"{PAIRS}, for example failed:3"
        )
    if not found:
        raise UserError(f"{OPTION} {item}: no episode matches. {_inventory(played, available)}")
    return found


def _of_task(item: str, available: Sequence[Episode]) -> list[Episode]:
    """Episodes of "task:ID" or "task:ID:COUNT". An id may contain colons."""
    tasks = _by_task(available)
    name, count = item.removeprefix("task:"), PER_ITEM
    if name not in tasks:
        name, count = _with_count(name)
    if name not in tasks:
        raise UserError(f"{OPTION} {item}: no episode of this task{_nearest_or_some(name, list(tasks))}")
    return _first_and_last(tasks[name], count)


def _with_count(item: str) -> tuple[str, int]:
    """Split "failed:3" into its parts."""
    name, found, number = item.rpartition(":")
    if not found:
        return item, PER_ITEM
    if not re.fullmatch(r"[1-9][0-9]{0,3}", number):
        raise UserError(
            f"{OPTION} {shorten(item)}: the number after the colon must be an integer from 1 to 9999"
        )
    return name, int(number)


def _nearest_or_some(name: str, names: Sequence[str]) -> str:
    if not names:
        return ": the run has no episodes with screenshots yet"
    close = nearest(name, names)
    return close if "did you mean" in close else f" (there are {len(names):,}: {', '.join(names[:3])}, …)"


def _inventory(played: Sequence[Episode], available: Sequence[Episode]) -> str:
    counts = ", ".join(f"{sum(map(test, available)):,} {name}" for name, test in KINDS.items())
    pruned = len(played) - len(available)
    deleted = f" {pruned:,} more have no screenshots (store.prune_every)." if pruned else ""
    tasks = count_noun(len(_by_task(available)), "task")
    pairs = len(_pairs(available))
    return f"The run has episodes of {tasks}: {counts}; {pairs:,} tasks {PAIRS}.{deleted}"


def _first_and_last(played: Sequence[Episode], count: int) -> list[Episode]:
    """`count` episodes: the first half of them from the beginning of the run, the others from its end."""
    if len(played) <= count:
        return list(played)
    last = count // 2
    return [*played[: count - last], *played[len(played) - last :]]


def _pairs(available: Sequence[Episode]) -> list[tuple[Episode, Episode]]:
    """The episodes of each task before and after."""
    return [pair for episodes in _by_task(available).values() if (pair := before_and_after(episodes))]


def _by_task(played: Iterable[Episode]) -> dict[str, list[Episode]]:
    found: dict[str, list[Episode]] = {}
    for one in played:
        found.setdefault(one.task, []).append(one)
    return found


def _choose_pairs(available: Sequence[Episode], count: int) -> list[Shown]:
    """Pairs of different outcomes: tasks that the model learned, forgot, or still fails."""
    left: dict[tuple[bool, bool], list[Shown]] = {}
    for before, after in _pairs(available):
        left.setdefault((before.solved, after.solved), []).append((before, after))
    chosen: list[Shown] = []
    while len(chosen) < count and any(left.get(outcome) for outcome in _OUTCOMES):
        chosen += [left[outcome].pop(0) for outcome in _OUTCOMES if left.get(outcome)]
    return (chosen + left.get((True, True), []))[:count]
