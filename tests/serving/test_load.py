import asyncio
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from rich.console import Console

import fake_server
from arpo.http_server import Connections, bind, connection_limit, listening
from arpo.serving.load import Load, load_line, load_table, parse_load, read_load
from arpo.serving.servers import Place


def server(port, state, restarts=0):
    place = Place(host="127.0.0.1", port=port)
    return SimpleNamespace(place=place, state=state, restarts=restarts)


def test_the_load_of_a_server():
    load = parse_load(fake_server.METRICS.decode(), {"weight_version": "run-7\x1b"})
    assert load == Load(running=3, waiting=2, cache=0.125, weights="run-7\ufffd")


def test_a_server_that_answers_something_else():
    with pytest.raises(KeyError):
        parse_load("", {"weight_version": "1"})
    with pytest.raises(KeyError):
        parse_load(fake_server.METRICS.decode(), {})


def test_table_and_line():
    servers = [server(9000, "healthy"), server(9001, "starting", restarts=2)]
    loads = [Load(running=3, waiting=2, cache=0.125, weights="default"), None]
    assert load_line(servers, loads) == "1 of 2 servers healthy, 3 running, 2 waiting, 2 restarts"
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(load_table(servers, loads))
    words = [line.replace("│", " ").split() for line in captured.get().splitlines()]
    assert ["http://127.0.0.1:9000", "healthy", "3", "2", "12%", "default", "0"] in words
    assert ["http://127.0.0.1:9001", "starting", "–", "–", "–", "–", "2"] in words


def test_metrics_that_arrive_in_parts_are_read_to_the_end():
    async def metrics(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        for line in fake_server.METRICS.splitlines(keepends=True):
            await answer.write(line)
            await asyncio.sleep(0.02)
        return answer

    async def weights(request):
        return web.json_response({"weight_version": "run-7"})

    async def ask():
        application = web.Application()
        application.add_routes([web.get("/metrics", metrics), web.get("/weight_info", weights)])
        connections = Connections(connection_limit())
        async with (
            listening(application, bind("127.0.0.1", 0), connections) as port,
            aiohttp.ClientSession() as session,
        ):
            return await read_load(session, f"http://127.0.0.1:{port}")

    assert asyncio.run(ask()) == Load(running=3, waiting=2, cache=0.125, weights="run-7")
