"""Rollouts of a 7B model on one GPU: sampled tokens per second, against the limits of the GPU.

A 7B model with random weights plays episodes with screenshots of 1920x1080. With `--model qwen3_5` it has the
size of Qwen3.5-9B; install flash-linear-attention for it. Two limits are computed from rates measured in the
same run. `bandwidth_limit`: decoding alone, which reads all weights and all cached keys, values and states
for each token. `limit`: this, and the arithmetic of encoding screenshots and of prefilling, at the rate of a
large matrix product. `ratio` is measured divided by `bandwidth_limit`. One JSON line:

    PYTHONPATH=. python benchmarks/rollout_7b.py [--model qwen3_5] [--episodes 16] [--turns 15] [--tokens 150]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from learner import IMAGE_SETTINGS, draw_screenshot, qwen3_5, seven_b
from torch import Tensor

from arpo.config import ModelConfig
from arpo.engines.cached_episodes import CachedEpisode, NewTokens
from arpo.engines.in_process import InProcessEngine
from arpo.engines.pool_passes import PoolPasses
from arpo.models.loading import load_model, load_renderer
from arpo.models.memory_plan import GIB, ModelDimensions, key_value_bytes, measure_dimensions, states_bytes
from arpo.prompts.rendering import Renderer
from arpo.types import Message, Prompt, Sampling, Screenshot

SIZE = (1920, 1080)
SCREENSHOTS = 64  # distinct pictures


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


async def episode(
    engine: InProcessEngine, renderer: Renderer, name: int, shots: list[Screenshot], turns: int, tokens: int
) -> int:
    """Play one episode; returns the number of sampled tokens."""
    opening = (
        Message(role="system", text="You use a computer."),
        Message(role="user", text="open the file and save it"),
        Message(role="user", screenshot=shots[31 * name % len(shots)]),
    )
    rendered = renderer.render(opening)
    token_ids, images = rendered.token_ids, rendered.images
    sampled = 0
    for turn in range(turns):
        prompt = Prompt(episode_id=str(name), token_ids=token_ids, images=images, messages=())
        limit = tokens + (7 * name + 3 * turn) % 21 - 10  # real answers differ in length
        answer = await engine.generate(
            prompt, Sampling(temperature=1.0, max_tokens=limit, seed=1000 * name + turn)
        )
        sampled += len(answer.token_ids)
        shot = shots[(31 * name + turn + 1) % len(shots)]
        rest = renderer.continuation(Message(role="user", screenshot=shot), answer.token_ids)
        token_ids = (*token_ids, *answer.token_ids, *rest.token_ids)
        images = (*images, *rest.images)
    await engine.release(str(name))
    return sampled


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


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    settings = ModelConfig(
        path=str(folder), weights="random", dtype="bfloat16", device="cuda",
        min_pixels=IMAGE_SETTINGS.min_pixels, max_pixels=IMAGE_SETTINGS.max_pixels,
    )  # fmt: skip
    renderer, model = load_renderer(settings), load_model(settings, seed=0)
    dims = measure_dimensions(model, lora_rank=1)
    shots = [draw_screenshot(number, SIZE) for number in range(SCREENSHOTS)]
    bandwidth, flops = measured_rates()
    torch.cuda.empty_cache()
    context = 1024 + arguments.turns * (arguments.tokens + 2800)
    passes = TimedPasses(model, renderer.pad_id, episodes=arguments.episodes, max_tokens=context)
    engine = TimedEngine(model, renderer, passes)

    async def play(turns: int) -> int:
        names = range(arguments.episodes)
        tokens = arguments.tokens
        return sum(await asyncio.gather(*(episode(engine, renderer, n, shots, turns, tokens) for n in names)))

    asyncio.run(play(arguments.turns))  # warm-up: kernels are compiled, and cuDNN plans for each length
    before = engine.stats.prefilled_tokens, engine.stats.images_encoded
    passes.seconds.clear()
    passes.attended = passes.read = passes.steps = 0
    engine.encoding = 0.0
    torch.cuda.reset_peak_memory_stats()
    started = _now()
    sampled = asyncio.run(play(arguments.turns))
    seconds = _now() - started
    prefilled, images = engine.stats.prefilled_tokens - before[0], engine.stats.images_encoded - before[1]
    grid = renderer.grid(shots[0])
    reading = decoding_bytes(dims, passes, sampled, arguments.episodes) / bandwidth
    computing = arithmetic(dims, passes, prefilled, images, grid[1] * grid[2]) / flops
    parts = {
        "encode": engine.encoding,
        "prefill": passes.seconds["prefill"],
        "decode": passes.seconds["decode"],
    }
    parts["rest"] = seconds - sum(parts.values())
    return {
        "benchmark": "rollout_7b",
        **vars(arguments),
        "seconds": round(seconds, 1),
        "parts": {name: round(value, 1) for name, value in parts.items()},
        "steps": passes.steps,
        "images": images,
        "tokens_per_second": round(sampled / seconds),
        "episodes_per_minute": round(60 * arguments.episodes / seconds, 1),
        "terabytes_per_second": round(bandwidth / 1e12, 2),
        "teraflops": round(flops / 1e12),
        "bandwidth_limit": round(sampled / reading),
        "limit": round(sampled / (reading + computing)),
        "ratio_to_limit": round((reading + computing) / seconds, 2),
        "ratio": round(reading / seconds, 2),
        "peak_gibibytes": round(torch.cuda.max_memory_allocated() / GIB, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=("qwen2_5_vl", "qwen3_5"), default="qwen2_5_vl", help="family")
    parser.add_argument("--episodes", type=int, default=16, help="played at once")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=150, help="tokens per answer, on average")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU with 80 GiB")
    with tempfile.TemporaryDirectory() as folder:
        large = qwen3_5(Path(folder), tiny=False) if arguments.model == "qwen3_5" else seven_b(Path(folder))
        print(json.dumps(measure(arguments, large)))


if __name__ == "__main__":
    main()
