"""The protocol with one vLLM server: images by hash, versions of tokens, and everything that can be wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.engines.http_exchange import HttpExchange, TransientError
from arpo.engines.vllm_client import UNCHANGED, VllmClient, cut_prompt, different_tensors
from arpo.errors import EngineError, UserError
from arpo.storage.published_weights import PublishedWeights, read_published
from arpo.testing import screenshot
from arpo.types import Message, Prompt, Sampling
from scripted_vllm import LOGPROBS, ScriptedVllm, answering, hanging, publish_probe, scripted_vllm

Result = TypeVar("Result")
ONE, TWO = screenshot(1, (56, 56)), screenshot(2, (56, 56))
SAMPLING = Sampling(temperature=0.7, max_tokens=8, seed=2**62 + 1)
GENERATE = "/inference/v1/generate"


@pytest.fixture
def server() -> Iterator[ScriptedVllm]:
    with scripted_vllm() as server:
        yield server


def ask(
    server: ScriptedVllm,
    calls: Callable[[VllmClient], Awaitable[Result]],
    *,
    lora: bool = False,
    trains_vision: bool = True,
    seconds: float = 5.0,
    load_seconds: float = 5.0,
    max_bytes: int = 1 << 20,
) -> Result:
    async def run() -> Result:
        http = HttpExchange("", max_bytes, "engine.endpoints")
        http.open()
        client = VllmClient(
            server.url,
            http,
            server.renderer,
            lora=lora,
            trains_vision=trains_vision,
            answer_seconds=seconds,
            load_seconds=load_seconds,
        )
        try:
            return await calls(client)
        finally:
            await http.close()

    return asyncio.run(run())


def prompt_of(server: ScriptedVllm, *screens: Any) -> Prompt:
    messages = tuple(Message(role="user", text="Save", screenshot=screen) for screen in screens or (None,))
    rendered = server.renderer.render(messages)
    return Prompt(episode_id="one", token_ids=rendered.token_ids, images=rendered.images, messages=messages)


def test_a_prompt_has_one_token_per_image_and_the_answer_its_own_tokens(server: ScriptedVllm) -> None:
    prompt = prompt_of(server, ONE, TWO)
    assert prompt.token_ids.count(server.renderer.image_token_id) == 8
    answer = ask(server, lambda client: client.generate(prompt, SAMPLING, UNCHANGED))
    assert answer.token_ids == (111, server.renderer.end_of_turn_id)
    assert answer.logprobs == LOGPROBS and answer.finish == "stop"
    assert answer.labels == ("default", "default")
    [sent] = server.prompts
    assert sent["token_ids"].count(server.renderer.image_token_id) == 2
    assert sent["return_token_ids"] and "model" not in sent
    assert sent["sampling_params"] == {
        "temperature": 0.7, "max_tokens": 8, "seed": 2**62 + 1, "logprobs": 0, "ignore_eos": True,
        "stop_token_ids": sorted(server.renderer.end_ids), "detokenize": False,
    }  # fmt: skip


def test_a_prompt_without_images(server: ScriptedVllm) -> None:
    prompt = prompt_of(server)
    ask(server, lambda client: client.generate(prompt, SAMPLING, UNCHANGED))
    assert server.prompts[0]["token_ids"] == list(prompt.token_ids)
    assert server.prompts[0]["content_parts"] == []


def test_an_image_is_sent_once_and_again_after_a_miss(server: ScriptedVllm) -> None:
    async def talk(client: VllmClient) -> None:
        await client.generate(prompt_of(server, ONE), SAMPLING, UNCHANGED)
        await client.generate(prompt_of(server, ONE, TWO), SAMPLING, UNCHANGED)
        server.images.clear()
        await client.generate(prompt_of(server, ONE, TWO), SAMPLING, UNCHANGED)
        await client.generate(prompt_of(server, ONE, TWO), SAMPLING, UNCHANGED)

    ask(server, talk)
    sent = [[part["url"] is not None for part in body["content_parts"]] for body in server.prompts]
    assert sent == [[True], [False, True], [False, False], [True, True], [False, False]]
    assert [part["uuid"] for part in server.prompts[1]["content_parts"]] == [ONE.sha256, TWO.sha256]


def test_versions_of_tokens_come_as_spans(server: ScriptedVllm) -> None:
    def two_spans(response: dict[str, Any]) -> dict[str, Any]:
        spans = [{"version": "run-3", "start": 0, "end": 1}, {"version": "run-4", "start": 1, "end": 2}]
        response["choices"][0]["weight_versions"] = spans
        return response

    server.response = two_spans
    answer = ask(server, lambda client: client.generate(prompt_of(server), SAMPLING, UNCHANGED))
    assert answer.labels == ("run-3", "run-4")


def changed(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(response: dict[str, Any]) -> dict[str, Any]:
        response["choices"][0] |= changes
        return response

    return change


def entries(*logprobs: Any) -> dict[str, Any]:
    return {"content": [{"token_id": t, "logprob": p} for t, p in zip((111, 2), logprobs, strict=True)]}


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (lambda response: {**response, "choices": []}, "without an answer"),
        (lambda response: {**response, "choices": 7}, "without an answer"),
        (changed(token_ids=[111, 111]), "its log-probabilities are of other tokens"),
        (changed(token_ids=None), "without an answer"),
        (changed(logprobs=None), "without an answer"),
        (changed(logprobs=entries(-0.1, None)), "'None' is no log-probability"),
        (changed(logprobs=entries(-0.1, 0.5)), "'0.5' is no log-probability"),
        (changed(logprobs=entries(-0.1, -(10**400))), "0' is no log-probability"),
        (changed(logprobs=entries(-0.1, float("nan"))), "'nan' is no log-probability"),
        (changed(logprobs=entries(-0.1, -float("inf"))), "'-inf' is no log-probability"),
        (changed(finish_reason="abort"), "2 tokens end with 'abort'"),
        (changed(finish_reason="length"), "2 tokens end with 'length'"),
        (changed(weight_versions=None), "without an answer"),
        (changed(weight_versions=[]), "0 weight versions for 2 tokens"),
        (changed(weight_versions=[{"version": "a", "start": 1, "end": 2}]), "have a gap"),
        (changed(weight_versions=[{"version": "a", "start": 0, "end": 10**12}]), "have a gap"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_a_fault_of_the_server(
    server: ScriptedVllm, response: Callable[[dict[str, Any]], dict[str, Any]], reason: str
) -> None:
    server.response = response
    with pytest.raises(TransientError, match=reason):
        ask(server, lambda client: client.generate(prompt_of(server), SAMPLING, UNCHANGED))


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (500, "Internal Server Error", "status 500: Internal Server Error"),
        (503, "", "status 503: no text"),
        (404, json.dumps({"error": {"message": "no adapter"}}), "status 404: no adapter"),
        (200, "hello", "status 200, but without an answer: hello"),
        (200, "[" * 100_000, "without an answer"),
        (200, "x" * 2_000_000, "the response is larger than 1048576 bytes"),
        (307, "", "redirects to another address. Redirects are not followed"),
    ],
)
def test_a_bad_response_is_a_fault_of_the_server(
    server: ScriptedVllm, status: int, text: str, reason: str
) -> None:
    server.faults[GENERATE] = answering(status, text)
    with pytest.raises(TransientError, match=reason):
        ask(server, lambda client: client.generate(prompt_of(server, ONE), SAMPLING, UNCHANGED))


def test_a_refused_prompt_is_no_fault_of_the_server(server: ScriptedVllm) -> None:
    server.faults[GENERATE] = answering(400, json.dumps({"error": {"message": "At most 3 images"}}))
    with pytest.raises(EngineError, match="status 400: At most 3 images"):
        ask(server, lambda client: client.generate(prompt_of(server, ONE), SAMPLING, UNCHANGED))


def test_a_prompt_that_the_server_reads_differently_is_refused(server: ScriptedVllm) -> None:
    server.response = lambda response: {**response, "prompt_token_ids": response["prompt_token_ids"][:-1]}
    with pytest.raises(EngineError, match="reads the prompt as other tokens"):
        ask(server, lambda client: client.generate(prompt_of(server, ONE), SAMPLING, UNCHANGED))


def test_an_empty_or_nested_list_is_not_the_prompt(server: ScriptedVllm) -> None:
    def nested(response: dict[str, Any]) -> dict[str, Any]:
        own = response["prompt_token_ids"]
        return {"first": {"prompt_token_ids": own}, **response, "prompt_token_ids": [*own, 1]}

    for change in (lambda response: {**response, "prompt_token_ids": []}, nested):
        server.response = change
        with pytest.raises(EngineError, match="reads the prompt as other tokens"):
            ask(server, lambda client: client.generate(prompt_of(server, ONE), SAMPLING, UNCHANGED))


def published_by(server: ScriptedVllm, root: Path, version: int) -> PublishedWeights:
    published = read_published(publish_probe(root, version, server.renderer, ONE))
    assert published is not None
    return published


def test_full_weights_replace_those_of_the_model(server: ScriptedVllm, tmp_path: Path) -> None:
    published = published_by(server, tmp_path, 3)

    async def load(client: VllmClient) -> list[bool]:
        before = await client.has_weights("run-3")
        await client.load(published, "run-3")
        return [before, await client.has_weights("run-3"), await client.has_weights("run-2")]

    assert ask(server, load) == [False, True, False]
    assert server.folder == published.folder
    assert [call for call in server.calls if call not in ("/weight_info", "/is_paused")] == [
        "/pause?mode=keep&clear_cache=false",
        "/update_weight_version",
        "/collective_rpc",
        "/reset_prefix_cache?reset_running_requests=true",
        "/reset_encoder_cache",
        "/update_weight_version",
        "/resume",
    ]


def test_a_frozen_vision_tower_keeps_its_features(server: ScriptedVllm, tmp_path: Path) -> None:
    published = published_by(server, tmp_path, 3)
    ask(server, lambda client: client.load(published, "run-3"), trains_vision=False)
    assert "/reset_encoder_cache" not in server.calls


@pytest.mark.parametrize(
    "route", ["/collective_rpc", "/reset_prefix_cache", "/reset_encoder_cache", "/resume"]
)
def test_after_a_failed_update_the_server_does_not_have_the_weights(
    server: ScriptedVllm, tmp_path: Path, route: str
) -> None:
    published = published_by(server, tmp_path, 3)
    server.faults[route] = answering(500, "out of memory", times=1)

    async def load(client: VllmClient) -> bool:
        with pytest.raises(TransientError, match="status 500: out of memory"):
            await client.load(published, "run-3")
        return await client.has_weights("run-3")

    assert ask(server, load) is False
    ask(server, lambda client: client.load(published, "run-3"))
    assert ask(server, lambda client: client.has_weights("run-3"))


def test_a_prefix_cache_that_was_not_reset_fails_the_update(server: ScriptedVllm, tmp_path: Path) -> None:
    published = published_by(server, tmp_path, 3)
    server.faults["/reset_prefix_cache"] = answering(200, json.dumps({"success": False}))
    with pytest.raises(TransientError, match="the prefix cache was not reset"):
        ask(server, lambda client: client.load(published, "run-3"))


def test_adapters_are_loaded_next_to_the_previous_ones(server: ScriptedVllm, tmp_path: Path) -> None:
    async def load(client: VllmClient) -> tuple[str, ...]:
        for version in (1, 2, 3):
            await client.load(published_by(server, tmp_path, version), f"run-{version}")
        assert await client.has_weights("run-3") and not await client.has_weights("run-1")
        return (await client.generate(prompt_of(server), SAMPLING, "run-3")).labels

    assert ask(server, load, lora=True) == ("run-3", "run-3")
    assert server.adapters == ["run-2", "run-3"]
    assert server.prompts[-1]["model"] == "run-3"
    assert "/pause?mode=keep&clear_cache=false" not in server.calls


@pytest.mark.parametrize("lora", [False, True])
def test_a_tensor_with_another_checksum_fails_the_update(
    server: ScriptedVllm, tmp_path: Path, lora: bool
) -> None:
    published = published_by(server, tmp_path, 3)
    server.wrong_sums = {"head": 12}

    async def load(client: VllmClient) -> bool:
        with pytest.raises(TransientError, match=r"1 tensors differ .*head"):
            await client.load(published, "run-3")
        return await client.has_weights("run-3")

    assert ask(server, load, lora=lora) is False
    server.wrong_sums = {}
    ask(server, lambda client: client.load(published, "run-3"), lora=lora)
    assert ask(server, lambda client: client.has_weights("run-3"), lora=lora)


@pytest.mark.parametrize("text", ["", "[]", '{"results": [null]}', '{"results": [["a"]]}'])
def test_a_server_without_checksums_fails_the_update(server: ScriptedVllm, tmp_path: Path, text: str) -> None:
    server.faults["/collective_rpc"] = answering(200, text)
    published = published_by(server, tmp_path, 3)
    with pytest.raises(TransientError, match="checksums"):
        ask(server, lambda client: client.load(published, "run-3"))


@pytest.mark.parametrize("lora", [False, True])
def test_a_folder_without_checksums_fails_the_update_and_the_error_names_it(
    server: ScriptedVllm, tmp_path: Path, lora: bool
) -> None:
    published = published_by(server, tmp_path, 3)
    (published.folder / "checksums.json").unlink()
    with pytest.raises(UserError, match=r"version-000003.*no checksums\.json"):
        ask(server, lambda client: client.load(published, "run-3"), lora=lora)
    assert not ask(server, lambda client: client.has_weights("run-3"), lora=lora)


def test_parts_of_tensors_are_added_and_copies_count_once() -> None:
    whole = {"norm": 3, "query": -5, "key": 7}
    first = [("norm", "whole", 3), ("query", "0", 2), ("key", "0", 7)]
    second = [("norm", "whole", 3), ("query", "1", -7), ("key", "0", 7)]
    assert different_tensors(whole, [*first, *second]) == []
    assert different_tensors(whole, first) == ["query"]
    assert different_tensors(whole, [*first, *second, ("norm", "whole", 0)]) == ["norm"]  # not loaded
    assert different_tensors(whole, [*first[:2], *second[:2]]) == ["key"]


def test_the_score_of_given_tokens(server: ScriptedVllm, tmp_path: Path) -> None:
    server.folder = publish_probe(tmp_path, 2, server.renderer, ONE)
    prompt = prompt_of(server, ONE)
    tokens = (*prompt.token_ids, 111, 2)
    scores = ask(server, lambda client: client.score(tokens, prompt.images, UNCHANGED))
    assert len(scores) == len(tokens) - 1 and scores[-2:] == (-0.25, -1.0)
    server.response = lambda response: {**response, "prompt_logprobs": [None]}
    with pytest.raises(TransientError, match="without log-probabilities"):
        ask(server, lambda client: client.score(tokens, prompt.images, UNCHANGED))


@pytest.mark.parametrize("route", ["/v1/models", "/weight_info"])
@pytest.mark.parametrize(
    "text", ["", "[]", "7", '{"data": []}', '{"data": [{}]}', '{"data": [{"id": 7, "max_model_len": 9}]}']
)
def test_a_server_that_is_not_vllm(server: ScriptedVllm, route: str, text: str) -> None:
    if (route, text[:1]) == ("/weight_info", "{"):
        return
    server.faults[route] = answering(200, text)
    call = VllmClient.model if route == "/v1/models" else lambda client: client.has_weights("a")
    with pytest.raises(TransientError, match=f"{route} did not answer like vLLM"):
        ask(server, call)


@pytest.mark.parametrize(
    ("lora", "calls"),
    [
        (True, ["/sleep?level=1", "/wake_up"]),
        (False, ["/update_weight_version", "/sleep?level=2", "/wake_up"]),
    ],
)
def test_sleeping_servers_drop_the_weights_that_learning_replaces(
    server: ScriptedVllm, lora: bool, calls: list[str]
) -> None:
    async def talk(client: VllmClient) -> None:
        await client.sleep()
        await client.wake()

    ask(server, talk, lora=lora)
    assert server.calls == calls


def test_timeouts_of_answers_and_of_probes(server: ScriptedVllm) -> None:
    server.faults[GENERATE] = hanging
    with pytest.raises(TransientError, match=r"no answer within 0.1 s"):
        ask(server, lambda client: client.generate(prompt_of(server), SAMPLING, UNCHANGED), seconds=0.1)
    with pytest.raises(TransientError, match=r"no answer within 0.2 s"):
        ask(server, lambda client: client.score((5, 6), (), UNCHANGED), load_seconds=0.2)


TOKENS = st.lists(st.sampled_from([0, 7, 12, 151655]), min_size=1, max_size=12)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": ")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"prompt_token_ids":[7,9,9],"choices":[]}', ('{"prompt_token_ids":[],"choices":[]}', True)),
        ('{"prompt_token_ids": [7, 9, 9]}', ('{"prompt_token_ids": []}', True)),
        ('{"prompt_token_ids":[7,9,9,9]}', ('{"prompt_token_ids":[7,9,9,9]}', False)),
        ('{"prompt_token_ids":[7,9,91]}', ('{"prompt_token_ids":[7,9,91]}', False)),
        ('{"prompt_token_ids":[7,9]}', ('{"prompt_token_ids":[7,9]}', False)),
        ('{"prompt_token_ids":[]}', ('{"prompt_token_ids":[]}', False)),
        ('{"prompt_token_ids":[7, 9,9]}', ('{"prompt_token_ids":[7, 9,9]}', False)),
        ("[7,9,9]", ("[7,9,9]", False)),
    ],
)
def test_only_the_same_tokens_are_cut(text: str, expected: tuple[str, bool]) -> None:
    assert cut_prompt(text, np.array([7, 9, 9])) == expected


@given(own=TOKENS, read=TOKENS, separators=SEPARATORS)
def test_the_verdict_is_that_of_parsed_json(
    own: list[int], read: list[int], separators: tuple[str, str]
) -> None:
    response = {"model": "m", "prompt_token_ids": read, "choices": [{"token_ids": own}]}
    text, same = cut_prompt(json.dumps(response, separators=separators), np.array(own))
    assert same == (own == read)
    assert json.loads(text) == response | {"prompt_token_ids": [] if same else read}
