"""Connections to servers are reused, but not for so long that the server may close them; refusals."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from arpo.engines import http_exchange
from arpo.engines.http_exchange import HttpExchange, refusal
from arpo.errors import EngineError, RequestRefused
from arpo.http_server import Connections, bind, connection_limit, listening


@pytest.mark.parametrize(("idle", "connections"), [(60.0, 1), (0.01, 2)])
def test_an_idle_connection_is_not_used_again(
    idle: float, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_exchange, "IDLE_SECONDS", idle)
    callers = set()

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        callers.add(request.transport.get_extra_info("peername"))
        return web.Response(text="{}")

    async def run() -> None:
        app, exchange = web.Application(), HttpExchange("", 1000, "engine.endpoints")
        app.router.add_post("/", answer)
        async with listening(app, bind("127.0.0.1", 0), Connections(connection_limit())) as port:
            exchange.open()
            for _ in range(2):
                assert (await exchange.request("POST", f"http://127.0.0.1:{port}/", b"{}", 30.0))[0] == 200
                await asyncio.sleep(0.1)
            await exchange.close()

    asyncio.run(run())
    assert len(callers) == connections


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "The response was filtered", RequestRefused),
        (413, "", RequestRefused),
        (400, "Your credit balance is too low", EngineError),
        (400, "API key expired", EngineError),
        (401, "The response was filtered", EngineError),
        (404, "no such model", EngineError),
    ],
)
def test_a_refusal_because_of_the_content_differs_from_others(
    status: int, text: str, kind: type[EngineError]
) -> None:
    assert refusal(status, text) is kind
