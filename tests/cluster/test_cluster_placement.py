"""Resources of each role, and the message of a cluster that is too small."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from arpo.cluster.nodes import (
    Node,
    describe_shortage,
    has_gpus,
    host_role,
    rank_role,
    replica_role,
    reserve,
    slots_of_hosts,
)
from arpo.cluster.ranks import RayRanks
from arpo.config.recipe import load_config
from arpo.errors import UserError

NODES = [
    Node(id="a", address="10.0.0.1", resources={"CPU": 8.0, "memory": 1e9}),
    Node(id="b", address="10.0.0.2", resources={"CPU": 16.0, "GPU": 2.0, "desktops": 1.0}),
]


def test_environments_are_divided_among_hosts():
    assert slots_of_hosts(10, 4) == [3, 3, 2, 2]
    assert slots_of_hosts(4, 4) == [1, 1, 1, 1]


def test_servers_and_ranks_need_a_gpu_each_if_the_cluster_has_gpus():
    assert has_gpus(NODES) and not has_gpus(NODES[:1])
    config = load_config("desk", {"engine.replicas": 3})
    assert replica_role(config.cluster, config.engine, on_gpus=True).each == {"CPU": 1.0, "GPU": 1.0}
    assert replica_role(config.cluster, config.engine, on_gpus=False).each == {"CPU": 1.0}
    assert replica_role(config.cluster, config.engine, on_gpus=False).count == 3
    ranks = rank_role(7, on_gpus=True)
    assert ranks.each == {"CPU": 1.0, "GPU": 1.0} and ranks.count == 7 and ranks.strategy == "PACK"


def test_a_custom_resource_selects_nodes_and_is_never_used_up():
    config = load_config(
        "desk", {"cluster.ray": "auto", "cluster.hosts": 16, "cluster.host_nodes": "desktops"}
    )
    role = host_role(config.cluster)
    assert role.each == {"CPU": 1.0, "desktops": 0.001} and role.strategy == "SPREAD"
    assert role.count * role.each["desktops"] < 1


def test_a_shortage_names_needed_present_and_free_resources():
    config = load_config("desk", {"engine.replicas": 4, "cluster.replica_nodes": "desktops"})
    message = describe_shortage(
        replica_role(config.cluster, config.engine, on_gpus=True), NODES, {"CPU": 20.0, "GPU": 1.0}, 60.0
    )
    assert message == (
        "the Ray cluster has no place for 4 vLLM servers within 60 s (cluster.wait_seconds). Needed: 4 x CPU "
        "1, GPU 1, desktops. Nodes: 10.0.0.1: CPU 8, GPU 0, desktops 0; 10.0.0.2: CPU 16, GPU 2, desktops 1. "
        "Free in all: CPU 20, GPU 1, desktops 0. Add nodes, lower the number, or raise cluster.wait_seconds"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cluster.hosts": 2}, "cluster.hosts: is 2, must be 0 without a cluster: set cluster.ray = auto"),
        (
            {"cluster.ray": "auto", "cluster.hosts": 2, "env.hosts": "http://a:1"},
            "cluster.hosts: is 2, must be 0 with env.hosts: leave one of them empty",
        ),
        (
            {"cluster.ray": "auto", "cluster.hosts": 9, "env.parallel": 8},
            "cluster.hosts: is 9, must be <= env.parallel \\(8\\): each host needs an environment",
        ),
    ],
)
def test_hosts_need_a_cluster_and_an_environment_each(settings, message):
    with pytest.raises(UserError, match=message):
        load_config("desk", settings)


class Places:
    """Ray's placement groups, as a list of those that exist."""

    def __init__(self, monkeypatch, wait):
        self.groups: list[Any] = []
        module: Any = ModuleType("ray.util.placement_group")
        module.placement_group = lambda bundles, strategy: self._made(SimpleNamespace(wait=wait))
        module.remove_placement_group = self.groups.remove
        for name in ("ray", "ray.util"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def _made(self, group):
        self.groups.append(group)
        return group


def test_an_interrupted_wait_leaves_no_reserved_places(monkeypatch):
    """Else the next run of this process finds them in use."""

    def interrupted(seconds):
        raise KeyboardInterrupt

    places = Places(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        reserve(host_role(load_config("desk").cluster), 60.0)
    assert places.groups == []


def test_places_of_ranks_are_free_if_the_learner_was_never_made(monkeypatch):
    places = Places(monkeypatch, lambda seconds: True)
    ranks = RayRanks(rank_role(3, on_gpus=False), "10.0.0.1", "run", 60.0)
    assert len(places.groups) == 1
    del ranks
    assert places.groups == []
