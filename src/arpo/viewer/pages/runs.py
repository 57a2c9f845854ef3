"""Page "Runs": all sources, and the curves of their metrics."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from arpo.config import Config
from arpo.config.task_set_names import set_label
from arpo.errors import UserError
from arpo.reporting.metrics import find_metric
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Json, Source


def runs_page(sources: Iterable[Source], errors: Iterable[str], command: str) -> Json:
    """All sources. `command` opens them again."""
    entries, problems = [], list(errors)
    for source in sources:
        try:
            entries.append(_entry(source))
        except UserError as error:
            problems.append(str(error))
    return {
        "export": False,
        "command": command,
        "sources": entries,
        "errors": problems,
    }


def _entry(source: Source) -> Json:
    identity, facts = source.identity, source.facts()
    share = facts.pop("share")
    state = f"{source.stamp()} {source.complete} {share} {source.error}"
    problems = source.index.rows("SELECT text FROM problems ORDER BY n")
    return {
        "id": identity.id,
        "kind": identity.kind,
        "folder": identity.shown,
        "title": identity.id.rpartition("/")[2] or identity.id,
        "comparison": identity.comparison,
        "method": identity.method,
        "seed": identity.seed,
        "episodes": source.index.count("episodes"),
        "failures": source.index.count("failures"),
        "indexing": None if source.complete else {"share": share},
        "sets": {name: set_label(name) for rates in facts["success"].values() for name in rates},
        "stamp": hashlib.sha256(state.encode("utf-8", "replace")).hexdigest()[:16],
        **facts,
        "errors": [*filter(None, [source.error]), *facts["errors"], *(row["text"] for row in problems)],
    }


def metrics_page(run: RunSource, start: int) -> Json:
    """The rows of metrics.jsonl from `start` on, with explanations."""
    names = dict.fromkeys(name for row in run.metrics.rows for name in row if name != "step")
    return {
        "rows": run.metrics.rows[start:],
        "next": len(run.metrics.rows),
        "generation": f"{run.opened}-{run.metrics.generation}",  # if it changes, so may the earlier rows
        "explained": {name: _explain(name, run.config) for name in names},
    }


def _explain(name: str, config: Config) -> Json:
    """Title, explanation and unit of a metric."""
    if metric := find_metric(name):
        return {"title": metric.title, "explanation": metric.explanation, "percent": metric.percent}
    callback = config.plugins.callback
    unknown = "Not a metric of this version of ARPO."
    text = f"Returned by plugins.callback = {callback}." if callback else unknown
    return {"title": name, "explanation": text, "percent": False}
