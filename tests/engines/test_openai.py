"""The engine before servers: what it sends, whom it asks, and what it does about those that fail."""

from __future__ import annotations

import asyncio
import base64
import gzip
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from arpo.actions import Click, Point
from arpo.config import RolloutConfig, ServerConfig
from arpo.dialects.base import Dialect
from arpo.dialects.ui_tars import UI_TARS, UI_TARS_1_5
from arpo.engines.base import Weights
from arpo.engines.openai import OpenAIEngine, endpoints
from arpo.errors import ContextTooLong, EngineError, PromptTooLong, UserError
from arpo.prompts.rendering import ChatRenderer
from arpo.rollout.agent import Agent
from arpo.rollout.episode import run_episode
from arpo.testing import FakeEnv, screenshot, task
from arpo.types import Completion, Message, Prompt, Sampling, StopReason, Trajectory
from openai_server import MODEL, Answer, cuts, hangs, picture, refuses, running, says, serving
from players import CLICK, DONE, TEMPLATE, WAIT

SAMPLING = Sampling(temperature=0.6, max_tokens=50, seed=2**63 - 1)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


def prompt(episode: str = "e", *shades: int) -> Prompt:
    looks = [Message(role="user", screenshot=screenshot(shade)) for shade in shades or (0,)]
    words = (Message(role="system", text="You use a computer."), Message(role="user", text="do it"))
    return Prompt(episode_id=episode, token_ids=(), images=(), messages=(*words, *looks))


def engine(
    *urls: str,
    time: Time | None = None,
    key: str = "",
    seconds: float = 300.0,
    attempts: int = 8,
    **settings: Any,
) -> OpenAIEngine:
    time = time or Time()
    config = ServerConfig(endpoints=",".join(urls), model=MODEL, **settings)
    return OpenAIEngine(config, key, seconds=seconds, attempts=attempts, sleep=time.sleep, clock=time.clock)


@asynccontextmanager
async def connected(engine: OpenAIEngine) -> AsyncIterator[OpenAIEngine]:
    engine.connect()
    try:
        yield engine
    finally:
        await engine.close()


def ask(engine: OpenAIEngine, *prompts: Prompt) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        async with connected(engine):
            return [await engine.generate(one, SAMPLING) for one in prompts or (prompt(),)]

    return asyncio.run(all_of_them())


def probe(engine: OpenAIEngine) -> list[str]:
    async def probed() -> list[str]:
        try:
            return [*await engine.start()]
        finally:
            await engine.close()

    return asyncio.run(probed())


def script(*answers: Any) -> Answer:
    """One answer a request: a text, or what makes a response; the last one again and again."""

    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        said = answers[min(number, len(answers) - 1)]
        if isinstance(said, str):
            return says(said)
        return said(request) if said is cuts else await said()

    return answer


def status(code: int, message: str, **headers: str) -> Any:
    async def refused() -> web.Response:
        return refuses(code, message, **headers)

    return refused


def test_what_is_sent() -> None:
    with serving(script(CLICK)) as server:
        (completion,) = ask(engine(server.url, key="secret", top_p=0.9))
    assert completion == Completion(token_ids=(), logprobs=(), text=CLICK, finish="stop", versions=())
    (sent,) = server.requests
    url = f"data:image/png;base64,{base64.b64encode(screenshot(0).png).decode()}"
    assert sent == {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You use a computer."},
            {"role": "user", "content": "do it"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]},
        ],
        "temperature": 0.6,
        "top_p": 0.9,
        "max_tokens": 50,
        "seed": 2**63 - 1,
        "skip_special_tokens": False,
    }
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_what_is_not_asked_for_is_not_sent() -> None:
    with serving(script(CLICK)) as server:
        ask(engine(server.url, special_tokens=False))
    assert server.requests[0].keys() == {"model", "messages", "temperature", "top_p", "max_tokens", "seed"}
    assert "Authorization" not in server.headers[0]


