"""A batch that waits for its evaluation survives as JSON, with the groups for the callback."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from arpo.storage.from_json import from_json
from arpo.storage.run_folder import RunFolder
from arpo.training.checkpoints import UnfinishedBatch
from arpo.types import Rescue, Trajectory
from stored_episodes import episode, small
from trajectories import group


def test_a_batch_round_trips(tmp_path: Path) -> None:
    played = [
        episode(name, [small(number), small(2)]) for number, name in enumerate(("batch-3-0-0", "batch-2-0-1"))
    ]
    rescue = Rescue(index=1, replaced_episode="batch-3-0-1", stored_episode="batch-2-0-1", age=1)
    groups = (replace(group(*played, failures=1), rescues=(rescue,)),)
    batch = UnfinishedBatch(metrics={"loss": 0.1}, groups=groups, played=2, seconds={"learn": 0.3})
    with closing(RunFolder(tmp_path / "run")) as store:
        for trajectory in played:
            store.add_trajectory(trajectory)
        stored = json.loads(json.dumps(batch.to_json()))
        assert from_json(stored, UnfinishedBatch, {Trajectory: store.load_trajectory}) == batch
