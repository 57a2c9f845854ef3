"""Protocol between an environment and its worker process, also of envs/gymnasium.

A message is a JSON value plus the bytes of an optional screenshot. The lengths of both come first. Nothing is
pickled. A message with an impossible length or invalid JSON raises `InvalidMessage`.

The worker's folder also carries two files: `CRASH_FILE` and `MACHINE_FILE`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

CRASH_FILE = "crash.txt"  # the stack of the worker at the moment of a crash
MACHINE_FILE = "machine.json"  # exists while a virtual machine runs: it would outlive a crashed worker

LENGTHS = struct.Struct(">II")
MAX_BYTES = 256 * 2**20
MAX_PACKET_BYTES = 2**16  # of a request to the fork server


class InvalidMessage(Exception):
    """The received bytes do not follow this protocol."""


def encode_message(value: Any, screenshot: bytes = b"") -> bytes:
    text = json.dumps(value).encode()
    return LENGTHS.pack(len(text), len(screenshot)) + text + screenshot


def send(connection: socket.socket, value: Any, screenshot: bytes = b"") -> None:
    connection.sendall(encode_message(value, screenshot))


def receive(connection: socket.socket) -> tuple[Any, bytes]:
    """Blocks until a whole message has arrived. Raises EOFError if the peer closed the connection."""
    text, screenshot = _decode_lengths(_receive_exactly(connection, LENGTHS.size))
    return _decode_json(_receive_exactly(connection, text)), _receive_exactly(connection, screenshot)


async def receive_async(reader: asyncio.StreamReader) -> tuple[Any, bytes]:
    """Like `receive`. Raises asyncio.IncompleteReadError, an EOFError, if the peer closed the connection."""
    text, screenshot = _decode_lengths(await reader.readexactly(LENGTHS.size))
    return _decode_json(await reader.readexactly(text)), await reader.readexactly(screenshot)


async def call_socket(connection: socket.socket, value: Any) -> tuple[Any, bytes]:
    """Send a message through a non-blocking socket and receive the answer. Raises EOFError as `receive`."""
    loop = asyncio.get_running_loop()

    async def exactly(length: int) -> bytes:
        received = bytearray()
        while len(received) < length:
            chunk = await loop.sock_recv(connection, min(length - len(received), 2**20))
            if not chunk:
                raise EOFError("the peer closed the connection")
            received += chunk
        return bytes(received)

    await loop.sock_sendall(connection, encode_message(value))
    text, screenshot = _decode_lengths(await exactly(LENGTHS.size))
    return _decode_json(await exactly(text)), await exactly(screenshot)


def _decode_lengths(head: bytes) -> tuple[int, int]:
    text, screenshot = LENGTHS.unpack(head)
    if max(text, screenshot) > MAX_BYTES:
        raise InvalidMessage(f"message of {max(text, screenshot)} bytes: the limit is {MAX_BYTES} bytes")
    return text, screenshot


def _decode_json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidMessage(f"message is not JSON: {error}") from error


def _receive_exactly(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        chunk = connection.recv(min(length - len(received), 2**20))
        if not chunk:
            raise EOFError("the peer closed the connection")
        received += chunk
    return bytes(received)
