"""The server of `arpo view`: token, cookie, Host header, methods, headers, and what it never serves."""

import asyncio
import json
import os
import threading
from contextlib import asynccontextmanager

import aiohttp
import pytest
from yarl import URL

from arpo.errors import UserError
from arpo.viewer.library import Library
from arpo.viewer.server import HEADERS, ViewServer
from viewed_runs import make_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("view") / "desk"
    make_run(folder)
    return folder


@asynccontextmanager
async def serving(folder):
    """A server, and a session that has opened its address."""
    library = Library([folder])
    server = ViewServer(library)
    try:
        async with (
            server.started(0),
            aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
        ):
            async with session.get(server.url()) as answer:
                assert answer.status == 200
            yield server, session
    finally:
        library.close()


def address(server, path):
    return URL(f"http://127.0.0.1:{server.port}{path}", encoded=True)


async def get(server, session, path, **options):
    async with session.get(address(server, path), **options) as answer:
        return answer.status, await answer.read(), answer.headers


def served(folder, *paths):
    """(status, content, headers) of each path, with the cookie."""

    async def ask():
        async with serving(folder) as (server, session):
            while not server.library.refresh(5.0):
                pass
            return [await get(server, session, path) for path in paths]

    return asyncio.run(ask())


def test_the_token_becomes_a_cookie_and_leaves_the_address(folder):
    async def check():
        async with serving(folder) as (server, _), aiohttp.ClientSession() as stranger:
            url = URL(server.url("/s/desk"), encoded=True)
            async with stranger.get(url, allow_redirects=False) as answer:
                assert answer.status == 200 and "static/welcome.js" in await answer.text()
                cookie = answer.headers["Set-Cookie"]
            assert cookie.startswith(f"arpo_view_{server.port}={server.token}")
            assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
            assert server.url("/s/desk").endswith("#/s/desk")

    asyncio.run(check())


def test_nothing_without_the_token(folder):
    async def check():
        async with serving(folder) as (server, _), aiohttp.ClientSession() as stranger:
            for path in ("/", "/static/app.js", "/api/sources", "/api/s/desk/episodes"):
                status, content, headers = await get(server, stranger, path)
                assert status == 403 and b"desk" not in content
                assert HEADERS.items() <= headers.items()
            for token in ("", "x", server.token[:-1]):
                assert (await get(server, stranger, f"/?token={token}"))[0] == 403
            for value in ("wrong", "\udcff"):  # the second one is the byte FF
                wrong = {"Cookie": f"{server.cookie}={value}"}
                assert (await get(server, stranger, "/api/sources", headers=wrong))[0] == 403

    asyncio.run(check())


def test_two_viewers_in_one_browser(folder, tmp_path):
    make_run(tmp_path / "other")

    async def check():
        async with serving(folder) as (first, session), serving(tmp_path / "other") as (second, _):
            async with session.get(second.url()) as answer:
                assert answer.status == 200
            for server in (first, second):
                assert (await get(server, session, "/api/sources"))[0] == 200

    asyncio.run(check())


def test_idle_connections_do_not_silence_the_viewer(folder):
    """As many strangers as the limit, and one more: the first one is closed, callers are not."""

    async def check():
        async with serving(folder) as (server, session):
            strangers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(64)]
            assert await strangers[0][0].read() == b""
            for browser in (session, aiohttp.ClientSession(cookie_jar=session.cookie_jar)):
                async with browser:
                    assert (await get(server, browser, "/api/sources"))[0] == 200
            for _, writer in strangers:
                writer.close()

    asyncio.run(asyncio.wait_for(check(), 60))


def test_another_host_name_is_refused(folder):
    async def check():
        async with serving(folder) as (server, session):
            for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", "127.0.0.1:1"):
                assert (await get(server, session, "/api/sources", headers={"Host": host}))[0] == 421
            named = {"Host": f"localhost:{server.port}"}
            assert (await get(server, session, "/api/sources", headers=named))[0] == 200

    asyncio.run(check())


def test_only_get(folder):
    async def check():
        async with serving(folder) as (server, session):
            for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
                async with session.request(method, address(server, "/api/sources")) as answer:
                    assert answer.status == 405
                    assert "Access-Control-Allow-Origin" not in answer.headers

    asyncio.run(check())


def test_every_answer_has_the_safety_headers(folder):
    answers = served(folder, "/", "/static/app.js", "/api/sources", "/api/missing", "/static/missing.js")
    assert [status for status, _, _ in answers] == [200, 200, 200, 404, 404]
    for _, _, headers in answers:
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


