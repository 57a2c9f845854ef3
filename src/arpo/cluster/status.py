"""The state of a Ray cluster: its nodes, and the actors of all runs on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from arpo.cluster.nodes import NAMESPACE, Node, connect, living_nodes
from arpo.errors import printable

_SECONDS = 10.0  # for the answers of all actors
NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStatus:
    """One actor of a run. `node` is an address, "" if unknown. `load` is a text for people."""

    run: str
    role: str
    node: str = ""
    state: str = NO_ANSWER
    load: str = ""
    restarts: int = 0

    @classmethod
    def of(cls, name: str, found: Mapping[str, Any]) -> ActorStatus:
        """From the name "RUN/ROLE" of an actor and the result of its method `status`."""
        texts = {key: printable(str(found[key])) for key in ("role", "node", "state", "load")}
        return cls(run=name.rpartition("/")[0], restarts=int(found["restarts"]), **texts)


def read_status(address: str) -> tuple[list[Node], list[ActorStatus]]:
    """Nodes and actors of the cluster at `address` ("auto": that of this machine). Raises UserError."""
    ray = connect(address)
    from ray.exceptions import RayError
    from ray.util import list_named_actors

    named = sorted(
        entry["name"]
        for entry in list_named_actors(all_namespaces=True)
        if entry["namespace"] == NAMESPACE and "/" in entry["name"]
    )
    asked = {}
    for name in named:
        try:
            asked[ray.get_actor(name, namespace=NAMESPACE).status.remote()] = name
        except (RayError, ValueError):  # it has ended meanwhile
            continue
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_SECONDS) if asked else ([], [])
    found = [
        ActorStatus(run=asked[one].rpartition("/")[0], role=asked[one].rpartition("/")[2]) for one in silent
    ]
    for answer in answered:
        name = asked[answer]
        try:
            found.append(ActorStatus.of(name, ray.get(answer)))
        except RayError:
            found.append(ActorStatus(run=name.rpartition("/")[0], role=name.rpartition("/")[2]))
    return living_nodes(), sorted(found, key=lambda one: (one.run, one.role))


def describe_status(nodes: Sequence[Node], actors: Sequence[ActorStatus]) -> Group:
    """Two tables: nodes with their roles, and actors with their load."""
    shown = Table("node", "CPUs", "GPUs", "actors")
    for address, members in _by_address(nodes).items():
        total = Counter[str]()
        for node in members:
            total.update({kind: node.resources.get(kind, 0.0) for kind in ("CPU", "GPU")})
        here = Counter(kind_of(actor.role) for actor in actors if actor.node == address)
        listed = ", ".join(f"{count} x {kind}" for kind, count in sorted(here.items()))
        shown.add_row(address, f"{total['CPU']:g}", f"{total['GPU']:g}", listed)
    if not actors:
        return Group(shown, Text("no run uses this cluster now"))
    roles = Table("run", "role", "node", "state", "load", "restarts")
    for one in actors:
        roles.add_row(one.run, one.role, one.node, one.state, one.load, str(one.restarts))
    return Group(shown, roles)


def kind_of(role: str) -> str:
    """A role without its number.

    >>> kind_of("environment host 12")
    'environment host'
    """
    return role.rstrip("0123456789").rstrip()


def _by_address(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """Nodes of one machine together."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.address, []).append(node)
    return found