def test_an_answer_cut_by_length_and_a_mark_of_the_end() -> None:
    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        return says("Action: wait()<|im_end|>") if number else says("Action: wai", "length")

    with serving(answer) as server:
        cut, whole = ask(engine(server.url), prompt(), prompt())
    assert (cut.text, cut.finish) == ("Action: wai", "length")
    assert (whole.text, whole.finish) == ("Action: wait()", "stop")


def test_an_answer_without_text_is_an_empty_one() -> None:
    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        return web.json_response({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]})

    with serving(answer) as server:
        assert [completion.text for completion in ask(engine(server.url))] == [""]


def test_pictures_are_encoded_once_and_forgotten_with_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[bytes] = []
    plain = base64.b64encode

    def noted(png: bytes) -> bytes:
        encoded.append(png)
        return plain(png)

    monkeypatch.setattr("arpo.engines.openai.base64.b64encode", noted)
    with serving(script(WAIT)) as server:
        playing = engine(server.url)
        ask(playing, prompt("e", 0), prompt("e", 0, 1), prompt("e", 1, 2))
    assert encoded == [screenshot(shade).png for shade in (0, 1, 2)]
    assert list(playing._images["e"]) == [screenshot(1).sha256, screenshot(2).sha256]
    asyncio.run(playing.release("e"))
    assert playing._images == {}
    shown = [part for message in server.requests[2]["messages"][2:] for part in message["content"]]
    assert [picture(part) for part in shown] == [screenshot(1), screenshot(2)]


def test_an_episode_stays_where_it_began_and_new_ones_go_to_the_least_busy() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(script(WAIT))) for _ in range(2)]
        playing = engine(*(server.url for server in servers))

        async def play() -> None:
            async with connected(playing):
                for episode in ("a", "b", "c", "a", "b", "c", "a"):
                    await playing.generate(prompt(episode), SAMPLING)
                await playing.release("a")
                await playing.release("c")
                await playing.generate(prompt("d"), SAMPLING)

        asyncio.run(play())
    assert [len(server.requests) for server in servers] == [3 + 2 + 1, 2]


@pytest.mark.parametrize("fault", [cuts, status(500, "out of memory"), status(429, "slow down")])
def test_a_server_that_fails_is_set_aside_and_its_episode_goes_on_elsewhere(fault: Any) -> None:
    time = Time()
    with serving(script(fault)) as bad, serving(script(WAIT)) as good:
        playing = engine(bad.url, good.url, time=time)
        answers = ask(playing, prompt("a"), prompt("a"), prompt("b"))
    assert [answer.text for answer in answers] == [WAIT] * 3
    assert (len(bad.requests), len(good.requests), time.slept) == (1, 3, [])


def test_a_server_that_hangs_is_left() -> None:
    with serving(script(hangs)) as bad, serving(script(WAIT)) as good:
        answers = ask(engine(bad.url, good.url, seconds=0.2))
    assert (answers[0].text, len(good.requests)) == (WAIT, 1)


def test_pauses_grow_until_the_server_is_back_and_then_begin_anew() -> None:
    time = Time()
    fault = status(503, "loading")
    with serving(script(fault, fault, fault, WAIT, fault, WAIT)) as server:
        ask(engine(server.url, time=time), prompt(), prompt())
    assert time.slept == [1, 2, 4, 1]


def test_a_pause_that_the_server_asks_for_is_kept() -> None:
    time = Time()
    with serving(script(status(429, "slow down", **{"Retry-After": "7"}), WAIT)) as server:
        ask(engine(server.url, time=time))
    assert time.slept == [7]


def test_requests_that_fail_together_count_once() -> None:
    time, all_there = Time(), asyncio.Event()

    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        if number == 3:
            all_there.set()
        await all_there.wait()
        return cuts(request) if number < 4 else says(WAIT)

    async def play(playing: OpenAIEngine) -> None:
        async with connected(playing):
            await asyncio.gather(*(playing.generate(prompt(str(n)), SAMPLING) for n in range(4)))

    with serving(answer) as server:
        asyncio.run(play(engine(server.url, time=time)))
    assert time.slept == [1]


