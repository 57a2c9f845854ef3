"""Rollouts of a 7B model on one GPU: sampled tokens per second, against the limits of the GPU.

A 7B model with random weights plays episodes with screenshots of 1920x1080. `--model qwen3_5` has the size of
Qwen3.5-9B, `--model qwen3_5_moe` that of Qwen3.5-35B-A3B; install flash-linear-attention for both. Two limits
are computed from rates measured in the same run. `bandwidth_limit`: decoding alone, which reads all weights
and all cached keys, values and states for each token. `limit`: this, and the arithmetic of encoding
screenshots and of prefilling, at the rate of a large matrix product. `ratio` is measured divided by
`bandwidth_limit`. One JSON line:

    PYTHONPATH=. python benchmarks/rollout_7b.py [--model qwen3_5] [--episodes 16] [--turns 15] [--tokens 150]
    PYTHONPATH=. python benchmarks/rollout_7b.py --vllm .venv-vllm/bin/python --episodes 32

`--vllm`: a vLLM server on the same GPU then plays the same episodes. `parts` of the server are measured with
prompts of these episodes: `text` prefills them with text in place of screenshots, `prefill` with screenshots
and answers of one token, `decode` samples all answers with everything else in the caches. `vllm_ratio` is the
tokens per second of the server divided by those of the engine in the process. All screenshots differ, as on a
real desktop: with few of them, a server processes each only once. `--skip-in-process` measures the server
alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from learner import IMAGE_SETTINGS, QWEN3_5, draw_screenshot, qwen3_5, seven_b, used_dimensions
from torch import Tensor

from arpo.config import Config, EngineConfig, EnvConfig, ModelConfig, RolloutConfig
from arpo.engines.base import Engine
from arpo.engines.cached_episodes import CachedEpisode, NewTokens
from arpo.engines.http_exchange import HttpExchange
from arpo.engines.in_process import InProcessEngine
from arpo.engines.pool_passes import PoolPasses
from arpo.engines.vllm import VllmEngine
from arpo.models.loading import load_model, load_renderer
from arpo.models.memory_plan import GIB, ModelDimensions, key_value_bytes, measure_dimensions, states_bytes
from arpo.prompts.rendering import Renderer
from arpo.rollout.player import release_gpu_memory
from arpo.serving.servers import open_servers
from arpo.types import Message, Prompt, Sampling, Screenshot

SIZE = (1920, 1080)
Answers = list[tuple[int, ...]]


class TimedPasses(PoolPasses):
    """Counts the seconds of prefilling and decoding, sampling not included."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.seconds: dict[str, float] = defaultdict(float)
        self.attended = 0  # keys attended to, summed over prefilled tokens
        self.read = 0  # cached tokens read, summed over decoding steps
        self.steps = 0

    def prefill(self, part: Sequence[NewTokens], features: Sequence[Tensor]) -> Tensor:
        self.attended += sum(new.width * (new.start + new.width // 2) for new in part)
        started = _now()
        logits = super().prefill(part, features)
        self.seconds["prefill"] += _now() - started
        return logits

    def decode(self, episodes: Sequence[CachedEpisode], tokens: Sequence[int]) -> Tensor:
        self.read += sum(len(episode.tokens) for episode in episodes)
        self.steps += 1
        started = _now()
        logits = super().decode(episodes, tokens)
        self.seconds["decode"] += _now() - started
        return logits


class TimedEngine(InProcessEngine):
    """Counts the seconds of encoding screenshots."""

    encoding = 0.0

    def _encode(self, images: Sequence[Screenshot]) -> dict[str, Tensor]:
        started = _now()
        features = super()._encode(images)
        self.encoding += _now() - started
        return features


def _now() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


class Work:
    """The episodes to play. `answers` has the sampled answers of each, once they were played."""

    def __init__(self, arguments: argparse.Namespace, renderer: Renderer, size: tuple[int, int]) -> None:
        self.episodes, self.turns, self.tokens = arguments.episodes, arguments.turns, arguments.tokens
        self.answers: dict[int, Answers] = {}
        self._renderer = renderer
        count = self.episodes * (self.turns + 1)
        with ProcessPoolExecutor() as pool:
            self._shots = list(pool.map(partial(draw_screenshot, size=size), range(count), chunksize=8))
        self.grid = renderer.grid(self._shots[0])

    async def play(self, engine: Engine, *, limit: int = 0, text: bool = False) -> int:
        """Play all episodes. Returns the number of sampled tokens.

        `limit`: answers are at most so long, and prompts are those of the episodes played before. `text`:
        these prompts have text in place of screenshots.
        """
        playing = (self._episode(engine, name, limit, text) for name in range(self.episodes))
        return sum(await asyncio.gather(*playing))

    async def _episode(self, engine: Engine, name: int, limit: int, text: bool) -> int:
        shots = self._shots[name * (self.turns + 1) :]
        opening = (
            Message(role="system", text="You use a computer."),
            Message(role="user", text="open the file and save it"),
            Message(role="user", screenshot=shots[0]),
        )
        rendered = self._renderer.render(opening)
        token_ids, images, sampled = rendered.token_ids, rendered.images, 0
        answers: Answers = []
        for turn in range(self.turns):
            shown = self._as_text(token_ids) if text else token_ids
            prompt = Prompt(episode_id=str(name), token_ids=shown, images=() if text else images, messages=())
            length = self.tokens + (7 * name + 3 * turn) % 21 - 10  # real answers differ in length
            sampling = Sampling(
                temperature=1.0, max_tokens=min(length, limit or length), seed=1000 * name + turn
            )
            answer = await engine.generate(prompt, sampling)
            sampled += len(answer.token_ids)
            answers.append(self.answers[name][turn] if limit else answer.token_ids)
            rest = self._renderer.continuation(Message(role="user", screenshot=shots[turn + 1]), answers[-1])
            token_ids = (*token_ids, *answers[-1], *rest.token_ids)
            images = (*images, *rest.images)
        await engine.release(str(name))
        self.answers[name] = answers
        return sampled

    def _as_text(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        structure = range(self._renderer.image_token_id + 2)  # the first tokens of this tokenizer
        return tuple(
            30 + place % 60 if token in structure else token for place, token in enumerate(token_ids)
        )


def measured_rates() -> tuple[float, float]:
    """(bytes per second of reading, FLOP per second of a large matrix product)."""
    values = torch.ones(2**30, device="cuda")
    matrix = torch.ones(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def seconds(run: Any) -> float:
        run()
        started = _now()
        for _ in range(10):
            run()
        return (_now() - started) / 10

    return values.nbytes / seconds(values.sum), 2 * 8192**3 / seconds(lambda: matrix @ matrix)


def decoding_bytes(dims: ModelDimensions, passes: TimedPasses, tokens: int, episodes: int) -> float:
    """Bytes read if all episodes decoded together all the time."""
    weights = 2 * (dims.language_parameters - dims.vocabulary * dims.hidden)  # embeddings are looked up
    states = states_bytes(dims, 2, episodes - 1) * 2  # they are read and written
    return (weights + states) * tokens / episodes + passes.read * key_value_bytes(dims, 2)


def arithmetic(
    dims: ModelDimensions, passes: TimedPasses, prefilled: int, images: int, patches: int
) -> float:
    """FLOP of prefilling and of encoding screenshots; without attention within windows."""
    language = 2 * dims.layers * dims.layer_parameters * prefilled
    language += 4 * dims.key_layers * dims.query_width * passes.attended
    vision = 2 * dims.vision_parameters * patches
    vision += 4 * dims.vision_full_layers * dims.vision_hidden * patches**2
    return language + images * vision


def model_settings(folder: Path) -> ModelConfig:
    return ModelConfig(
        path=str(folder), weights="random", dtype="bfloat16", device="cuda",
        min_pixels=IMAGE_SETTINGS.min_pixels, max_pixels=IMAGE_SETTINGS.max_pixels,
    )  # fmt: skip


def measure_in_process(settings: ModelConfig, renderer: Renderer, work: Work) -> dict[str, Any]:
    """The engine in the process, and the limits of the GPU."""
    model = load_model(settings, seed=0)
    dims = measure_dimensions(model, lora_rank=1)
    bandwidth, flops = measured_rates()
    torch.cuda.empty_cache()
    context = 1024 + work.turns * (work.tokens + 2800)
    passes = TimedPasses(model, renderer.pad_id, episodes=work.episodes, max_tokens=context)
    engine = TimedEngine(model, renderer, passes)
    short = copy(work)
    short.tokens = 12
    asyncio.run(short.play(engine))  # kernels are compiled, and cuDNN plans for each length
    before = engine.stats.prefilled_tokens, engine.stats.images_encoded
    passes.seconds.clear()
    passes.attended = passes.read = passes.steps = 0
    engine.encoding = 0.0
    torch.cuda.reset_peak_memory_stats()
    started = _now()
    sampled = asyncio.run(work.play(engine))
    seconds = _now() - started
    prefilled, images = engine.stats.prefilled_tokens - before[0], engine.stats.images_encoded - before[1]
    reading = decoding_bytes(dims, passes, sampled, work.episodes) / bandwidth
    used = used_dimensions(dims, model.config)
    computing = arithmetic(used, passes, prefilled, images, work.grid[1] * work.grid[2]) / flops
    parts = {
        "encode": engine.encoding,
        "prefill": passes.seconds["prefill"],
        "decode": passes.seconds["decode"],
    }
    parts["rest"] = seconds - sum(parts.values())
    return {
        "seconds": round(seconds, 1),
        "parts": {name: round(value, 1) for name, value in parts.items()},
        "steps": passes.steps,
        "images": images,
        "tokens_per_second": round(sampled / seconds),
        "episodes_per_minute": round(60 * work.episodes / seconds, 1),
        "terabytes_per_second": round(bandwidth / 1e12, 2),
        "teraflops": round(flops / 1e12),
        "bandwidth_limit": round(sampled / reading),
        "limit": round(sampled / (reading + computing)),
        "ratio_to_limit": round((reading + computing) / seconds, 2),
        "ratio": round(reading / seconds, 2),
        "peak_gibibytes": round(torch.cuda.max_memory_allocated() / GIB, 1),
    }


async def measure_vllm(
    arguments: argparse.Namespace, settings: ModelConfig, renderer: Renderer, work: Work
) -> dict[str, Any]:
    config = Config(
        model=settings,
        env=EnvConfig(parallel=work.episodes),
        engine=EngineConfig(name="vllm", replicas=1, python=arguments.vllm),
        rollout=RolloutConfig(max_context_tokens=65536, max_images=work.turns + 1),
    )
    servers = open_servers(config, learning=False)
    assert servers is not None
    engine = VllmEngine(config, renderer, servers.key, learning=False)
    found: dict[str, Any] = {}

    async def timed(name: str, play: Coroutine[Any, Any, int]) -> int:
        began = time.perf_counter()
        sampled = await play
        found[name] = round(time.perf_counter() - began, 1)
        print(json.dumps(found), file=sys.stderr, flush=True)
        return sampled

    began = time.perf_counter()
    async with servers.running(arguments.logs, lambda text: print(text, file=sys.stderr)) as started:
        found["start"] = round(time.perf_counter() - began, 1)
        engine.use_servers([server.address for server in started], servers.key)
        await engine.start()
        short = copy(work)
        short.episodes, short.turns = min(4, work.episodes), 2
        await timed("warm-up", short.play(engine))
        await reset_caches(started[0].address(), servers.key)
        sampled = await timed("seconds", work.play(engine))
        await timed("decode", work.play(engine, limit=10**6))
        await reset_caches(started[0].address(), servers.key)
        await timed("prefill", work.play(engine, limit=1))
        await timed("text", work.play(engine, limit=1, text=True))
        await engine.close()
    return {**found, "tokens_per_second": round(sampled / found["seconds"])}


async def reset_caches(url: str, key: str) -> None:
    """Forget all prefixes, processed screenshots and their features."""
    http = HttpExchange(key, 1 << 20, "engine.endpoints")
    http.open()
    for cache in ("prefix", "mm", "encoder"):
        status, text, _ = await http.request("POST", f"{url}/reset_{cache}_cache", None, 60.0)
        assert status == 200, text
    await http.close()


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    settings = model_settings(folder)
    renderer = load_renderer(settings)
    work = Work(arguments, renderer, SIZE)
    result: dict[str, Any] = {"benchmark": "rollout_7b", **arguments_of(arguments)}
    if not arguments.skip_in_process:
        result |= measure_in_process(settings, renderer, work)
        release_gpu_memory()
    if arguments.vllm:
        served = asyncio.run(measure_vllm(arguments, settings, renderer, work))
        result["vllm"] = served
        if not arguments.skip_in_process:
            result["vllm_ratio"] = round(served["tokens_per_second"] / result["tokens_per_second"], 2)
    return result


def arguments_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(arguments).items() if name != "logs"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("qwen2_5_vl", *QWEN3_5), default="qwen2_5_vl", help="family")
    parser.add_argument("--episodes", type=int, default=16, help="played at once")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=150, help="tokens per answer, on average")
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter with vLLM: measure a server too")
    parser.add_argument("--skip-in-process", action="store_true", help="measure the server alone")
    parser.add_argument("--logs", type=Path, help="folder for the log of the server")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU with 80 GiB")
    with tempfile.TemporaryDirectory() as folder:
        family, path = arguments.model, Path(folder)
        large = qwen3_5(path, family, tiny=False) if family in QWEN3_5 else seven_b(path)
        print(json.dumps(measure(arguments, large)))


if __name__ == "__main__":
    main()
