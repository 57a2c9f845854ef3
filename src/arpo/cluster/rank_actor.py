"""The Ray actor of a learner rank: it starts the process of the rank on its node, and waits for its end.

The actor connects to rank 0 and makes the connection the stdin of the process. So commands reach the rank
without passing through Ray, and the rank exits when rank 0 closes the connection or ends. Rank 0 sends a
challenge on each connection. The actor answers with its number and a proof that it knows the token.
"""

from __future__ import annotations

import hmac
import os
import queue
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from arpo import __version__
from arpo.errors import UserError
from arpo.http_server import HEADER_SECONDS, STRANGERS
from arpo.learner.rank_processes import RANK_MODULE, WITH_PARENT
from arpo.processes.child import Child, python_command

_CHALLENGE_BYTES = 32
_NUMBER_BYTES = 4
_ANSWER_BYTES = _NUMBER_BYTES + 32  # with a SHA-256 proof
_CONNECT_SECONDS = 20.0
_RETRY_SECONDS = 0.05


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
        self._child: Child | None = None

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
        with connect_to_rank_0(order.commands, order.token, self._number) as connection:
            self._child = Child(
                python_command(RANK_MODULE, str(self._number), order.store, WITH_PARENT),
                env=os.environ | interface_variables(self._node),
                stdin=connection.fileno(),
                cwd=order.folder if os.path.isdir(order.folder) else None,
            )
        self._child.wait()
        return self._child.process.returncode, self._child.last_lines

    def kill(self) -> None:
        """Kill the process of a rank that does not respond."""
        if self._child is not None:
            self._child.end()

    def status(self) -> dict[str, Any]:
        """For `arpo cluster status`, as that of a service."""
        running = self._child is not None and self._child.exit_reason is None
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


class RankListener:
    """Accepts the connections of ranks. Each caller has a thread: a silent one delays nobody.

    A caller without a valid answer has HEADER_SECONDS. A new one replaces the oldest of STRANGERS of them;
    closing the listener closes them.
    """

    def __init__(self, host: str, token: bytes) -> None:
        self._token, self._closed = token, False
        self._listener = socket.create_server((host, 0))
        self.address: tuple[str, int] = (host, self._listener.getsockname()[1])
        self._ranks: queue.SimpleQueue[tuple[int, socket.socket]] = queue.SimpleQueue()
        self._callers: dict[socket.socket, None] = {}  # without a valid answer, oldest first
        threading.Thread(target=self._greet, daemon=True).start()

    def accept(self, seconds: float) -> dict[int, socket.socket]:
        """The next connection by rank; {} after `seconds`."""
        try:
            return dict([self._ranks.get(timeout=seconds)])
        except queue.Empty:
            return {}

    def close(self) -> None:
        self._closed = True
        for connection in (self._listener, *self._callers):
            _wake(connection)
        self._listener.close()

    def _greet(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # the caller has gone, no file may be opened, or this listener is closed
                time.sleep(_RETRY_SECONDS)
                continue
            for oldest in list(self._callers)[: 1 - STRANGERS]:
                self._callers.pop(oldest, None)
                _wake(oldest)
            self._callers[connection] = None
            try:
                threading.Thread(target=self._examine, args=[connection], daemon=True).start()
            except RuntimeError:  # no thread may be started: costs one connection, not the listener
                self._callers.pop(connection, None)
                connection.close()
                time.sleep(_RETRY_SECONDS)

    def _examine(self, connection: socket.socket) -> None:
        challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        try:
            connection.settimeout(HEADER_SECONDS)
            connection.sendall(challenge)
            answer = _read(connection, _ANSWER_BYTES, HEADER_SECONDS)
            number, proof = answer[:_NUMBER_BYTES], answer[_NUMBER_BYTES:]
            if not hmac.compare_digest(proof, _proof(self._token, challenge, number)):
                raise ConnectionError("wrong token")
            connection.settimeout(None)
            _keep_alive(connection)
        except OSError:
            connection.close()
        else:
            self._ranks.put((int.from_bytes(number), connection))
        finally:
            self._callers.pop(connection, None)


def _wake(connection: socket.socket) -> None:
    """End the connection, so that the thread that waits for it goes on."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def connect_to_rank_0(address: tuple[str, int], token: bytes, rank: int) -> socket.socket:
    """Connect and prove the knowledge of the token, without sending it."""
    connection = socket.create_connection(address, timeout=_CONNECT_SECONDS)
    _keep_alive(connection)
    challenge = _read(connection, _CHALLENGE_BYTES, _CONNECT_SECONDS)
    number = rank.to_bytes(_NUMBER_BYTES)
    connection.sendall(number + _proof(token, challenge, number))
    connection.settimeout(None)
    return connection


def _keep_alive(connection: socket.socket) -> None:
    """Notice within a minute if the other machine has lost power or its network."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        with suppress(OSError, AttributeError):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _proof(token: bytes, challenge: bytes, number: bytes) -> bytes:
    return hmac.digest(token, challenge + number, "sha256")


def _read(connection: socket.socket, size: int, seconds: float) -> bytes:
    """Exactly `size` bytes. Raises OSError if the connection ends before, or after `seconds` in all."""
    data, end = b"", time.monotonic() + seconds
    while len(data) < size:
        if (left := end - time.monotonic()) <= 0:
            raise TimeoutError(f"{len(data)} of {size} bytes in {seconds:g} s")
        connection.settimeout(left)
        if not (part := connection.recv(size - len(data))):
            raise ConnectionError("the connection was closed")
        data += part
    return data
