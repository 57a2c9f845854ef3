"""vLLM servers for tests of faults: real HTTP on loopback, the routes that the engine uses, scripted answers.

An answer is two tokens: "a" and the end of turn. `tests/vllm` uses real servers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from arpo.config.recipe import load_config
from arpo.models.loading import load_renderer
from arpo.prompts.rendering import Renderer
from arpo.storage.published_weights import CHECKSUM_FILE, Probe, publishing, read_published, write_probe
from arpo.types import Message, Screenshot
from openai_server import hangs, running

LOGPROBS = (-0.25, -0.5)

Fault = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse | None]]


@dataclass(slots=True)
class ScriptedVllm:
    """State of a server, and what it was asked. A test may change all of it at any time.

    `faults` by route may answer in place of the server. Their result None means: answer as usual.
    """

    renderer: Renderer
    url: str = ""
    model: str = "base"
    max_model_len: int = 4096
    version: str = "default"
    paused: bool = False
    adapters: list[str] = field(default_factory=list)
    folder: Path | None = None  # of the weights that were loaded last
    wrong_sums: dict[str, int] = field(default_factory=dict)  # checksums of tensors with other values
    probe_error: float = 0.0  # added to the log-probabilities of a probe
    images: dict[str, str] = field(default_factory=dict)  # the cache, by hash
    calls: list[str] = field(default_factory=list)
    prompts: list[dict[str, Any]] = field(default_factory=list)
    faults: dict[str, Fault] = field(default_factory=dict)
    response: Callable[[dict[str, Any]], dict[str, Any]] = lambda response: response

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(request.path_qs)
        body = await request.json() if request.can_read_body else {}
        fault = self.faults.get(request.path)
        if fault is not None and (answer := await fault(request, body)) is not None:
            return answer
        match request.path:
            case "/v1/models":
                return web.json_response({"data": self._models()})
            case "/weight_info":
                return web.json_response({"weight_version": self.version})
            case "/is_paused":
                return web.json_response({"is_paused": self.paused})
            case "/pause" | "/resume":
                self.paused = request.path == "/pause"
            case "/update_weight_version":
                self.version = body["new_version"]
            case "/collective_rpc":
                if body["method"] == "load_published_weights":
                    self.folder = Path(body["args"][0])
                return web.json_response({"results": [self._checksums()]})
            case "/v1/load_lora_adapter" if not body["lora_name"]:
                return refusal(400, "Both 'lora_name' and 'lora_path' must be provided.")
            case "/v1/load_lora_adapter":
                self.adapters.append(body["lora_name"])
                self.folder = Path(body["lora_path"])
            case "/v1/unload_lora_adapter":
                self.adapters.remove(body["lora_name"])
            case "/reset_prefix_cache":
                return web.json_response({"success": True})
            case "/inference/v1/generate":
                return await self._generate(body)
        return web.json_response({})

    def _checksums(self) -> list[tuple[str, str, int]]:
        published = read_published(self.folder) if self.folder else None
        assert published is not None
        return [(name, "whole", total) for name, total in (published.checksums() | self.wrong_sums).items()]

    def _models(self) -> list[dict[str, Any]]:
        base = {"id": self.model, "max_model_len": self.max_model_len, "parent": None}
        return [base, *({"id": name, "parent": self.model} for name in self.adapters)]

    async def _generate(self, body: dict[str, Any]) -> web.StreamResponse:
        self.prompts.append(body)
        for part in body["content_parts"]:
            if part["url"] is not None:
                self.images[part["uuid"]] = part["url"]
            elif part["uuid"] not in self.images:
                return refusal(400, "Cache miss for image at index 0 but data is not provided.")
        wanted = body.get("model", self.model)
        if wanted not in (self.model, *self.adapters):
            return refusal(404, f"The model `{wanted}` does not exist.")
        while self.paused:  # noqa: ASYNC110  (a test in another thread may end the pause)
            await asyncio.sleep(0.01)
        prompt = self._expanded(body)
        tokens = [*self.renderer.encode("a"), self.renderer.end_of_turn_id]
        entries = [
            {"token_id": token, "logprob": logprob} for token, logprob in zip(tokens, LOGPROBS, strict=True)
        ]
        choice = {
            "token_ids": tokens,
            "finish_reason": "stop",
            "logprobs": {"content": entries},
            "weight_versions": [{"version": self.version, "start": 0, "end": len(tokens)}],
        }
        response: dict[str, Any] = {"model": wanted, "prompt_token_ids": prompt, "choices": [choice]}
        if "prompt_logprobs" in body["sampling_params"]:
            response["prompt_logprobs"] = self._prompt_logprobs(prompt)
        return web.json_response(self.response(response))

    def _expanded(self, body: dict[str, Any]) -> list[int]:
        """Each image token as often as the image has tokens: those of these tests have four."""
        image = self.renderer.image_token_id
        return [copy for token in body["token_ids"] for copy in [token] * (4 if token == image else 1)]

    def _prompt_logprobs(self, prompt: list[int]) -> list[Any]:
        """As the learner of the loaded weights wrote them, for the answer of the probe."""
        published = read_published(self.folder) if self.folder else None
        assert published is not None
        known = published.probe().logprobs
        logprobs = [*[-1.0] * (len(prompt) - 1 - len(known)), *(p + self.probe_error for p in known)]
        pairs = zip(prompt[1:], logprobs, strict=True)
        return [None, *({str(token): {"logprob": logprob}} for token, logprob in pairs)]


def refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


def answering(status: int, text: str, times: int = 1_000_000) -> Fault:
    """A fault: this response, the first `times` times."""
    left = [times]

    async def fault(request: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        left[0] -= 1
        return web.Response(status=status, text=text) if left[0] >= 0 else None

    return fault


async def hanging(request: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
    return await hangs()


@contextmanager
def scripted_vllm() -> Iterator[ScriptedVllm]:
    server = ScriptedVllm(load_renderer(load_config("desk").model))
    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.route("*", "/{route:.*}", server.handle)])
    with running(app) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server


def publish_probe(root: Path, version: int, renderer: Renderer, screenshot: Screenshot) -> Path:
    """A published folder with a probe and checksums, without tensors."""
    rendered = renderer.render([Message(role="user", text="Save", screenshot=screenshot)])
    probe = Probe(
        token_ids=rendered.token_ids,
        images=rendered.images,
        answer=(*renderer.encode("a"), renderer.end_of_turn_id),
        logprobs=(-0.125 * version, -1.0),
    )
    with publishing(root, version) as folder:
        write_probe(folder, probe)
        (folder / CHECKSUM_FILE).write_text(json.dumps({"norm": version, "head": 10 + version}), "utf-8")
    return folder
