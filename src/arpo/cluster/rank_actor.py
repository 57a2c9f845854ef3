"""The Ray actor of a learner rank: it starts the process of the rank on its node, and waits for its end.

The actor connects to rank 0 and makes the connection the stdin of the process. So commands reach the rank
without passing through Ray, and the rank exits when rank 0 closes the connection or ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

from arpo import __version__
from arpo.cluster.rank_connections import connect_to_rank_0
from arpo.errors import UserError
from arpo.learner.rank_processes import OUTPUT_LINES_KEPT, wait_for_exit


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """The work of all actors. `folder` is the current folder of rank 0, used if the node has it too."""

    store: str
    commands: tuple[str, int]  # address of rank 0's listener
    token: bytes
    folder: str
    version: str = __version__


class RankActor:
    """Made by Ray on a node."""

    def __init__(self, number: int, restarts: int) -> None:
        import ray

        self._number, self._restarts = number, restarts
        self._node = str(ray.util.get_node_ip_address())
        self._process: subprocess.Popen[bytes] | None = None

    def node(self) -> str:
        """The IP address of the node."""
        return self._node

    def run(self, order: RankOrder) -> tuple[int, list[str]]:
        """Run the rank. Returns its return code and its last lines of stderr when it has ended."""
        if order.version != __version__:
            raise UserError(
                f"{self._node}: has arpo {__version__}, the driver has {order.version}: install the same "
                "version on all nodes"
            )
        lines: deque[str] = deque(maxlen=OUTPUT_LINES_KEPT)
        with connect_to_rank_0(order.commands, order.token, self._number) as connection:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "arpo.cluster.rank_process", str(self._number), order.store],
                stdin=connection.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=os.environ | interface_variables(self._node),
                cwd=order.folder if os.path.isdir(order.folder) else None,
            )
        code = wait_for_exit(self._process, lines)
        return code, list(lines)

    def kill(self) -> None:
        """Kill the process of a rank that does not respond."""
        if self._process is not None:
            self._process.kill()

    def status(self) -> dict[str, Any]:
        """For `arpo cluster status`, as that of a service."""
        running = self._process is not None and self._process.poll() is None
        return {
            "role": f"learner rank {self._number}",
            "node": self._node,
            "state": "running" if running else "starting",
            "load": "",
            "restarts": self._restarts,
        }


def interface_variables(address: str) -> dict[str, str]:
    """Environment variables for torch.distributed: the interface of this node."""
    from arpo.learner.ranks import interface_of

    interface = interface_of(address)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {name: interface for name in names if interface and name not in os.environ}