def test_after_so_many_tries_the_fault_is_told_with_server_status_and_first_line() -> None:
    time = Time()
    with serving(script(status(500, "out of memory\nTraceback …"))) as server:
        with pytest.raises(EngineError) as caught:
            ask(engine(server.url, time=time, attempts=3))
        assert caught.value.where == "generate"
        assert caught.value.message == f"{server.url}: status 500: out of memory (tried 3 times)"
        assert caught.value.host == server.url
    assert (len(server.requests), time.slept) == (3, [1, 2])


def test_no_pause_is_longer_than_a_minute() -> None:
    time = Time()
    with serving(script(status(500, "no"))) as server, pytest.raises(EngineError):
        ask(engine(server.url, time=time, attempts=10))
    assert time.slept == [1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize(
    "body", ["<html>", "[]", '{"choices": []}', '{"choices": [{"message": {"content": 3}}]}', "\xff"]
)
def test_garbage_is_not_an_answer(body: str) -> None:
    async def answer(request: web.Request, asked: dict[str, Any], number: int) -> web.StreamResponse:
        return web.Response(text=body) if number == 0 else says(WAIT)

    with serving(answer) as server:
        assert ask(engine(server.url))[0].text == WAIT
    with serving(answer) as server, pytest.raises(EngineError, match="status 200, but without an answer"):
        ask(engine(server.url, attempts=1))


def raw(reply: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.Application:
    """A server with one handler for every request."""
    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.route("*", "/{path:.*}", reply)])
    return app


def test_a_text_with_lone_surrogates_becomes_storable() -> None:
    """JSON can write half a surrogate pair. No file and no terminal can take it."""
    body = (
        '{"choices": [{"message": {"content": "a\\ud800b \\ud83d\\ude00 \\udc00"}, "finish_reason": "stop"}]}'
    )

    async def answer(request: web.Request, asked: dict[str, Any], number: int) -> web.StreamResponse:
        return web.Response(text=body)

    with serving(answer) as server:
        assert [completion.text for completion in ask(engine(server.url))] == ["a\ufffdb \U0001f600 \ufffd"]


@pytest.mark.parametrize("path", ["answer", "models"])
def test_a_response_without_end_is_cut_off(path: str) -> None:
    sent: list[int] = []

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            for _ in range(1000):
                await response.write(b" " * (1 << 20))
                sent.append(1)
        return response

    with running(raw(endless)) as port:
        playing = engine(f"http://127.0.0.1:{port}/v1", attempts=1)
        reason = "the response is larger than 4194304 bytes"
        with pytest.raises(EngineError if path == "answer" else UserError, match=reason):
            ask(playing) if path == "answer" else probe(playing)
    assert len(sent) < 100


def test_the_start_of_a_long_error_is_read() -> None:
    async def refused(request: web.Request) -> web.StreamResponse:
        return web.Response(status=400, text="x" * 1000 + "max" * 5_000_000)

    with running(raw(refused)) as port, pytest.raises(EngineError) as caught:
        ask(engine(f"http://127.0.0.1:{port}/v1"))
    assert caught.value.message == f"http://127.0.0.1:{port}/v1: status 400: {'x' * 300}"


def test_a_compressed_response_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(1 << 24))

    async def packed(request: web.Request) -> web.StreamResponse:
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    with running(raw(packed)) as port, pytest.raises(EngineError, match="compressed with gzip"):
        ask(engine(f"http://127.0.0.1:{port}/v1", attempts=1))


@pytest.mark.parametrize("encoding", ["", "identity", "Identity"])
def test_a_response_may_state_that_it_is_not_compressed(encoding: str) -> None:
    async def stated(request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"choices": [{"message": {"content": WAIT}}]}, headers={"Content-Encoding": encoding}
        )

    with running(raw(stated)) as port:
        assert ask(engine(f"http://127.0.0.1:{port}/v1", attempts=1))[0].text == WAIT