ODD_ADDRESSES = (
    "/static/../server.py",
    "/static/..%2fserver.py",
    "/static/%2e%2e/server.py",
    "/static//etc/passwd",
    "/api/s/..%2f..%2fetc/metrics",
    "/api/s/desk/shots/..%2f..%2frecipe.toml",
    "/api/s/desk/shots/%2fetc%2fpasswd",
    "/api/s/desk/episodes/..%2f..%2fetc%2fpasswd",
    "/api/s/desk/groups/%00",
    "/api/s/desk/batches/99999999999999999999",
    "/api/s/desk/batches/-1",
    "/api/s/desk/episodes/batch-1-0-0/tokens/0",
    "/api/s/desk/shots/" + "0" * 64 + "?w=abc",
    "/api/s/desk/episodes?sort=n;--",
    "/api",
)


def test_odd_addresses_get_an_error_and_no_file(folder):
    for path, (status, content, _) in zip(ODD_ADDRESSES, served(folder, *ODD_ADDRESSES), strict=True):
        assert status in (404, 422), path
        assert set(json.loads(content)) == {"error"}, path


def test_pictures_and_thumbnails(folder):
    ((_, content, _),) = served(folder, "/api/s/desk/episodes/batch-1-0-0")
    url = json.loads(content)["steps_list"][0]["shot"]["url"]
    (status, png, headers), (small_status, jpeg, small) = served(folder, url, f"{url}?w=64")
    assert (status, headers["Content-Type"], png[:4]) == (200, "image/png", b"\x89PNG")
    assert "immutable" in headers["Cache-Control"]
    assert (small_status, small["Content-Type"]) == (200, "image/jpeg")
    assert len(jpeg) < 5000


def test_text_of_a_model_stays_json_text(folder):
    ((_, content, headers),) = served(folder, "/api/search?text=" + "%3Cscript%3E")
    assert headers["Content-Type"].startswith("application/json")
    assert json.loads(content)["text"] == "<script>"


def test_new_content_appears_by_itself(tmp_path):
    async def check():
        make_run(tmp_path / "runs" / "first")
        async with serving(tmp_path / "runs") as (server, session):
            make_run(tmp_path / "runs" / "second")
            names: list[str] = []
            while len(names) < 2:
                _, content, _ = await get(server, session, "/api/sources")
                names = [source["id"] for source in json.loads(content)["sources"]]
                await asyncio.sleep(0.1)
            assert names == ["first", "second"]

    asyncio.run(asyncio.wait_for(check(), 60))


def test_a_fault_of_ours_is_one_answer_with_safety_headers(folder, monkeypatch, caplog):
    monkeypatch.setattr("arpo.viewer.library.runs_page", lambda *_: {"a": 1}["missing"])
    (status, content, headers), (other, _, _) = served(folder, "/api/sources", "/api/s/desk/tasks")
    assert (status, other) == (500, 200)
    assert b"missing" not in content and HEADERS.items() <= headers.items()
    assert "KeyError" in caplog.text


def test_indexing_has_a_low_priority_and_requests_do_not(folder):
    async def priority(threads):
        def own():
            return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

        return await asyncio.get_running_loop().run_in_executor(threads, own)

    async def check():
        async with serving(folder) as (server, _):
            own = os.getpriority(os.PRIO_PROCESS, 0)
            assert await priority(server._indexing) == max(own, 10)
            assert await priority(server._threads) == own

    asyncio.run(check())


def test_indexing_waits_for_requests(folder, monkeypatch):
    monkeypatch.setattr("arpo.viewer.server.REFRESH_SECONDS", 0.0)
    slices, begun, indexed, answer_now = [], threading.Event(), threading.Event(), threading.Event()

    def refresh(seconds):
        slices.append(seconds)
        indexed.set()

    def answer_late(*_):
        begun.set()
        answer_now.wait()
        return {"sources": []}

    async def check():
        async with serving(folder) as (server, session):
            monkeypatch.setattr(server.library, "refresh", refresh)
            monkeypatch.setattr("arpo.viewer.library.runs_page", answer_late)
            request = asyncio.create_task(get(server, session, "/api/sources"))
            assert await asyncio.to_thread(begun.wait, 20)
            await asyncio.sleep(0.2)  # a slice from before the request may end
            before = len(slices)
            await asyncio.sleep(0.3)
            during = len(slices) - before
            indexed.clear()
            answer_now.set()
            assert (await request)[0] == 200
            assert during == 0
            assert await asyncio.to_thread(indexed.wait, 20)

    asyncio.run(check())


def test_a_taken_port_is_one_error(folder):
    async def check():
        async with serving(folder) as (server, _):
            second = ViewServer(server.library)
            with pytest.raises(UserError, match="choose another port"):
                async with second.started(server.port):
                    pass

    asyncio.run(check())
