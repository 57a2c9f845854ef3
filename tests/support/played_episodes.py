"""Outcomes of episodes, for the tests of the report."""

from arpo.storage.codec import StoredEpisode
from arpo.types import StopReason
from arpo.viewer.played import Played


def played(name, task="t", *, solved=False, shown=True, stop=StopReason.FINISHED, replayed_in=()):
    stored = StoredEpisode(
        episode_id=name,
        task_id=task,
        score=float(solved),
        malformed=stop is StopReason.PARSE_ERROR,
        stop=stop,
        steps=1,
        policy_version=0,
        error="",
        has_tokens=True,
        screenshots=(),
    )
    return Played(stored=stored, solved=solved, shown=shown, replayed_in=replayed_in)
