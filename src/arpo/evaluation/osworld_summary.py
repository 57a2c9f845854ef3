"""Where an evaluation stands: rates with intervals, the best of several trials, failures, what was skipped.

Read from the folder of results, so that it is the same whoever played them and when. Failures and skipped
tasks are counted beside the rates, never in them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from arpo.config import Config
from arpo.envs.osworld.needs import LOCAL
from arpo.evaluation.osworld_results import CONTEXT, Place, failures, read_terms, scores, stops, trials
from arpo.evaluation.statistics import pass_at, wilson
from arpo.types import Task

NOT_OSWORLD = (
    "played on light local desktops, which look other than OSWorld's machines and have other versions: "
    "these are not OSWorld scores"
)
T = TypeVar("T")
_ONE_FILE = re.compile(r"^file \S+ \(.*\) is")


def summarise(
    folder: Path,
    config: Config,
    terms: Mapping[str, Any],
    *,
    names: Sequence[str],
    places: Collection[Place],
    skipped: Sequence[tuple[Task, str]],
) -> dict[str, Any]:
    """What summary.json holds: of the trials `names` and the tasks at `places` in a model's folder."""
    by_trial = {name: _only(scores(folder / name), places) for name in names}
    domains = sorted({domain for domain, _ in places})
    played = [(place, score) for results in by_trial.values() for place, score in results.items()]
    failed = [
        {"trial": name, **record}
        for name in names
        for record in _only(failures(folder / name), places).values()
    ]
    ended = Counter(why for name in names for why in _only(stops(folder / name), places).values())
    local = config.env.name == "osworld" and config.osworld.provider == LOCAL
    return {
        "terms": dict(terms),
        "tasks": config.eval.tasks,
        "trials": list(names),
        "domains": {domain: _rate(score for (of, _), score in played if of == domain) for domain in domains},
        "total": _rate(score for _, score in played),
        "by_trial": {name: _rate(results.values()) for name, results in by_trial.items()},
        "missing": len(names) * len(places) - len(played),
        "best_of": _best_of(folder, terms, places),
        "ended": dict(ended.most_common()),
        "failures": failed,
        "skipped": _skipped(skipped),
        "remark": NOT_OSWORLD if local else "",
    }


def table(summary: Mapping[str, Any]) -> list[str]:
    """The summary as a person reads it."""
    rows = [*summary["domains"].items(), ("total", summary["total"])]
    width = max(len("domain"), *(len(name) for name, _ in rows))
    lines = [f"{'domain':{width}}  success  95% interval     episodes"]
    lines += [f"{name:{width}}  {_cells(rate)}" for name, rate in rows]
    if len(summary["by_trial"]) > 1:
        each = [f"{name}: {_percent(rate['success'])}" for name, rate in summary["by_trial"].items()]
        lines.append("by trial: " + ", ".join(each))
    if best := summary["best_of"]["pass_at"]:
        each = [f"pass@{k} {one['rate']:.1%} ({one['tasks']} tasks)" for k, one in best.items()]
        lines.append(f"over trials {', '.join(summary['best_of']['trials'])}: " + ", ".join(each))
    if summary["ended"]:
        lines.append("ended: " + ", ".join(f"{why} {count}" for why, count in summary["ended"].items()))
    if cut := summary["ended"].get(CONTEXT):
        lines.append(
            f"{cut} episodes ended early because the conversation did not fit into the server's context"
        )
    return [*lines, *_not_played(summary), *([summary["remark"]] if summary["remark"] else [])]


def _not_played(summary: Mapping[str, Any]) -> list[str]:
    lines = []
    if failed := summary["failures"]:
        reasons = Counter(f"{record['where']}: {_first_line(record['message'])}" for record in failed)
        lines.append(
            f"{len(failed)} episodes failed, and not by the model; the same command plays them again:"
        )
        lines += [f"  {count} x {reason}" for reason, count in reasons.most_common()]
    if skipped := summary["skipped"]:
        lines.append(f"{sum(map(len, skipped.values()))} tasks were skipped, and are in no rate:")
        lines += [f"  {len(ids)} x {reason}" for reason, ids in skipped.items()]
    return lines


def _rate(values: Iterable[float]) -> dict[str, Any]:
    found = list(values)
    low, high = wilson(sum(found), len(found))
    success = sum(found) / len(found) if found else None
    return {"success": success, "interval": [low, high], "score": sum(found), "episodes": len(found)}


def _best_of(folder: Path, terms: Mapping[str, Any], places: Collection[Place]) -> dict[str, Any]:
    """Over every trial in the folder that was played on the same terms, also by other calls."""
    alike = [name for name in trials(folder) if read_terms(folder / name) == dict(terms)]
    of_task: dict[Place, list[float]] = {}
    for name in alike:
        for place, score in _only(scores(folder / name), places).items():
            of_task.setdefault(place, []).append(score)
    most = max(map(len, of_task.values()), default=0)
    rates: dict[str, Any] = {}
    for k in _ks(most) if most > 1 else ():
        best = [pass_at(k, found) for found in of_task.values() if len(found) >= k]
        rates[str(k)] = {"rate": sum(best) / len(best), "tasks": len(best)}
    return {"trials": alike, "pass_at": rates}


def _ks(most: int) -> list[int]:
    """6 -> [1, 2, 4, 6]"""
    return sorted({2**power for power in range(most.bit_length())} | {most})


def _skipped(skipped: Sequence[tuple[Task, str]]) -> dict[str, list[str]]:
    """The ids by reason; a missing file is one reason, whichever file it is."""
    found: dict[str, list[str]] = {}
    for task, reason in skipped:
        found.setdefault(_ONE_FILE.sub("a file is", reason), []).append(task.id)
    return found


def _only(found: Mapping[Place, T], places: Collection[Place]) -> dict[Place, T]:
    return {place: value for place, value in found.items() if place in places}


def _cells(rate: Mapping[str, Any]) -> str:
    low, high = rate["interval"]
    interval = f"{low:.1%} to {high:.1%}" if rate["episodes"] else ""
    return f"{_percent(rate['success']):>7}  {interval:15}  {rate['episodes']:>8}"


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.1%}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]
