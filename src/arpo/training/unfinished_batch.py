"""A trained batch whose evaluation is not finished, as part of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from arpo.storage.codec import failure_from_json
from arpo.storage.run_folder import RunFolderReader
from arpo.types import Group, Rescue


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedBatch:
    """The results of a batch that are not written yet: its metrics wait for those of the evaluation.

    `groups` are for the callback, `played` is the number of episodes, `seconds` are durations by stage.
    """

    metrics: Mapping[str, float]
    groups: Sequence[Group]
    played: int
    seconds: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "metrics": dict(self.metrics),
            "groups": [_group_to_json(group) for group in self.groups],
            "played": self.played,
            "seconds": dict(self.seconds),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], store: RunFolderReader) -> UnfinishedBatch:
        return cls(
            metrics=dict(value["metrics"]),
            groups=[_group_from_json(group, store) for group in value["groups"]],
            played=value["played"],
            seconds=dict(value["seconds"]),
        )


def _group_to_json(group: Group) -> dict[str, Any]:
    """Trajectories by episode id: they are in the run folder."""
    whole = asdict(replace(group, trajectories=()))
    return whole | {"trajectories": [trajectory.episode_id for trajectory in group.trajectories]}


def _group_from_json(value: Mapping[str, Any], store: RunFolderReader) -> Group:
    return Group(
        index=value["index"],
        task_id=value["task_id"],
        trajectories=tuple(map(store.load_trajectory, value["trajectories"])),
        failures=tuple(map(failure_from_json, value["failures"])),
        rescues=tuple(Rescue(**rescue) for rescue in value["rescues"]),
    )
