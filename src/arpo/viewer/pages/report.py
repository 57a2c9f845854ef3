"""The page "Report" of a run, as JSON: `arpo view` shows it, and report.html has it as its first page.

Curves, tasks, faults, screenshots and the recipe are answers of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arpo.config import Config
from arpo.config.task_set_names import TRAIN, TRAINING_EPISODES, in_order, set_label
from arpo.evaluation.scoring import over_same_tasks, training_episodes
from arpo.reporting.display import format_rate, success_rows, total_rows
from arpo.reporting.metrics import EVALUATION, find_metric
from arpo.storage.codec import BATCH, EVALUATED
from arpo.viewer.answer_checks import ReadAnswers, answer_warnings
from arpo.viewer.outcomes import describe_end
from arpo.viewer.pages.tasks import Evaluation, evaluation_note
from arpo.viewer.played import Played, phase_title, phases
from arpo.viewer.selection import Shown, choose_episodes

MAX_MESSAGE = 1000  # characters

# (title, labels by metric)
CHARTS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("Success rate of training episodes", {"success": "success rate"}),
    ("Reward", {"reward": "mean"}),
    ("Groups", {"rescued": "rescued by replay", "without_signal": "without signal"}),
    ("Staleness", {"staleness_mean": "mean", "staleness_max": "maximum"}),
    ("Dropped groups", {"dropped_groups": "groups"}),
    ("Loss", {"loss": "loss"}),
    ("Entropy", {"entropy": "nats per token"}),
    ("Clipped tokens", {"clip_fraction": "share of tokens"}),
    ("Log-probability gap between engine and learner", {"logprob_gap": "mean"}),
)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Everything that the report says about a run."""

    config: Config
    folder: str  # for commands
    metrics: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]  # {} until the run has ended
    evaluations: Sequence[Evaluation]
    played: Sequence[Played]
    instruction: Callable[[str], str]  # of a task; "" if it is not known
    is_infeasible: Callable[[str], bool]
    answers: ReadAnswers

    def end_of(self, one: Played) -> tuple[str, str]:
        """Why an episode ended: reason and detail."""
        return describe_end(
            one.stored,
            solved=one.solved,
            infeasible=self.is_infeasible(one.task),
            limits=self.config.rollout,
        )


def report_json(facts: RunFacts, episodes: str = "") -> Json:
    """`episodes` is the value of `arpo report --episodes`, such as "task:pool-040,failed:3"."""
    chosen = choose_episodes(facts.played, episodes)
    return {
        "finished": bool(facts.summary),
        "warnings": _warnings(facts),
        "success": _success(facts),
        "totals": total_rows(facts.summary or _summary_so_far(facts)),
        "evaluations": evaluation_note(facts.evaluations, facts.config.eval.every),
        "charts": [{"title": title, "metrics": dict(names)} for title, names in _charts(facts.metrics)],
        "endings": _endings(facts),
        "batches": _first_and_last(facts.played),
        "episodes": {
            "title": "Same tasks before and after training" if _all_pairs(chosen) else "Episodes",
            "note": _episodes_note(chosen, episodes, facts),
            "shown": [[one.id for one in shown] for shown in chosen],
        },
    }


def explain_metrics(names: Iterable[str], config: Config) -> Json:
    """Title, explanation and unit of metrics, by name."""
    return {name: _explain(name, config) for name in names if name != "step"}


def _explain(name: str, config: Config) -> Json:
    if metric := find_metric(name):
        return {"title": metric.title, "explanation": metric.explanation, "percent": metric.percent}
    callback = config.plugins.callback
    unknown = "Not a metric of this version of ARPO."
    text = f"Returned by plugins.callback = {callback}." if callback else unknown
    return {"title": name, "explanation": text, "percent": False}


def _warnings(facts: RunFacts) -> list[str]:
    found = answer_warnings(facts.played, facts.instruction, facts.answers)
    return found + _engine_warnings(facts.metrics, facts.config.train.engine_kl_alarm)