def moved_to(location: str | None) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def moved(request: web.Request) -> web.StreamResponse:
        return web.Response(status=308, headers={} if location is None else {"Location": location})

    return moved


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    """The prompt has screenshots, and the header has the key: they go to the named servers only."""
    with serving(script(WAIT)) as other:

        async def moved(request: web.Request) -> web.StreamResponse:
            return web.Response(
                status=status, headers={"Location": other.url + request.path.removeprefix("/v1")}
            )

        with running(raw(moved)) as port:
            url = f"http://127.0.0.1:{port}/v1"
            with pytest.raises(EngineError) as caught:
                ask(engine(url, attempts=1, key="secret"))
            with pytest.raises(UserError) as refused:
                probe(engine(url, key="secret"))
    assert other.requests == []
    for route, message in (("/chat/completions", caught.value.message), ("/models", str(refused.value))):
        assert f"{url}{route}: redirects to {other.url}{route}." in message
        assert "server.endpoints" in message


@pytest.mark.parametrize("location", ["https://b/login", "http://[b/v1", None])
def test_a_redirect_to_an_odd_address_is_reported(location: str | None) -> None:
    with running(raw(moved_to(location))) as port, pytest.raises(EngineError) as caught:
        ask(engine(f"http://127.0.0.1:{port}/v1", attempts=1))
    assert f"redirects to {location or 'another address'}." in caught.value.message


def test_an_episode_leaves_a_server_that_redirects() -> None:
    async def moved() -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": "http://127.0.0.1:1/"})

    with serving(script(moved)) as bad, serving(script(WAIT)) as good:
        assert ask(engine(bad.url, good.url))[0].text == WAIT


def test_bytes_that_trickle_are_bounded_by_the_timeout() -> None:
    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(b" ")
                await asyncio.sleep(0.01)
        return response

    with running(raw(trickle)) as port, pytest.raises(EngineError, match=r"no answer within 0\.2 s"):
        ask(engine(f"http://127.0.0.1:{port}/v1", seconds=0.2, attempts=1))


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"choices": ' * 100_000,
        '{"choices": [{"message": {"content": ' + "9" * 10_000 + "}}]}",
        '{"choices": [{"message": {"content": false}}]}',
        '{"choices": [{"message": {"content": "a"}, "finish_reason": "error"}], "usage": NaN}',
        '{"choices": {"0": 1}}',
        '{"choices": [{"message": {"content": 0}, "finish_reason": ' + "[" * 800 + "]" * 800 + "}]}",
        '{"choices": [[[]]]}',
    ],
)
@pytest.mark.parametrize("status", [200, 400, 500])
def test_absurd_json_is_an_engine_error(status: int, body: str) -> None:
    async def answered(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body)

    with running(raw(answered)) as port:
        url = f"http://127.0.0.1:{port}/v1"
        with pytest.raises(EngineError, match=re.escape(f"{url}: status {status}")) as caught:
            ask(engine(url, attempts=1))
        with pytest.raises(UserError, match=re.escape(f"no server answers: {url}")):
            probe(engine(url))
    assert len(caught.value.message) < 500


def test_numbers_that_nobody_reads_do_no_harm() -> None:
    body = """{"choices": [{"message": {"content": "Action: wait()"}, "finish_reason": ["stop"],
        "logprobs": {"content": [NaN, -Infinity, 1e999]}}], "usage": "many"}"""

    async def answered(request: web.Request) -> web.StreamResponse:
        return web.Response(text=body)

    with running(raw(answered)) as port:
        (completion,) = ask(engine(f"http://127.0.0.1:{port}/v1"))
    assert (completion.text, completion.finish) == (WAIT, "stop")


