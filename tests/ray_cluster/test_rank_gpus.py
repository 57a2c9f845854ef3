"""Ray reserves a GPU for each rank of the learner, that of the run included. The GPUs exist in name only."""

from __future__ import annotations

import os

import pytest

from arpo.cluster.ranks import VISIBLE_GPUS, open_ranks
from arpo.config.recipe import load_config
from arpo.errors import UserError
from ray_clusters import ray_nodes


def test_the_run_and_the_other_ranks_have_different_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with ray_nodes() as nodes:
        nodes.add({}, gpus=2)
        import ray

        monkeypatch.delenv(VISIBLE_GPUS, raising=False)
        settings = {"cluster.ray": nodes.address, "optim.ranks": 2, "cluster.wait_seconds": 60.0}
        ranks = open_ranks(load_config("desk", settings))
        assert ranks is not None
        own = os.environ[VISIBLE_GPUS]
        assert own in ("0", "1")
        assert ray.available_resources().get("GPU", 0) == 0

        monkeypatch.delenv(VISIBLE_GPUS)
        with pytest.raises(UserError, match="no place for 1 learner of the run on this node within 1 s"):
            open_ranks(load_config("desk", settings | {"cluster.wait_seconds": 1.0}))
        ranks.close()
        assert open_ranks(load_config("desk", settings | {"optim.ranks": 1})) is None
        assert {own, os.environ[VISIBLE_GPUS]} == {"0", "1"}
