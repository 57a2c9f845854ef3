"""Messages between an environment and its worker: whole, or refused."""

import asyncio
import socket
import struct

import pytest

from arpo.envs.osworld.messages import LARGEST, Garbled, packed, receive, receive_async, send


def test_a_message_arrives_as_it_was_sent():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, {"text": "两"}, b"picture")
        send(ours, [1, None])
        assert receive(theirs) == ({"text": "两"}, b"picture")
        assert receive(theirs) == ([1, None], b"")


def test_one_that_is_cut_off_is_the_end():
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(packed({}, b"picture")[:-1])
        with pytest.raises(EOFError):
            receive(theirs)


@pytest.mark.parametrize(
    ("sent", "said"),
    [(struct.pack(">II", 0, LARGEST + 1), "bytes"), (struct.pack(">II", 3, 0) + b"{]}", "not JSON")],
)
def test_one_that_is_none_is_refused(sent, said):
    async def read():
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        await receive_async(reader)

    with pytest.raises(Garbled, match=said):
        asyncio.run(read())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(sent)
        with pytest.raises(Garbled, match=said):
            receive(theirs)
