"""Pages "Batches" and "Batch": counts of all batches, and the groups of one."""

from __future__ import annotations

from arpo.errors import UserError
from arpo.viewer.pages.groups import group_json, note_of
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Json

_GROUPS = (
    "SELECT group_id FROM episodes WHERE batch = ? GROUP BY group_id ORDER BY min(place), min(n)",
    "SELECT group_id FROM failures WHERE batch = ? GROUP BY group_id ORDER BY min(n)",
    "SELECT id AS group_id FROM groups WHERE batch = ? AND dropped",
)


def batches_page(run: RunSource) -> Json:
    """All batches with their counts, those of groups from metrics.jsonl."""
    logged = {row["step"]: row for row in run.metrics.rows}
    rows = run.index.rows(
        "SELECT batch, count(DISTINCT group_id) AS groups, count(*) AS episodes, sum(score >= ?) AS solved "
        "FROM episodes WHERE batch IS NOT NULL GROUP BY batch ORDER BY batch",
        (run.threshold,),
    )
    failed = run.index.counts("failures", "batch")
    dropped = run.index.counts("groups WHERE dropped", "batch")
    batches = [
        {
            **dict(row),
            "failed": failed.get(row["batch"], 0),
            "dropped": dropped.get(row["batch"], 0),
            **{name: logged.get(row["batch"], {}).get(name) for name in ("rescued", "without_signal")},
        }
        for row in rows
    ]
    return {"batches": batches}


def batch_page(run: RunSource, number: int) -> Json:
    """The groups of a batch, in its order; then those dropped before it."""
    rows = [row for query in _GROUPS for row in run.index.rows(query, (number,))]
    names = dict.fromkeys(row["group_id"] for row in rows)
    if not names:
        raise UserError(f"batch {number}: has no episodes, or they are not indexed yet")
    return {
        "batch": number,
        "previous": _beside(run, number, "<", "max"),
        "next": _beside(run, number, ">", "min"),
        "note": note_of(run),
        "groups": [group_json(run, name) for name in names],
        "metrics": next((row for row in reversed(run.metrics.rows) if row["step"] == number), {}),
    }


def _beside(run: RunSource, number: int, sign: str, choice: str) -> int | None:
    row = run.index.row(f"SELECT {choice}(batch) AS batch FROM episodes WHERE batch {sign} ?", (number,))
    return row["batch"] if row else None
