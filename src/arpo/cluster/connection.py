"""The connection of a command to its Ray cluster.

Ray only places, starts, watches and restarts processes. Prompts, screenshots and weights never pass through
it. Nothing here imports Ray before it is needed.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arpo.errors import UserError, printable

NAMESPACE = "arpo"  # of all actors. Each has a name "RUN/ROLE-NUMBER" and a method `status`
ADDRESS_VARIABLE = "RAY_ADDRESS"
INSTALL = "install it on all nodes: pip install 'arpo[ray]'"
_CONNECT_SECONDS = 10.0
_AUTO_CONNECT = "RAY_ENABLE_AUTO_CONNECT"  # else a late call would start a cluster of its own


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
        raise UserError(f"cluster.ray = {address!r}: Ray is missing: {INSTALL}") from error
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


def new_token() -> str:
    """A secret of one run, for its servers and hosts. It is passed in calls only: never stored or logged."""
    return secrets.token_urlsafe(24)


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
