"""Outcomes of episodes, for the tests of the report."""

from arpo.storage.codec import BATCH, GROUP, group_of
from arpo.types import StopReason
from arpo.viewer.pages.episodes import Episode
from arpo.viewer.run_index import place_of


def played(name, task="t", *, solved=False, shown=True, stop=StopReason.FINISHED, replayed_in=()):
    kind, number, _, batch = place_of(name)
    return Episode(
        episode=name,
        group=group_of(name),
        task=task,
        phase=f"{BATCH}{batch}" if batch else GROUP if kind == GROUP else f"{kind}{number}",
        batch=batch,
        score=float(solved),
        solved=solved,
        malformed=stop is StopReason.PARSE_ERROR,
        stop=stop,
        steps=1,
        tokens=4,
        version=0,
        replayed_in=replayed_in,
        shown=shown,
        error="",
    )
