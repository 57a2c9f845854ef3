"""HTTP calls of set-up steps and checks."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from arpo.envs.browser import http_calls
from arpo.errors import EnvError


@asynccontextmanager
async def answering(*parts):
    """The URL of a server whose answer arrives in these parts, one after the other."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        length = sum(map(len, parts))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % length)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


def answer_in(*parts):
    async def ask():
        async with answering(*parts) as url:
            return await http_calls.call({"url": url}, "evaluate")

    return asyncio.run(ask())


def test_the_whole_answer_is_read():
    assert answer_in(b"<h1>Shop</h1>", b"Thank you").text == "<h1>Shop</h1>Thank you"
    listed = answer_in(b'{"items": ["', b"a" * 600_000, b'"], "paid": true}')
    assert listed.json("evaluate", "")["paid"] is True


def test_a_huge_answer_is_a_fault():
    part = bytes(http_calls.MAX_BYTES // 2 + 1)
    with pytest.raises(EnvError, match="the answer has more than 4,194,304 bytes"):
        answer_in(part, part, part)
