"""`arpo cluster`: shows the nodes of a Ray cluster, and the roles of all runs on them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from arpo.cli.command import Command, argument


def run_cluster(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from rich.console import Console

    from arpo.cluster.status import describe_status, read_status

    Console().print(describe_status(*read_status(options.ray)))
    return 0


COMMAND = Command(
    name="cluster",
    run=run_cluster,
    purpose="show the nodes and roles of a Ray cluster",
    lesson="""\
status: prints the nodes of a Ray cluster, and each vLLM server, environment host and learner rank of the runs
on it: node, state, load and number of restarts. Changes nothing.
`arpo train RECIPE --cluster.ray auto` runs on a Ray cluster: engine.replicas vLLM servers, cluster.hosts
environment hosts and optim.ranks learner ranks are placed on its nodes. If a node is lost, its servers and
hosts start again on other nodes, and the run continues. The keys cluster.* choose nodes and CPUs.
All nodes need the same version of ARPO, with the extra: pip install 'arpo[ray]'.""",
    example="""\
ray start --head
arpo train osworld_full --cluster.ray auto --cluster.hosts 16 --engine.name vllm --engine.replicas 32
arpo cluster status
arpo cluster status --ray 10.0.0.1:6379""",
    arguments=(
        argument("action", "status", choices=("status",), metavar="status"),
        argument(
            "--ray",
            "address of the cluster, such as 10.0.0.1:6379 (default: of this machine, or RAY_ADDRESS)",
            default="auto",
            metavar="HOST:PORT",
        ),
    ),
)
