"""Groups as part of a checkpoint: their trajectories are in the run folder, by episode id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from arpo.storage.codec import failure_from_json
from arpo.types import Group, Rescue, Trajectory


def group_to_json(group: Group) -> dict[str, Any]:
    whole = asdict(replace(group, trajectories=()))
    return whole | {"trajectories": [trajectory.episode_id for trajectory in group.trajectories]}


def group_from_json(value: Mapping[str, Any], load: Callable[[str], Trajectory]) -> Group:
    """`load` returns a stored trajectory by its episode id."""
    return Group(
        index=value["index"],
        task_id=value["task_id"],
        trajectories=tuple(map(load, value["trajectories"])),
        failures=tuple(map(failure_from_json, value["failures"])),
        rescues=tuple(Rescue(**{"stored_task": value["task_id"]} | rescue) for rescue in value["rescues"]),
    )
