"""Messages between an environment and its worker: a JSON value, and the bytes of a picture beside it.

Both lengths come first. Nothing is pickled; a length that no message has is refused, and so is text that is
not JSON.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

LENGTHS = struct.Struct(">II")
LARGEST = 256 * 2**20


class Garbled(Exception):
    """What came is not a message of this protocol."""


def packed(value: Any, picture: bytes = b"") -> bytes:
    text = json.dumps(value).encode()
    return LENGTHS.pack(len(text), len(picture)) + text + picture


def send(connection: socket.socket, value: Any, picture: bytes = b"") -> None:
    connection.sendall(packed(value, picture))


def receive(connection: socket.socket) -> tuple[Any, bytes]:
    """Waits for the whole message; EOFError when the other side has closed."""
    text, picture = _lengths(_exactly(connection, LENGTHS.size))
    return _value(_exactly(connection, text)), _exactly(connection, picture)


async def receive_async(reader: asyncio.StreamReader) -> tuple[Any, bytes]:
    """The same; asyncio.IncompleteReadError, an EOFError, when the other side has closed."""
    text, picture = _lengths(await reader.readexactly(LENGTHS.size))
    return _value(await reader.readexactly(text)), await reader.readexactly(picture)


def _lengths(head: bytes) -> tuple[int, int]:
    text, picture = LENGTHS.unpack(head)
    if max(text, picture) > LARGEST:
        raise Garbled(f"a message of {max(text, picture)} bytes")
    return text, picture


def _value(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Garbled(f"a message that is not JSON: {error}") from error


def _exactly(connection: socket.socket, length: int) -> bytes:
    taken = bytearray()
    while len(taken) < length:
        more = connection.recv(min(length - len(taken), 2**20))
        if not more:
            raise EOFError("the other side has closed")
        taken += more
    return bytes(taken)