def test_messages_of_a_server_are_safe_to_print() -> None:
    nasty = "\x1b[2Jgone\x07 \ud800"

    async def answered(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/models"):
            return web.json_response(
                {"data": [{"id": nasty + "tiny"}, {"id": [nasty]}, {"id": "x" * 10_000}]}
            )
        return refuses(400, nasty)

    with running(raw(answered)) as port:
        url = f"http://127.0.0.1:{port}/v1"
        with pytest.raises(EngineError) as caught:
            ask(engine(url))
        with pytest.raises(UserError) as refused:
            probe(engine(url))
    assert caught.value.message == f"{url}: status 400: \ufffd[2Jgone\ufffd \ufffd"
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()


def test_too_many_headers_are_an_engine_error() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\n")
            for number in range(1_000_000):
                writer.write(b"X-%d: %s\r\n" % (number, b"x" * 1000))
                await writer.drain()
        writer.close()

    async def play() -> None:
        server = await asyncio.start_server(endless, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, connected(engine(f"http://127.0.0.1:{port}/v1", attempts=1)) as playing:
            await playing.generate(prompt(), SAMPLING)

    with pytest.raises(EngineError, match="generate: http://127"):
        asyncio.run(play())


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with serving(script(WAIT)) as server:
        assert ask(engine(server.url))[0].text == WAIT


def test_a_refusal_is_not_tried_again() -> None:
    with serving(script(status(404, "no such model"))) as server, pytest.raises(EngineError) as caught:
        ask(engine(server.url))
    assert (caught.value.message, len(server.requests)) == (f"{server.url}: status 404: no such model", 1)
    fault = status(400, "Unrecognized request argument: skip_special_tokens")
    with (
        serving(script(fault)) as server,
        pytest.raises(EngineError, match=r"--server\.special_tokens false"),
    ):
        ask(engine(server.url))


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 2048 tokens. However, your request has 3000 input tokens.",
        "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
        "the request exceeds the available context size",
    ],
)
def test_a_context_that_is_too_long_is_told_with_the_remedy(message: str) -> None:
    fault = status(400, message)
    with serving(script(fault)) as server, pytest.raises(ContextTooLong, match="--max-trajectory-length"):
        ask(engine(server.url))
    assert len(server.requests) == 1


def play(server_url: str, dialect: Dialect = UI_TARS_1_5) -> tuple[Trajectory, FakeEnv]:
    env = FakeEnv(score=lambda actions: 0.5, size=(1920, 1080))

    async def episode() -> Trajectory:
        async with connected(engine(server_url)) as playing:
            renderer = ChatRenderer(3136, 2116800)
            agent = Agent(engine=playing, renderer=renderer, template=TEMPLATE, dialect=dialect)
            settings = RolloutConfig(max_steps=3, max_images=2, temperature=0.6)
            return await run_episode(task("t"), env, agent, episode_id="e", settings=settings, seed=0)

    return asyncio.run(episode()), env


def test_an_episode_through_a_server() -> None:
    with serving(script("Action: click(start_box='(1932,546)')", WAIT, DONE)) as server:
        trajectory, env = play(server.url)
    assert (trajectory.stop, trajectory.score, trajectory.sampled_tokens) == (StopReason.FINISHED, 0.5, 0)
    (click,) = env.steps[0]
    assert (click.point.x, click.point.y) == (1919, 540)  # type: ignore[union-attr]
    roles = [[message["role"] for message in sent["messages"]] for sent in server.requests]
    assert roles[0] == ["system", "user", "user"]
    assert roles[2] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert server.requests[2]["messages"][4] == {"role": "assistant", "content": WAIT}


def test_a_conversation_that_no_longer_fits_ends_the_episode_and_is_judged() -> None:
    fault = status(400, "maximum context length is 9 tokens")
    with serving(script(WAIT, fault)) as server:
        trajectory, _ = play(server.url)
    assert (trajectory.stop, len(trajectory.turns), trajectory.score) == (StopReason.MAX_STEPS, 1, 0.5)
    with serving(script(fault)) as server, pytest.raises(PromptTooLong, match="length is 9 tokens"):
        play(server.url)


