"""Page "Faults": episodes that could not be played."""

from __future__ import annotations

from arpo.viewer.source import Json, Source


def faults_page(source: Source) -> Json:
    """Failed episodes by kind, call and host, and the newest 200."""
    kinds = source.index.rows(
        'SELECT kind, called AS "where", host, count(*) AS count, count(DISTINCT task) AS tasks, '
        "max(message) AS message FROM failures GROUP BY kind, called, host "
        "ORDER BY count(*) DESC LIMIT 200"
    )
    newest = source.index.rows(
        'SELECT id AS episode, task, kind, called AS "where", host, message, attempts, place, batch '
        "FROM failures ORDER BY n DESC LIMIT 200"
    )
    return {
        "total": source.index.count("failures"),
        "by_kind": [dict(row) for row in kinds],
        "newest": [dict(row) for row in newest],
    }
