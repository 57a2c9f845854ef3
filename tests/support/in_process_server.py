"""The engine of this package behind the HTTP interface of vLLM, for tests with little memory.

`install(folder)` makes a stand-in for an interpreter with vLLM, for `engine.python`: it reports a CPU build,
and its servers are those of this module. A server has the routes that `VllmClient` uses for full weights. It
needs 0.4 GB, a server of vLLM 3.3 GB. It loads weights while requests run; while it is paused, none is
answered.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import math
import os
import sys
from pathlib import Path
from typing import Any

_PROGRAM = """\
#!{python}
import sys
sys.path.insert(0, {support!r})
if sys.argv[1] == "-I":
    print('[null, "0.32.0", null]')
else:
    import in_process_server
    in_process_server.main(sys.argv[1:])
"""


def install(folder: Path) -> str:
    """The path of the interpreter, for engine.python."""
    program = folder / "in-process-python"
    program.write_text(_PROGRAM.format(python=sys.executable, support=str(Path(__file__).parent)))
    program.chmod(0o755)
    return str(program)


class Server:
    """State of a server: the engine, the labels of its weights by version, images by hash."""

    def __init__(self, folder: str, context: int) -> None:
        import torch

        from arpo.config import ModelConfig
        from arpo.engines.in_process import InProcessEngine
        from arpo.engines.slot_passes import SlotPasses
        from arpo.models.loading import load_model, load_renderer

        torch.set_num_threads(1)
        settings = ModelConfig(path=folder)
        self.renderer = load_renderer(settings)
        self.model = load_model(settings, seed=0)
        passes = SlotPasses(self.model, self.renderer.pad_id, 64)
        self.engine = InProcessEngine(self.model, self.renderer, passes, in_flight=True)
        self.context, self.label, self.version, self.labels = context, "default", 0, {0: "default"}
        self.resumed = asyncio.Event()
        self.resumed.set()
        self.images: dict[str, Any] = {}
        self.requests = itertools.count()

    async def handle(self, request: Any) -> Any:
        from aiohttp import web

        key = os.environ.get("ARPO_ENGINE_KEY", "")
        if key and request.headers.get("Authorization") != f"Bearer {key}":
            return web.Response(status=401)
        body = await request.json() if request.can_read_body else {}
        return web.json_response(await self.answer(request.path, body))

    async def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        match path:
            case "/v1/models":
                return {"data": [{"id": self.name, "max_model_len": self.context, "parent": None}]}
            case "/weight_info":
                return {"weight_version": self.label}
            case "/is_paused":
                return {"is_paused": not self.resumed.is_set()}
            case "/pause":
                self.resumed.clear()
            case "/resume":
                self.labels[self.version] = self.label
                self.resumed.set()
            case "/update_weight_version":
                self.label = body["new_version"]
            case "/collective_rpc":
                await self.load(Path(body["args"][0]))
                return {"results": [self.checksums()]}
            case "/reset_prefix_cache":
                return {"success": True}
            case "/inference/v1/generate":
                return await self.generate(body)
        return {}

    name = ""

    async def load(self, folder: Path) -> None:
        from safetensors.torch import load_file

        from arpo.engines.base import Weights

        for file in sorted(folder.glob("*.safetensors")):  # noqa: ASYNC240  (a test server)
            found = self.model.load_state_dict(load_file(file), strict=False)
            assert not found.unexpected_keys, found.unexpected_keys
        self.version += 1
        await self.engine.load(Weights(version=self.version, handle=self.model))

    def checksums(self) -> list[tuple[str, str, int]]:
        from arpo.models.checksums import bit_sum

        return [(name, "whole", bit_sum(weight)) for name, weight in self.model.named_parameters()]

    async def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        from arpo.types import Prompt, Sampling, Screenshot

        for part in body["content_parts"]:
            if part["url"] is not None:
                png = base64.b64decode(part["url"].partition(",")[2])
                self.images[part["uuid"]] = Screenshot.of(png)
        images = tuple(self.images[part["uuid"]] for part in body["content_parts"])
        tokens = self.expanded(body["token_ids"], images)
        wanted = body["sampling_params"]
        if "prompt_logprobs" in wanted:
            scored = [{str(t): {"logprob": p}} for t, p in self.score(tokens, images)]
            return {"prompt_token_ids": list(tokens), "prompt_logprobs": [None, *scored]}
        episode = f"request-{next(self.requests)}"
        sampling = Sampling(
            temperature=wanted["temperature"], max_tokens=wanted["max_tokens"], seed=wanted["seed"]
        )
        await self.resumed.wait()
        done = await self.engine.generate(
            Prompt(episode_id=episode, token_ids=tokens, images=images, messages=()), sampling
        )
        await self.engine.release(episode)
        await self.resumed.wait()
        labels = [self.labels.get(version, "unfinished") for version in done.versions]
        pairs = zip(done.token_ids, done.logprobs, strict=True)
        choice = {
            "token_ids": list(done.token_ids),
            "finish_reason": done.finish,
            "logprobs": {"content": [{"token_id": token, "logprob": p} for token, p in pairs]},
            "weight_versions": [
                {"version": one, "start": place, "end": place + 1} for place, one in enumerate(labels)
            ],
        }
        return {"model": self.name, "prompt_token_ids": list(tokens), "choices": [choice]}

    def expanded(self, tokens: list[int], images: tuple[Any, ...]) -> tuple[int, ...]:
        """Each image token as often as its image has tokens."""
        merged = self.renderer.settings.merge_size**2
        counts = iter([math.prod(self.renderer.grid(image)) // merged for image in images])
        image_id = self.renderer.image_token_id
        return tuple(copy for t in tokens for copy in [t] * (next(counts) if t == image_id else 1))

    def score(self, tokens: tuple[int, ...], images: tuple[Any, ...]) -> list[tuple[int, float]]:
        """Every token but the first, with its log-probability."""
        import torch

        from arpo.models.forward import sampled_logprobs
        from arpo.types import Sample

        sample = Sample(
            token_ids=tokens,
            mask=(False, *[True] * (len(tokens) - 1)),
            images=images,
            behaviour_logprobs=(0.0,) * (len(tokens) - 1),
            advantage=0.0,
            weight=0.0,
            replayed=False,
        )
        with torch.no_grad():
            found, _ = sampled_logprobs(self.model, [sample], self.renderer, 1.0)
        return list(zip(tokens[1:], found.tolist(), strict=True))


def main(words: list[str]) -> None:
    from aiohttp import web

    parser = argparse.ArgumentParser()
    for name in ("--model", "--served-model-name", "--host", "--port", "--max-model-len"):
        parser.add_argument(name)
    given, _ = parser.parse_known_args(words)
    server = Server(given.model, int(given.max_model_len))
    server.name = given.served_model_name
    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.route("*", "/{route:.*}", server.handle)])
    web.run_app(app, host=given.host, port=int(given.port), print=None, access_log=None)