def test_an_answer_that_was_cut_is_the_models_failure() -> None:
    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        return says(CLICK, "length")

    with serving(answer) as server:
        trajectory, _ = play(server.url)
    assert (trajectory.stop, trajectory.malformed) == (StopReason.LENGTH, True)
    assert trajectory.turns[0].error == "the answer was cut at 64 tokens"


def test_a_model_that_answers_in_thousandths() -> None:
    assert ChatRenderer(3136, 2116800).model_size(screenshot(0, (1920, 1080))) == (1932, 1092)
    with serving(script("Action: click(start_box='(500,250)')", DONE)) as server:
        _, in_thousandths = play(server.url, UI_TARS)
    with serving(script("Action: click(start_box='(500,250)')", DONE)) as server:
        _, in_pixels = play(server.url)
    assert in_thousandths.steps[0] == (Click(point=Point(960, 270)),)
    assert in_pixels.steps[0] == (Click(point=Point(497, 247)),)  # 500 of 1932, 250 of 1092


def test_weights_do_not_go_to_a_server() -> None:
    with pytest.raises(EngineError, match="cannot load weights from the learner"):
        asyncio.run(engine("http://127.0.0.1:1/v1").load(Weights(version=1, handle=None)))


def test_servers_are_asked_for_their_models_before_anything_is_played() -> None:
    with serving(script(WAIT)) as server, serving(script(WAIT), models=("other", "tinny-ui-tars")) as other:
        assert probe(engine(server.url)) == []
        with pytest.raises(
            UserError,
            match=r"does not serve the model 'tiny-ui-tars' \(did you mean tinny-ui-tars\?\): "
            "correct server.model",
        ):
            probe(engine(server.url, other.url))
        (note,) = probe(engine("http://127.0.0.1:1/v1", server.url))
        assert note.startswith("1 of 2 servers do not answer: http://127.0.0.1:1/v1/models: ")
    with pytest.raises(UserError, match=r"no server answers: http://127\.0\.0\.1:1/v1/models"):
        probe(engine("http://127.0.0.1:1/v1"))


def test_a_server_that_does_not_answer_at_first_is_asked_last() -> None:
    async def play(playing: OpenAIEngine) -> None:
        async with connected(playing):
            await playing._probe()
            await playing.generate(prompt(), SAMPLING)

    time = Time()
    with serving(script(WAIT)) as server:
        asyncio.run(play(engine("http://127.0.0.1:1/v1", server.url, time=time)))
    assert (len(server.requests), time.slept) == (1, [])


def test_a_key_that_is_refused_and_a_server_that_lists_no_models() -> None:
    async def denied(request: web.Request) -> web.Response:
        return refuses(401, "Incorrect API key")

    app = web.Application()
    app.add_routes([web.get("/v1/models", denied)])
    with running(app) as port, pytest.raises(UserError, match=r"Incorrect API key; set OPENAI_API_KEY"):
        probe(engine(f"http://127.0.0.1:{port}/v1"))
    with running(web.Application()) as port:
        assert probe(engine(f"http://127.0.0.1:{port}/v1")) == []


def test_addresses() -> None:
    assert endpoints("http://a:9000-9002/v1, https://b , http://c:80/x/chat/completions,http://a:9001") == (
        *("http://a:9000/v1", "http://a:9001/v1", "http://a:9002/v1"),
        *("https://b/v1", "http://c:80/x"),
    )
    assert endpoints("http://[::1]:8000/v1") == ("http://[::1]:8000/v1",)
    for text in ("", "a:9000", "ftp://a", "http://a:9-8/v1", "http://a:70000", "http://a b"):
        with pytest.raises(UserError, match=r"server\.endpoints"):
            endpoints(text)
