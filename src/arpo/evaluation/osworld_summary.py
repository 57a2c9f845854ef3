"""The summary of an OSWorld evaluation: success rates with intervals, pass@k, failures, skipped tasks.

It is computed from the results folder alone, so it covers episodes of earlier runs. Failures and skipped
tasks are listed next to the success rates, never counted in them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from arpo.config import Config
from arpo.envs.osworld.needs import LOCAL
from arpo.evaluation.osworld_results import CONTEXT, TaskKey, failures, read_settings, scores, stops, trials
from arpo.types import Task

NOT_OSWORLD = (
    "Played on light local desktops. They look different from OSWorld's machines and have other software "
    "versions. These are not OSWorld scores."
)
T = TypeVar("T")
Z95 = 1.959963984540054  # two-sided 95% quantile of the normal distribution
_ONE_FILE = re.compile(r"^file .+ \(.+\) is")


def summarise(
    folder: Path,
    config: Config,
    settings: Mapping[str, Any],
    *,
    source: str,
    names: Sequence[str],
    keys: Collection[TaskKey],
    skipped: Sequence[tuple[Task, str]],
) -> dict[str, Any]:
    """The content of summary.json, for the trials `names` and the tasks `keys` in a model's folder."""
    by_trial = {name: _only(scores(folder / name), keys) for name in names}
    domains = sorted({domain for domain, _ in keys})
    played = [(key, score) for results in by_trial.values() for key, score in results.items()]
    failed = [
        {"trial": name, **record}
        for name in names
        for record in _only(failures(folder / name), keys).values()
    ]
    ended = Counter(why for name in names for why in _only(stops(folder / name), keys).values())
    local = config.env.name == "osworld" and config.osworld.provider == LOCAL
    return {
        "terms": dict(settings),
        "tasks": source,
        "trials": list(names),
        "domains": {domain: _rate(score for (of, _), score in played if of == domain) for domain in domains},
        "total": _rate(score for _, score in played),
        "by_trial": {name: _rate(results.values()) for name, results in by_trial.items()},
        "missing": len(names) * len(keys) - len(played),
        "best_of": _best_of(folder, settings, keys),
        "ended": dict(ended.most_common()),
        "failures": failed,
        "skipped": by_reason(skipped),
        "remark": NOT_OSWORLD if local else "",
    }


def table(summary: Mapping[str, Any]) -> list[str]:
    """The summary as lines of text."""
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
        lines.append(f"{cut} episodes ended early: the conversation did not fit into the server's context")
    return [*lines, *_not_played(summary), *([summary["remark"]] if summary["remark"] else [])]


def _not_played(summary: Mapping[str, Any]) -> list[str]:
    lines = []
    if failed := summary["failures"]:
        reasons = Counter(f"{record['where']}: {_first_line(record['message'])}" for record in failed)
        lines.append(
            f"{len(failed)} episodes failed, not because of the model. Run the same command to retry them:"
        )
        lines += [f"  {count} x {reason}" for reason, count in reasons.most_common()]
    if skipped := summary["skipped"]:
        lines.append(
            f"{sum(map(len, skipped.values()))} tasks were skipped. They are not in the success rates:"
        )
        lines += [f"  {len(ids)} x {reason}" for reason, ids in skipped.items()]
    return lines


def _rate(values: Iterable[float]) -> dict[str, Any]:
    found = list(values)
    low, high = wilson_interval(sum(found), len(found))
    success = sum(found) / len(found) if found else None
    return {"success": success, "interval": [low, high], "score": sum(found), "episodes": len(found)}


def wilson_interval(successes: float, episodes: int) -> tuple[float, float]:
    """Wilson 95% confidence interval of a success rate; accurate for few episodes, always within [0, 1].

    For scores between 0 and 1 the interval is conservative: they vary less than 0/1 scores of the same mean.

    >>> wilson_interval(8, 10)
    (0.4901624715, 0.9433178485)
    """
    if episodes == 0:
        return 0.0, 1.0
    rate, share = successes / episodes, Z95**2 / episodes
    centre = (rate + share / 2) / (1 + share)
    half_width = Z95 * math.sqrt(rate * (1 - rate) / episodes + share / (4 * episodes)) / (1 + share)
    return max(0.0, centre - half_width), min(1.0, centre + half_width)


def pass_at(k: int, scores: Sequence[float]) -> float:
    """Unbiased estimate of pass@k, the expected best of k attempts, from n >= k scores.

    Equals the mean of the best score over all subsets of size k. If c scores are 1 and the others 0, it is
    1 - C(n-c, k) / C(n, k).

    >>> pass_at(2, [1, 0, 0, 0])
    0.5
    """
    if not 1 <= k <= len(scores):
        raise ValueError(f"pass@{k} needs at least {k} scores, got {len(scores)}")
    # Subsets in which the score at each sorted index is the best one.
    subsets = [math.comb(below, k - 1) for below in range(len(scores))]
    best = sum(score * count for score, count in zip(sorted(scores), subsets, strict=True))
    return best / math.comb(len(scores), k)


def _best_of(folder: Path, settings: Mapping[str, Any], keys: Collection[TaskKey]) -> dict[str, Any]:
    """pass@k over all trials in the folder with the same settings, also those of earlier runs."""
    alike = [name for name in trials(folder) if read_settings(folder / name) == dict(settings)]
    of_task: dict[TaskKey, list[float]] = {}
    for name in alike:
        for key, score in _only(scores(folder / name), keys).items():
            of_task.setdefault(key, []).append(score)
    most = max(map(len, of_task.values()), default=0)
    rates: dict[str, Any] = {}
    for k in _ks(most) if most > 1 else ():
        best = [pass_at(k, found) for found in of_task.values() if len(found) >= k]
        rates[str(k)] = {"rate": sum(best) / len(best), "tasks": len(best)}
    return {"trials": alike, "pass_at": rates}


def _ks(most: int) -> list[int]:
    """6 -> [1, 2, 4, 6]"""
    return sorted({2**power for power in range(most.bit_length())} | {most})


def by_reason(skipped: Sequence[tuple[Task, str]]) -> dict[str, list[str]]:
    """Task ids by reason, most frequent first. All missing files count as one reason."""
    found: dict[str, list[str]] = {}
    for task, reason in skipped:
        found.setdefault(_ONE_FILE.sub("a file is", reason), []).append(task.id)
    return dict(sorted(found.items(), key=lambda group: -len(group[1])))


def _only(found: Mapping[TaskKey, T], keys: Collection[TaskKey]) -> dict[TaskKey, T]:
    return {key: value for key, value in found.items() if key in keys}


def _cells(rate: Mapping[str, Any]) -> str:
    low, high = rate["interval"]
    interval = f"{low:.1%} to {high:.1%}" if rate["episodes"] else ""
    return f"{_percent(rate['success']):>7}  {interval:15}  {rate['episodes']:>8}"


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.1%}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:200]
