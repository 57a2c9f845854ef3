"""Writes calls.jsonl: when each call of an episode and each stage of a batch began, and how long it took.

    {"episode":"batch0-3-1","host":"","fault":"","calls":[["start",12.1,0.5],["engine",12.6,1.2],…]}
    {"step":1,"calls":[["rollout",0.2,30.1],["learn",30.3,8.4]]}

Times are seconds since the start of the run. Time between an interruption and the resume does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from arpo.rollout.activity import Call, EpisodeCalls
from arpo.storage.files import RESTORE_OR_LEAVE, damage
from arpo.storage.run_folder import CALLS, RunFolder


class CallLog:
    """`elapsed` is the age of a resumed run in seconds."""

    def __init__(self, store: RunFolder, elapsed: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._began = store, clock() - elapsed

    def add_episode(self, episode: EpisodeCalls) -> None:
        """Store an attempt at an episode, also a failed or cancelled one."""
        owner = {"episode": episode.episode_id, "host": episode.host, "fault": episode.fault}
        self._store.log_calls(owner, self._since_start(episode.calls))

    def add_stages(self, step: int, stages: Iterable[Call]) -> None:
        """Store the stages of batch number `step`."""
        self._store.log_calls({"step": step}, self._since_start(stages))

    def _since_start(self, calls: Iterable[Call]) -> list[Call]:
        return [(name, began - self._began, seconds) for name, began, seconds in calls]


def logged_seconds(store: RunFolder) -> float:
    """The end of the last logged call, in seconds since the start of the run."""
    end = 0.0
    for number, record in enumerate(store.read_log(CALLS), 1):
        with damage(f"{store.folder / CALLS}: line {number}", RESTORE_OR_LEAVE):
            for _, began, seconds in record["calls"][-1:]:
                end = float(began + seconds)
    return end
