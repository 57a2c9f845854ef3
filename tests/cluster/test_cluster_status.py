"""Tables of `arpo cluster status`."""

from __future__ import annotations

import io

from rich.console import Console

from arpo.cluster.nodes import Node
from arpo.cluster.status import ActorStatus, describe_status, kind_of

NODES = [
    Node(id="a", address="10.0.0.1", resources={"CPU": 8.0}),
    Node(id="b", address="10.0.0.2", resources={"CPU": 16.0, "GPU": 2.0}),
    Node(id="c", address="10.0.0.2", resources={"CPU": 4.0}),
]


def rows(*actors: ActorStatus) -> list[list[str]]:
    """The cells of all rows."""
    written = io.StringIO()
    Console(file=written, width=200).print(describe_status(NODES, actors))
    text = written.getvalue()
    return [[cell.strip() for cell in line.strip("│┃").split("│")] for line in text.splitlines()]


def test_nodes_and_roles_are_shown():
    name = "desk-a1b2c3/vLLM server 0"
    found = {
        "role": "vLLM server 0",
        "node": "10.0.0.2",
        "state": "running",
        "load": "3 running, 1 waiting, cache 12%",
        "restarts": 2,
    }
    shown = rows(ActorStatus.of(name, found), ActorStatus(run="desk-a1b2c3", role="vLLM server 1"))
    assert ["10.0.0.1", "8", "0", ""] in shown
    assert ["10.0.0.2", "20", "2", "1 x vLLM server"] in shown
    load = "3 running, 1 waiting, cache 12%"
    assert ["desk-a1b2c3", "vLLM server 0", "10.0.0.2", "running", load, "2"] in shown
    assert ["desk-a1b2c3", "vLLM server 1", "", "no answer", "", "0"] in shown


def test_a_cluster_without_runs_says_so():
    assert ["no run uses this cluster now"] in rows()


def test_text_of_another_node_cannot_control_the_terminal():
    found = {"role": "host\x1b[1m", "node": "n", "state": "s", "load": "", "restarts": 0}
    assert "\x1b" not in ActorStatus.of("run/host", found).role


def test_the_kind_of_a_role_has_no_number():
    assert kind_of("environment host 12") == "environment host"
