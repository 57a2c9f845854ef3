import asyncio

import pytest

from arpo.engines.vllm_access import KeyRequired, key_headers, read_key
from arpo.errors import UserError

KEY = "0123456789abcdef"


def statuses(monkeypatch, key, headers, kind="http"):
    """What the middleware sends for a request with these headers; "passed" if the request reaches vLLM."""
    sent = []

    async def vllm(scope, receive, send):
        sent.append("passed")

    async def send(message):
        sent.append(message.get("status") or message["type"])

    async def receive():
        raise AssertionError("a refused request is not read")

    monkeypatch.delenv("ARPO_ENGINE_KEY", raising=False)
    if key:
        monkeypatch.setenv("ARPO_ENGINE_KEY", key)
    scope = {"type": kind, "path": "/collective_rpc", "headers": headers}
    asyncio.run(KeyRequired(vllm)(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (b"Bearer 0123456789abcdef", ["passed"]),
        (b"Bearer 0123456789abcdeF", [401, "http.response.body"]),
        (b"0123456789abcdef", [401, "http.response.body"]),
        (b"", [401, "http.response.body"]),
    ],
)
def test_a_server_with_a_key_refuses_other_callers(monkeypatch, given, sent):
    assert statuses(monkeypatch, KEY, [(b"host", b"127.0.0.1:9000"), (b"authorization", given)]) == sent


@pytest.mark.parametrize(
    "host", [b"127.0.0.1:9000", b"localhost:9000", b"[::1]:9000", b"[::1]", b"127.0.0.2"]
)
def test_a_server_without_a_key_accepts_loopback_names(monkeypatch, host):
    assert statuses(monkeypatch, "", [(b"host", host)]) == ["passed"]


@pytest.mark.parametrize(
    "host", [b"evil.example:9000", b"10.0.0.1:9000", b"", b"[", b"127.0.0.1.evil.example"]
)
def test_a_server_without_a_key_refuses_other_names(monkeypatch, host):
    assert statuses(monkeypatch, "", [(b"host", host)]) == [401, "http.response.body"]


@pytest.mark.parametrize("origin", [b"https://evil.example", b"null", b"http://127.0.0.1:8000"])
def test_a_server_without_a_key_refuses_web_pages(monkeypatch, origin):
    headers = [(b"host", b"127.0.0.1:9000"), (b"origin", origin)]
    assert statuses(monkeypatch, "", headers) == [401, "http.response.body"]


def test_a_websocket_is_closed_and_the_lifespan_passes(monkeypatch):
    assert statuses(monkeypatch, KEY, [], kind="websocket") == ["websocket.close"]
    assert statuses(monkeypatch, KEY, [], kind="lifespan") == ["passed"]


def test_the_key_comes_from_the_environment():
    assert read_key({"ARPO_ENGINE_KEY": KEY}) == KEY
    assert read_key({}) == ""
    assert key_headers(KEY) == {"Authorization": "Bearer 0123456789abcdef"}
    assert key_headers("") == {}
    with pytest.raises(UserError, match="ARPO_ENGINE_KEY: must be at least 16 ASCII characters"):
        read_key({"ARPO_ENGINE_KEY": "short"})