def _engine_warnings(metrics: Sequence[Mapping[str, Any]], threshold: float) -> list[str]:
    """A warning about the batches in which engine and learner disagreed."""
    alarms = [record for record in metrics if record.get("engine_alarm")]
    if not alarms:
        return []
    untrained = sum(bool(record.get("untrained")) for record in alarms)
    batches = ", ".join(f"{record['step']:,}" for record in alarms)
    return [
        "Engine and learner disagreed about the probabilities of the same tokens: engine_kl exceeded "
        f"train.engine_kl_alarm ({threshold:g}) in batch {batches}. Not trained on: {untrained:,} of "
        f"{len(alarms):,}."
    ]


def _success(facts: RunFacts) -> Json:
    """Success rates of the summary, or of the run so far."""
    after = "after"
    if not facts.summary and facts.evaluations and facts.evaluations[-1].step:
        after = f"after batch {facts.evaluations[-1].step:,}"
    rows = success_rows(facts.summary or _summary_so_far(facts))
    return {"heads": ["", "before", after, "change"], "rows": rows}


def _summary_so_far(facts: RunFacts) -> Json:
    """The content of summary.json for an unfinished run: its first and its newest evaluation."""
    landmarks = {"base": dict(facts.evaluations[0].by_set)} if facts.evaluations else {}
    if len(facts.evaluations) > 1:
        landmarks["base"], landmarks["final"] = over_same_tasks(
            landmarks["base"], facts.evaluations[-1].by_set
        )
    batches = [record for record in facts.metrics if record.get("step")]
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
        "left_out": {name: sorted(score.left_out) for name, score in landmarks.get("final", {}).items()},
        "episodes": newest.get("episodes"),
        "failures": newest.get("failures"),
        "groups": groups,
    }


def _charts(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, str]]]:
    """The charts at the top: (title, labels by metric)."""
    names = (name for record in metrics for name in record if name.startswith(EVALUATION))
    sets = in_order(name.removeprefix(EVALUATION) for name in names)
    evaluated = {f"{EVALUATION}{name}": set_label(name) for name in sets}
    return [("Success rate in evaluations", evaluated), *CHARTS]


def _endings(facts: RunFacts) -> Json:
    """Why the episodes of the first and the last batch ended; without batches, those of evaluations."""
    by_phase = phases(facts.played, BATCH) or phases(facts.played, EVALUATED) or phases(facts.played, "")
    ends = [by_phase[phase] for phase in (next(iter(by_phase)), list(by_phase)[-1])] if by_phase else []
    shown = {members[0].phase: [(one, *facts.end_of(one)) for one in members] for members in ends}
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


def _first_and_last(played: Sequence[Played]) -> list[int]:
    """The first and the last batch with episodes, counted from 1."""
    batches = {one.trained_in + 1 for one in played if one.trained_in is not None}
    return sorted({min(batches), max(batches)}) if batches else []


def _most_frequent(details: Iterable[str]) -> str:
    common = Counter(filter(None, details)).most_common(1)
    text = " ".join(common[0][0].split()) if common else ""
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def _all_pairs(chosen: Sequence[Shown]) -> bool:
    return bool(chosen) and all(len(shown) == 2 for shown in chosen)


def _episodes_note(chosen: Sequence[Shown], wanted: str, facts: RunFacts) -> str:
    pruned = sum(not one.shown for one in facts.played)
    deleted = "their screenshots were deleted (store.prune_every)"
    left_out = f"; {pruned:,} of {len(facts.played):,} stored episodes cannot be shown: {deleted}"
    return _choice(chosen, wanted, facts.folder) + (left_out if pruned else "")


def _choice(chosen: Sequence[Shown], wanted: str, folder: str) -> str:
    if wanted:
        return f"chosen with --episodes {wanted}"
    hint = f"choose others with arpo report {folder} --episodes failed:3,task:ID"
    if not chosen:
        return "none is stored with screenshots"
    return hint if _all_pairs(chosen) else f"no task was played in two phases yet; {hint}"
