"""Messages between an environment and its worker."""

import asyncio
import socket
import struct

import pytest

from arpo.envs.osworld.messages import (
    MAX_BYTES,
    InvalidMessage,
    encode_message,
    receive,
    receive_async,
    send,
)


def test_a_message_arrives_as_it_was_sent():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, {"text": "两"}, b"png")
        send(ours, [1, None])
        assert receive(theirs) == ({"text": "两"}, b"png")
        assert receive(theirs) == ([1, None], b"")


def test_truncated_message_raises_eof():
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(encode_message({}, b"png")[:-1])
        with pytest.raises(EOFError):
            receive(theirs)


@pytest.mark.parametrize(
    ("sent", "message"),
    [(struct.pack(">II", 0, MAX_BYTES + 1), "bytes"), (struct.pack(">II", 3, 0) + b"{]}", "not JSON")],
)
def test_invalid_message_is_rejected(sent, message):
    async def read():
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        await receive_async(reader)

    with pytest.raises(InvalidMessage, match=message):
        asyncio.run(read())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(sent)
        with pytest.raises(InvalidMessage, match=message):
            receive(theirs)
