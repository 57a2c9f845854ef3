"""The Ray actor of a learner rank: it starts the process of the rank on its node, and waits for its end.

The actor connects to rank 0 and makes the connection the stdin of the process. So commands reach the rank
without passing through Ray, and the rank exits when rank 0 closes the connection or ends.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from arpo import __version__
from arpo.errors import UserError
from arpo.learner.rank_processes import OUTPUT_LINES_KEPT, wait_for_exit

_CHALLENGE_BYTES = 32
_HANDSHAKE_SECONDS = 20.0


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
        with connect_to_rank_0(order, self._number) as connection:
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


def connect_to_rank_0(order: RankOrder, rank: int) -> socket.socket:
    """Connect and prove the knowledge of the token, without sending it."""
    connection = socket.create_connection(order.commands, timeout=_HANDSHAKE_SECONDS)
    keep_alive(connection)
    challenge = _read(connection, _CHALLENGE_BYTES)
    number = rank.to_bytes(4)
    connection.sendall(number + hmac.digest(order.token, challenge + number, "sha256"))
    connection.settimeout(None)
    return connection


def accept_rank(listener: socket.socket, token: bytes) -> tuple[int, socket.socket] | None:
    """The next connection and the number of its rank. None if the other side does not know the token.

    Raises `TimeoutError` if nothing connects within the timeout of the listener.
    """
    connection, _ = listener.accept()
    connection.settimeout(_HANDSHAKE_SECONDS)
    try:
        challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        connection.sendall(challenge)
        number = _read(connection, 4)
        proof = _read(connection, 32)
    except OSError:
        connection.close()
        return None
    if not hmac.compare_digest(proof, hmac.digest(token, challenge + number, "sha256")):
        connection.close()
        return None
    keep_alive(connection)
    return int.from_bytes(number), connection


def keep_alive(connection: socket.socket) -> None:
    """Notice within a minute if the other machine has lost power or its network."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        with suppress(OSError, AttributeError):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _read(connection: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes. Raises OSError if the connection ends before."""
    data = b""
    while len(data) < size:
        if not (part := connection.recv(size - len(data))):
            raise ConnectionError("the connection was closed")
        data += part
    return data
