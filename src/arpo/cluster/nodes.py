"""Nodes of a Ray cluster: the connection to it, resources of each role, and their reservation.

    connect("auto")
    group = reserve(host_role(config), seconds=60)  # waits until all resources are free

Ray only places, starts, watches and restarts processes. Prompts, screenshots and weights never pass through
it. Nothing here imports Ray before it is needed. A role has one placement group, so all of its processes find
a place or none does. If a node is lost, Ray reserves the lost places on other nodes as soon as these have
free resources.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from arpo.config import ClusterConfig, EngineConfig
from arpo.errors import UserError, printable

NAMESPACE = "arpo"  # of all actors. Each has a name "RUN/ROLE-NUMBER" and a method `status`
ADDRESS_VARIABLE = "RAY_ADDRESS"
INSTALL = (
    "install it on all nodes: pip install 'arpo[ray]' (in a clone of the project: pip install -e '.[ray]')"
)
_CONNECT_SECONDS = 10.0
_AUTO_CONNECT = "RAY_ENABLE_AUTO_CONNECT"  # else a late call would start a cluster of its own
_TRACE = 0.001  # of a custom resource: it selects nodes and is never used up


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A living node. `resources` are its totals, for example {"CPU": 8.0, "GPU": 2.0, "desktops": 1.0}."""

    id: str
    address: str
    resources: Mapping[str, float]


def connect(address: str) -> Any:
    """Connect this process to the cluster of `cluster.ray`, once. Returns the module `ray`.

    Raises UserError if Ray is not installed, if no cluster answers, or if it has another version or token.
    """
    os.environ.setdefault(_AUTO_CONNECT, "0")
    try:
        import ray
    except ImportError as error:
        raise UserError(f"Ray is not installed: {INSTALL}") from error
    if ray.is_initialized():
        return ray
    named = os.environ.get(ADDRESS_VARIABLE, "") if address == "auto" else address
    if named and named != "auto":
        _check_reachable(named)
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise UserError(
            f"cluster.ray = {address!r}: no Ray cluster found: start one with `ray start --head`, or set "
            f"cluster.ray to the address of one"
        ) from error
    except (RuntimeError, ValueError, ray.exceptions.RayError) as error:  # another version or token of Ray
        raise UserError(f"cluster.ray = {address!r}: {printable(str(error))}") from error
    return ray


def living_nodes() -> list[Node]:
    """The nodes of the connected cluster, by address."""
    import ray

    found = [
        Node(id=node["NodeID"], address=node["NodeManagerAddress"], resources=node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.id))


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes. Raises UserError if nothing listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(
            f"cluster.ray: {address!r} is not an address: use HOST:PORT, for example 10.0.0.1:6379, or auto"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            pass
    except OSError as error:
        raise UserError(
            f"cluster.ray: no Ray cluster answers at {address}: {error}: check the address, or start one "
            "with `ray start --head`"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """`count` processes of one kind, each with the resources `each`.

    `strategy`: SPREAD over as many nodes as possible, or PACK on few.
    """

    name: str
    count: int
    each: Mapping[str, float]
    strategy: Literal["SPREAD", "PACK"] = "SPREAD"


def replica_role(cluster: ClusterConfig, engine: EngineConfig, *, on_gpus: bool) -> Role:
    """The vLLM servers of engine.replicas. Each has engine.gpus_per_server if the cluster has GPUs."""
    wanted = {"CPU": 1.0, "GPU": float(engine.gpus_per_server * on_gpus)}
    return Role(name="vLLM server", count=engine.replicas, each=_selected(wanted, cluster.replica_nodes))


def host_role(cluster: ClusterConfig) -> Role:
    each = _selected({"CPU": 1.0}, cluster.host_nodes)
    return Role(name="environment host", count=cluster.hosts, each=each)


def rank_role(count: int, *, on_gpus: bool) -> Role:
    """`count` learner ranks, close to each other."""
    each = _selected({"CPU": 1.0, "GPU": float(on_gpus)}, "")
    return Role(name="learner rank", count=count, each=each, strategy="PACK")


def slots_of_hosts(environments: int, hosts: int) -> list[int]:
    """Environments of each host.

    >>> slots_of_hosts(10, 4)
    [3, 3, 2, 2]
    """
    return [environments // hosts + (number < environments % hosts) for number in range(hosts)]


def has_gpus(nodes: Sequence[Node]) -> bool:
    return any(node.resources.get("GPU") for node in nodes)


def reserve(role: Role, seconds: float) -> Any:
    """A placement group with one bundle per process of the role.

    Raises UserError if the resources are not free within `seconds`.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([dict(role.each)] * role.count, strategy=role.strategy)
    try:
        if not group.wait(max(seconds, 1.0)):
            raise UserError(describe_shortage(role, living_nodes(), ray.available_resources(), seconds))
    except BaseException:  # also Ctrl-C: a later run of this process may need the places
        remove_placement_group(group)
        raise
    return group


def free(group: Any) -> None:
    """Give up a reservation."""
    from ray.util.placement_group import remove_placement_group

    with suppress(Exception):  # the cluster may be gone
        remove_placement_group(group)


def options_in(role: Role, group: Any, index: int) -> dict[str, Any]:
    """Ray's options for an actor or task in bundle `index` of the group."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return {
        "num_cpus": role.each.get("CPU", 0),
        "num_gpus": role.each.get("GPU", 0),
        "resources": {name: amount for name, amount in role.each.items() if name not in ("CPU", "GPU")},
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=index
        ),
    }


def describe_shortage(role: Role, nodes: Sequence[Node], free: Mapping[str, float], seconds: float) -> str:
    """The message for a cluster that is too small or in use: needed, present and free resources."""
    needed = f"{role.count} x {_text(role.each)}"
    present = "; ".join(f"{node.address}: {_text(_known(node.resources, role))}" for node in nodes) or "none"
    return (
        f"the Ray cluster has no place for {role.count} {role.name}{'' if role.count == 1 else 's'} within "
        f"{seconds:g} s (cluster.wait_seconds). Needed: {needed}. Nodes: {present}. Free in all: "
        f"{_text(_known(free, role))}. Add nodes, lower the number, or raise cluster.wait_seconds"
    )


def _selected(wanted: Mapping[str, float], nodes: str) -> dict[str, float]:
    """Positive resources only, and a trace of the custom resource of the nodes."""
    chosen = {name: amount for name, amount in wanted.items() if amount}
    return chosen | ({nodes: _TRACE} if nodes else {})


def _known(resources: Mapping[str, float], role: Role) -> dict[str, float]:
    """The resources that the role uses; 0 if there are none."""
    return {name: resources.get(name, 0.0) for name in role.each}


def _text(resources: Mapping[str, float]) -> str:
    """Example: "CPU 2, GPU 1". A trace of a custom resource is written as its name."""
    return ", ".join(name if amount == _TRACE else f"{name} {amount:g}" for name, amount in resources.items())
