"""A trained batch whose evaluation is not finished, as part of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arpo.storage.run_folder import RunFolderReader
from arpo.training.stored_groups import group_from_json, group_to_json
from arpo.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedBatch:
    """The unwritten results of a batch: its metrics wait for those of the evaluation.

    `groups` are for the callback, `played` is the number of episodes, `seconds` are durations by stage.
    """

    metrics: Mapping[str, float]
    groups: Sequence[Group]
    played: int
    seconds: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "metrics": dict(self.metrics),
            "groups": [group_to_json(group) for group in self.groups],
            "played": self.played,
            "seconds": dict(self.seconds),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], store: RunFolderReader) -> UnfinishedBatch:
        return cls(
            metrics=dict(value["metrics"]),
            groups=[group_from_json(group, store.load_trajectory) for group in value["groups"]],
            played=value["played"],
            seconds=dict(value["seconds"]),
        )
