"""The connections between rank 0 and the other ranks of a learner, made with a token.

The listener sends a challenge. A rank answers with its number and a proof that it knows the token.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

_CHALLENGE_BYTES = 32
_NUMBER_BYTES = 4
_ANSWER_BYTES = _NUMBER_BYTES + 32  # with a SHA-256 proof
_HANDSHAKE_SECONDS = 20.0


def connect_to_rank_0(address: tuple[str, int], token: bytes, rank: int) -> socket.socket:
    """Connect and prove the knowledge of the token, without sending it."""
    connection = socket.create_connection(address, timeout=_HANDSHAKE_SECONDS)
    keep_alive(connection)
    challenge = _read(connection, _CHALLENGE_BYTES)
    number = rank.to_bytes(_NUMBER_BYTES)
    connection.sendall(number + _proof(token, challenge, number))
    connection.settimeout(None)
    return connection


@dataclass(slots=True, kw_only=True)
class _Caller:
    """A connection that has not proven anything yet."""

    connection: socket.socket
    deadline: float
    challenge: bytes = field(default_factory=lambda: secrets.token_bytes(_CHALLENGE_BYTES))
    answer: bytes = b""


class RankListener:
    """Accepts the connections of ranks. It reads all answers at the same time: a silent caller delays nobody.

    Closing it closes the connections without a valid answer.
    """

    def __init__(self, host: str, token: bytes) -> None:
        self._token = token
        self._listener = socket.create_server((host, 0))
        self._listener.setblocking(False)
        self.address: tuple[str, int] = (host, self._listener.getsockname()[1])
        self._callers: dict[int, _Caller] = {}  # by file descriptor
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def accept(self, seconds: float) -> dict[int, socket.socket]:
        """New connections by rank. Returns at the first event, or after `seconds`; often without any."""
        found = {}
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._greet()
            elif (rank := self._hear(self._callers[key.fd])) is not None:
                found[rank[0]] = rank[1]
        for caller in list(self._callers.values()):
            if time.monotonic() > caller.deadline:
                self._dismiss(caller)
        return found

    def close(self) -> None:
        for caller in list(self._callers.values()):
            self._dismiss(caller)
        self._selector.close()
        self._listener.close()

    def _greet(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the caller has gone
            return
        connection.setblocking(False)
        caller = _Caller(connection=connection, deadline=time.monotonic() + _HANDSHAKE_SECONDS)
        self._callers[connection.fileno()] = caller
        self._selector.register(connection, selectors.EVENT_READ)
        try:
            connection.sendall(caller.challenge)  # a new connection takes as much as this
        except OSError:
            self._dismiss(caller)

    def _hear(self, caller: _Caller) -> tuple[int, socket.socket] | None:
        """The number and connection of a rank, once its answer is complete and right."""
        try:
            part = caller.connection.recv(_ANSWER_BYTES - len(caller.answer))
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        caller.answer += part
        if part and len(caller.answer) < _ANSWER_BYTES:
            return None
        number, proof = caller.answer[:_NUMBER_BYTES], caller.answer[_NUMBER_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._token, caller.challenge, number)):
            self._dismiss(caller)
            return None
        self._forget(caller)
        caller.connection.setblocking(True)
        keep_alive(caller.connection)
        return int.from_bytes(number), caller.connection

    def _forget(self, caller: _Caller) -> None:
        del self._callers[caller.connection.fileno()]
        self._selector.unregister(caller.connection)

    def _dismiss(self, caller: _Caller) -> None:
        self._forget(caller)
        caller.connection.close()


def keep_alive(connection: socket.socket) -> None:
    """Notice within a minute if the other machine has lost power or its network."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        with suppress(OSError, AttributeError):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _proof(token: bytes, challenge: bytes, number: bytes) -> bytes:
    return hmac.digest(token, challenge + number, "sha256")


def _read(connection: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes. Raises OSError if the connection ends before."""
    data = b""
    while len(data) < size:
        if not (part := connection.recv(size - len(data))):
            raise ConnectionError("the connection was closed")
        data += part
    return data
