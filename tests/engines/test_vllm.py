"""Replicas that fail, hang, lose or keep weights: answers are repeated elsewhere, or wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.engines import vllm
from arpo.engines.base import Weights
from arpo.engines.http_exchange import TransientError
from arpo.engines.vllm import VllmEngine
from arpo.errors import ContextTooLong, EngineError, Outage, UserError
from arpo.testing import screenshot
from arpo.types import Completion, Message, Prompt, Sampling
from openai_server import cuts
from scripted_vllm import ScriptedVllm, answering, hanging, publish_probe, scripted_vllm

SCREEN = screenshot(1, (56, 56))
SAMPLING = Sampling(temperature=1.0, max_tokens=8, seed=1)
GENERATE = "/inference/v1/generate"
Test = Callable[[VllmEngine], Awaitable[None]]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arpo.processes.backoff.FIRST_SECONDS", 0.01)
    monkeypatch.setattr("arpo.processes.backoff.LONGEST_SECONDS", 0.05)
    monkeypatch.setattr(vllm, "_REPORT_SECONDS", 0.05)


@pytest.fixture
def pair() -> Iterator[list[ScriptedVllm]]:
    with ExitStack() as stack:
        yield [stack.enter_context(scripted_vllm()) for _ in range(2)]


def config_of(servers: list[ScriptedVllm], *words: str) -> Config:
    urls = ",".join(server.url for server in servers)
    return load_config("desk", ["--engine.name=vllm", f"--engine.endpoints={urls}", *words])


def notes_of(
    servers: list[ScriptedVllm],
    test: Test,
    *words: str,
    learning: bool = True,
    notes: list[str] | None = None,
) -> list[str]:
    """Run a test with a started engine. Returns the notes for the user, also in `notes` while it runs."""
    notes = [] if notes is None else notes

    async def run() -> None:
        engine = VllmEngine(config_of(servers, *words), servers[0].renderer, "", learning=learning)
        engine.report, engine.check_seconds = notes.append, 0.05
        notes.extend(await engine.start())
        try:
            async with asyncio.timeout(30):
                await test(engine)
        finally:
            await engine.close()

    asyncio.run(run())
    return notes


def prompt_of(engine_renderer: Any, episode: str = "one") -> Prompt:
    messages = (Message(role="user", text="Save", screenshot=SCREEN),)
    rendered = engine_renderer.render(messages)
    return Prompt(episode_id=episode, token_ids=rendered.token_ids, images=rendered.images, messages=messages)


def ask(engine: VllmEngine, servers: list[ScriptedVllm], episode: str = "one") -> Awaitable[Completion]:
    return engine.generate(prompt_of(servers[0].renderer, episode), SAMPLING)


def weights(root: Path, version: int, servers: list[ScriptedVllm]) -> Weights:
    folder = publish_probe(root, version, servers[0].renderer, SCREEN)
    return Weights(version=version, handle=folder)


def answered(servers: list[ScriptedVllm]) -> list[int]:
    """Prompts of episodes for each server, without those of probes."""
    return [
        sum("prompt_logprobs" not in body["sampling_params"] for body in server.prompts) for server in servers
    ]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  (the servers live in other threads)
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running(work: Awaitable[Any]) -> Any:
    task = asyncio.ensure_future(work)
    yield task
    await task


def test_answers_carry_the_version_of_the_loaded_weights(pair: list[ScriptedVllm], tmp_path: Path) -> None:
    async def test(engine: VllmEngine) -> None:
        for version in (4, 5):
            await engine.load(weights(tmp_path, version, pair))
            first, second = [await ask(engine, pair, name) for name in ("one", "two")]
            assert first == second
            assert first == Completion(
                token_ids=(111, 2), logprobs=(-0.25, -0.5), text="a", finish="stop", versions=(version,) * 2
            )
        assert answered(pair) == [2, 2]
        await engine.release("one")
        await ask(engine, pair, "three")
        assert answered(pair) == [3, 2]

    assert notes_of(pair, test) == []


def test_an_evaluation_uses_the_weights_that_the_servers_started_with(pair: list[ScriptedVllm]) -> None:
    async def test(engine: VllmEngine) -> None:
        assert (await ask(engine, pair)).versions == (0, 0)

    assert notes_of(pair, test, learning=False) == []
    pair[1].version = "other-7"
    with pytest.raises(UserError, match="has the weights of a training run, or is paused"):
        notes_of(pair, test, learning=False)


def test_a_server_with_another_model_is_refused(pair: list[ScriptedVllm]) -> None:
    async def test(engine: VllmEngine) -> None: ...

    pair[1].model = "ui-tars"
    with pytest.raises(UserError, match=f"{pair[1].url}: serves the model 'ui-tars', not 'base'"):
        notes_of(pair, test)


def test_a_server_that_was_started_without_lora_is_refused(pair: list[ScriptedVllm]) -> None:
    async def test(engine: VllmEngine) -> None: ...

    assert notes_of(pair, test, "--model.train=lora") == []
    pair[1].faults["/v1/load_lora_adapter"] = answering(404, "Not Found")
    assert notes_of(pair, test, "--model.train=lora", learning=False) == []
    with pytest.raises(UserError, match=rf"{pair[1].url}: was started without LoRA. Start `arpo serve` with"):
        notes_of(pair, test, "--model.train=lora")


def test_a_start_without_servers(pair: list[ScriptedVllm]) -> None:
    async def test(engine: VllmEngine) -> None:
        assert (await ask(engine, pair)).text == "a"

    dead = ScriptedVllm(pair[0].renderer, url="http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"no vLLM server answers: http://127.0.0.1:9.*Start one with `arpo"):
        notes_of([dead], test)
    [note] = notes_of([dead, pair[0]], test, learning=False)
    assert note.startswith("1 of 2 servers do not answer: http://127.0.0.1:9") and "Using the other 1" in note


def test_a_prompt_that_is_longer_than_the_context(pair: list[ScriptedVllm]) -> None:
    pair[1].max_model_len = 20

    async def test(engine: VllmEngine) -> None:
        with pytest.raises(ContextTooLong, match="the vLLM server has a context of 20"):
            await ask(engine, pair)

    notes_of(pair, test, learning=False)


@pytest.mark.parametrize("fault", ["500", "garbage", "connection"])
def test_an_episode_continues_on_another_replica(
    pair: list[ScriptedVllm], tmp_path: Path, fault: str
) -> None:
    async def cut(request: Any, body: Any) -> Any:
        return cuts(request)

    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        await ask(engine, pair)
        faults = {"500": answering(500, "broken"), "garbage": answering(200, "{}"), "connection": cut}
        pair[0].faults[GENERATE] = faults[fault]
        assert (await ask(engine, pair)).versions == (1, 1)
        assert answered(pair) == [1, 1]
        del pair[0].faults[GENERATE]
        await until(lambda: notes[-1] == f"{pair[0].url} works again")
        await ask(engine, pair)
        assert answered(pair) == [1, 2]  # it stays there: its prefix is in that cache
        await ask(engine, pair, "two")
        assert answered(pair) == [2, 2]

    notes: list[str] = []
    notes_of(pair, test, notes=notes)
    assert len(notes) == 2 and notes[0].startswith(pair[0].url) and "1 of 2 vLLM servers work" in notes[0]


def test_requests_on_a_hanging_replica_move_when_its_check_fails(
    pair: list[ScriptedVllm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arpo.engines.vllm_client._STATE_SECONDS", 1.0)

    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        pair[0].faults = {GENERATE: hanging, "/weight_info": hanging}
        async with running(ask(engine, pair)) as request:
            completion = await request
        assert completion.versions == (1, 1) and answered(pair) == [0, 1]

    [note] = notes_of(pair, test)
    assert note.startswith(f"{pair[0].url}/weight_info: no answer within 1 s")


def test_an_answer_of_a_restarted_replica_is_discarded_and_it_loads_the_weights(
    pair: list[ScriptedVllm], tmp_path: Path
) -> None:
    async def test(engine: VllmEngine) -> None:
        engine.check_seconds = 100  # found by its answer, not by a check
        await engine.load(weights(tmp_path, 1, pair))
        pair[0].version, pair[0].folder = "default", None
        assert (await ask(engine, pair)).versions == (1, 1)
        assert answered(pair) == [1, 1]
        await until(lambda: len(notes) == 2)
        assert pair[0].version.endswith("-1")

    notes: list[str] = []
    notes_of(pair, test, notes=notes)
    assert "answered with the weights ['default'] instead of" in notes[0]
    assert notes[1] == f"{pair[0].url} works again"


def test_a_check_finds_a_replica_that_has_lost_its_weights(pair: list[ScriptedVllm], tmp_path: Path) -> None:
    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        pair[0].version = "default"
        await until(lambda: pair[0].version.endswith("-1"))

    notes = notes_of(pair, test)
    assert "has restarted, or has the weights of another run" in notes[0]


def test_stale_weights_are_discarded(pair: list[ScriptedVllm], tmp_path: Path) -> None:
    """The server claims to have loaded version 2, and answers with version 1."""

    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        old = pair[0].version
        await engine.load(weights(tmp_path, 2, pair))

        def stale(response: dict[str, Any]) -> dict[str, Any]:
            response["choices"][0]["weight_versions"][0]["version"] = old
            return response

        pair[0].response = stale
        assert (await ask(engine, pair)).versions == (2, 2)
        assert answered(pair) == [1, 1]

    assert "answered with the weights" in notes_of(pair, test)[0]


def test_a_replica_whose_probe_differs_gets_no_requests(pair: list[ScriptedVllm], tmp_path: Path) -> None:
    pair[0].probe_error = -0.06

    async def test(engine: VllmEngine) -> None:
        engine.max_probe_gap = 0.05
        await engine.load(weights(tmp_path, 1, pair))
        for name in ("one", "two"):
            await ask(engine, pair, name)
        assert answered(pair) == [0, 2]
        pair[0].probe_error = -0.04
        await until(lambda: "works again" in notes[-1])

    notes: list[str] = []
    notes_of(pair, test, notes=notes)
    assert "its log-probabilities differ by 0.06 from the learner's" in notes[0]


def test_a_replica_with_a_wrong_tensor_loads_again_and_gets_no_requests_before(
    pair: list[ScriptedVllm], tmp_path: Path
) -> None:
    pair[0].wrong_sums = {"head": 0}

    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        for name in ("one", "two"):
            await ask(engine, pair, name)
        assert answered(pair) == [0, 2]
        pair[0].wrong_sums = {}
        await until(lambda: "works again" in notes[-1])
        assert pair[0].calls.count("/collective_rpc") >= 2

    notes: list[str] = []
    notes_of(pair, test, notes=notes)
    assert "head" in notes[0]


def test_an_update_that_fails_half_way_is_repeated(pair: list[ScriptedVllm], tmp_path: Path) -> None:
    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        pair[0].faults["/collective_rpc"] = answering(500, "no space")
        await engine.load(weights(tmp_path, 2, pair))
        assert (await ask(engine, pair)).versions == (2, 2)
        assert answered(pair) == [0, 1]
        del pair[0].faults["/collective_rpc"]
        await until(lambda: len(notes) == 2)
        assert pair[0].version.endswith("-2")

    notes: list[str] = []
    notes_of(pair, test, notes=notes)
    assert "status 500: no space" in notes[0] and notes[1] == f"{pair[0].url} works again"


def test_requests_run_on_during_a_rolling_update(pair: list[ScriptedVllm], tmp_path: Path) -> None:
    """A slow answer began with version 1. After the update of its replica it ends with version 2."""
    gate = asyncio.Event()

    def both(response: dict[str, Any]) -> dict[str, Any]:
        new = response["choices"][0]["weight_versions"][0]["version"]
        old = new[: new.rindex("-")] + "-1"
        spans = [{"version": old, "start": 0, "end": 1}, {"version": new, "start": 1, "end": 2}]
        response["choices"][0]["weight_versions"] = spans
        return response

    async def slow(request: Any, body: Any) -> Any:
        if "prompt_logprobs" not in body["sampling_params"]:
            while not gate.is_set():  # noqa: ASYNC110  (an event of another loop)
                await asyncio.sleep(0.01)

    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        pair[0].faults[GENERATE], pair[0].response = slow, both
        request = asyncio.ensure_future(ask(engine, pair))
        await until(lambda: pair[0].calls[-1] == GENERATE)
        await engine.load(weights(tmp_path, 2, pair))
        assert not request.done()
        gate.set()
        assert (await request).versions == (1, 2)
        updates = ["/collective_rpc" in server.calls for server in pair]
        assert updates == [True, True] and answered(pair) == [1, 0]

    assert notes_of(pair, test) == []


def test_episodes_are_spread_again_after_a_rolling_update(pair: list[ScriptedVllm], tmp_path: Path) -> None:
    answer, update = asyncio.Event(), asyncio.Event()

    def until_set(gate: asyncio.Event, episodes_only: bool) -> Any:
        async def wait(request: Any, body: Any) -> Any:
            while not (gate.is_set() or (episodes_only and "prompt_logprobs" in body["sampling_params"])):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        return wait

    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        assert [await ask(engine, pair, name) for name in ("one", "two")] and answered(pair) == [1, 1]
        pair[0].faults[GENERATE] = until_set(answer, episodes_only=True)
        pair[1].faults["/collective_rpc"] = until_set(update, episodes_only=False)
        async with running(ask(engine, pair, "one")):
            await until(lambda: pair[0].calls[-1] == GENERATE)
            async with running(engine.load(weights(tmp_path, 2, pair))):
                await until(lambda: pair[1].calls[-1] == "/collective_rpc")
                answer.set()
                await ask(engine, pair, "two")  # its own replica is being updated
                await until(lambda: answered(pair) == [3, 1])
                update.set()
        assert [await ask(engine, pair, name) for name in ("one", "two")] and answered(pair) == [4, 2]

    assert notes_of(pair, test) == []


def test_tokens_of_weights_that_fail_their_probe_are_discarded(
    pair: list[ScriptedVllm], tmp_path: Path
) -> None:
    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        gate = asyncio.Event()

        async def slow(request: Any, body: Any) -> Any:
            if "prompt_logprobs" in body["sampling_params"]:
                pair[0].probe_error = -1.0
                gate.set()
                await asyncio.sleep(0.1)
            else:
                while not gate.is_set():  # noqa: ASYNC110  (an event of another loop)
                    await asyncio.sleep(0.01)

        pair[0].faults[GENERATE] = slow
        request = asyncio.ensure_future(ask(engine, pair))
        await until(lambda: pair[0].calls[-1] == GENERATE)
        await engine.load(weights(tmp_path, 2, pair))
        assert (await request).versions == (2, 2)
        assert answered(pair) == [1, 1]

    assert "its log-probabilities differ by 1" in notes_of(pair, test)[0]


def test_without_replicas_requests_wait(pair: list[ScriptedVllm], tmp_path: Path) -> None:
    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        for server in pair:
            server.faults = {GENERATE: answering(500, "down"), "/weight_info": answering(500, "down")}
        async with running(ask(engine, pair)) as request:
            await until(lambda: any("The run pauses" in note for note in notes))
            for server in pair:
                server.faults = {}
            assert (await request).versions == (1, 1)

    notes: list[str] = []
    notes_of(pair, test, notes=notes)
    assert sum("no vLLM server works" in note for note in notes) == 1
    assert sum("the run continues" in note for note in notes) == 1


@pytest.mark.parametrize("way", ["time", "stop"])
def test_an_outage_ends(pair: list[ScriptedVllm], tmp_path: Path, way: str) -> None:
    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        for server in pair:
            server.faults = {GENERATE: answering(500, "down"), "/weight_info": answering(500, "down")}
        if way == "stop":
            asyncio.get_running_loop().call_later(0.3, engine.stop)
        with pytest.raises(Outage, match=r"no vLLM server has worked for .* run the same command again"):
            await ask(engine, pair)

    notes_of(pair, test, f"--env.outage_seconds={3600 if way == 'stop' else 0.3}")


def test_a_stop_does_not_end_an_update(pair: list[ScriptedVllm], tmp_path: Path) -> None:
    """The only replica loads weights. A request waits for it, also after Ctrl-C."""
    gate = asyncio.Event()

    async def slow(request: Any, body: Any) -> Any:
        while not gate.is_set():  # noqa: ASYNC110  (an event of another loop)
            await asyncio.sleep(0.01)

    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        pair[0].faults["/collective_rpc"] = slow
        async with running(engine.load(weights(tmp_path, 2, pair))):
            await until(lambda: pair[0].calls[-1] == "/collective_rpc")
            request = asyncio.ensure_future(ask(engine, pair))
            engine.stop()
            await asyncio.sleep(0.2)
            assert not request.done()
            gate.set()
        assert (await request).versions == (2, 2)

    assert notes_of(pair[:1], test) == []


def test_an_answer_that_fails_everywhere_is_a_fault(pair: list[ScriptedVllm]) -> None:
    for server in pair:
        server.faults[GENERATE] = answering(500, "this prompt kills me")

    async def test(engine: VllmEngine) -> None:
        with pytest.raises(EngineError, match=r"this prompt kills me \(tried 5 times") as caught:
            await ask(engine, pair)
        assert caught.value.host in {server.url for server in pair}

    notes_of(pair, test, learning=False)


def test_load_needs_a_complete_folder(pair: list[ScriptedVllm], tmp_path: Path) -> None:
    async def test(engine: VllmEngine) -> None:
        with pytest.raises(EngineError, match="is not a complete folder of published weights"):
            await engine.load(Weights(version=1, handle=tmp_path))

    notes_of(pair, test)


def test_a_cancelled_request_ends_without_a_fault(pair: list[ScriptedVllm]) -> None:
    async def test(engine: VllmEngine) -> None:
        pair[0].faults[GENERATE] = hanging
        request = asyncio.ensure_future(ask(engine, pair))
        await until(lambda: pair[0].calls[-1:] == [GENERATE])
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert answered(pair) == [0, 0]

    assert notes_of(pair[:1], test, learning=False) == []


def test_replicas_sleep_while_the_learner_uses_the_gpu(pair: list[ScriptedVllm], tmp_path: Path) -> None:
    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        await engine.sleep()
        await asyncio.sleep(0.2)
        quiet = [len(server.calls) for server in pair]
        assert [server.calls[-1] for server in pair] == ["/sleep?level=2"] * 2
        await asyncio.sleep(0.2)
        assert [len(server.calls) for server in pair] == quiet
        await engine.wake()
        await engine.load(weights(tmp_path, 2, pair))
        assert (await ask(engine, pair)).versions == (2, 2)

    notes_of(pair, test)


def test_weights_that_a_sleeping_server_has_dropped_are_loaded_again_if_learning_fails(
    pair: list[ScriptedVllm], tmp_path: Path
) -> None:
    async def test(engine: VllmEngine) -> None:
        await engine.load(weights(tmp_path, 1, pair))
        await engine.sleep()
        for server in pair:
            server.folder = None
        await engine.wake()
        assert (await ask(engine, pair)).versions == (1, 1)
        assert any(server.folder for server in pair)

    notes_of(pair, test)


def at(places: list[str]) -> Callable[[], str]:
    """The address of a server of the run: the first of `places`, if there is one."""

    def address() -> str:
        if not places:
            raise TransientError("is starting on another node")
        return places[0]

    return address


@pytest.mark.parametrize("lost", [[], ["http://127.0.0.1:9"]])
@pytest.mark.parametrize("learning", [True, False])
def test_a_server_of_the_run_that_is_lost_before_the_start_is_waited_for(
    pair: list[ScriptedVllm], tmp_path: Path, lost: list[str], learning: bool
) -> None:
    """Its actor or its process has ended after the first health check. The next one is at another address."""
    places = lost.copy()

    async def test(engine: VllmEngine) -> None:
        await engine.close()
        engine.use_servers([at(places)], "")
        [note] = await engine.start()
        reason = "http://127.0.0.1:9/" if lost else "is starting on another node"
        assert note.startswith(f"1 of 1 servers do not answer: {reason}") and "Waiting for them" in note
        if learning:
            await engine.load(weights(tmp_path, 7, pair))
        asked = asyncio.ensure_future(ask(engine, pair))
        await asyncio.sleep(0.1)
        assert not asked.done()
        places[:] = [pair[1].url]
        assert (await asked).versions == ((7, 7) if learning else (0, 0))
        assert answered(pair) == [0, 1]

    notes_of(pair, test, learning=learning)


def test_a_server_that_returns_at_another_address_gets_the_newest_weights(
    pair: list[ScriptedVllm], tmp_path: Path
) -> None:
    """The only replica is at the first server, then nowhere, then at the second one."""
    places = [pair[0].url]
    old, new = pair

    async def test(engine: VllmEngine) -> None:
        await engine.close()
        engine.use_servers([at(places)], "")
        await engine.start()
        await engine.load(weights(tmp_path, 7, pair))
        assert (await ask(engine, pair)).versions == (7, 7)
        places.clear()
        old.faults[GENERATE] = answering(503, "gone")
        asked = asyncio.ensure_future(ask(engine, pair))
        await until(lambda: any("another node" in one.fault for one in engine._replicas))
        assert not asked.done()
        places.append(new.url)
        assert (await asked).versions == (7, 7)
        assert answered(pair) == [1, 1]

    notes_of(pair, test)
