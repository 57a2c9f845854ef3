"""Speed-up of the engine from keeping keys and values across turns.

Plays the same episodes twice in one process: with their cache, and with the cache dropped after every answer,
so that the whole history is prefilled again. Image features may stay cached in both cases. One JSON line:

    PYTHONPATH=. python benchmarks/engine.py --episodes 32 --turns 12
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import time

import numpy as np
import torch
from PIL import Image

from arpo.engines.in_process import InProcessEngine
from arpo.engines.slot_passes import SlotPasses
from arpo.models.loading import prepare
from arpo.prompts.rendering import Renderer
from arpo.types import Message, Prompt, Sampling, Screenshot
from tools.pretrain.tiny import IMAGE_SETTINGS, new_tiny_model, tiny_config
from tools.pretrain.tokenizer import ACTION_PHRASES, build_tokenizer, special_ids


def screenshot(seed: int) -> Screenshot:
    """Coloured tiles, 224x168: 48 image tokens."""
    tiles = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    png = io.BytesIO()
    Image.fromarray(tiles.repeat(14, 0).repeat(14, 1)).save(png, "PNG")
    return Screenshot.of(png.getvalue())


async def episode(
    engine: InProcessEngine, renderer: Renderer, name: int, arguments: argparse.Namespace, keep: bool
) -> int:
    """Play one episode; returns the number of sampled tokens."""
    opening = (
        Message(role="system", text="You use a computer."),
        Message(role="user", text="open the file and save it"),
        Message(role="user", screenshot=screenshot(1000 * name)),
    )
    rendered = renderer.render(opening)
    token_ids, images = rendered.token_ids, rendered.images
    sampled = 0
    for turn in range(arguments.turns):
        prompt = Prompt(episode_id=str(name), token_ids=token_ids, images=images, messages=())
        tokens = arguments.tokens + (name + turn) % 5 - 2  # real answers differ in length
        answer = await engine.generate(
            prompt, Sampling(temperature=1.0, max_tokens=tokens, seed=1000 * name + turn)
        )
        sampled += len(answer.token_ids)
        rest = renderer.continuation(Message(role="user", screenshot=screenshot(1000 * name + turn + 1)))
        token_ids = (*token_ids, *answer.token_ids, *rest.token_ids)
        images = (*images, *rest.images)
        if not keep:
            await engine.release(str(name))
    await engine.release(str(name))
    return sampled


def measure(engine: InProcessEngine, renderer: Renderer, arguments: argparse.Namespace, keep: bool) -> float:
    """Sampled tokens per second."""

    async def play() -> int:
        names = range(arguments.episodes)
        return sum(
            await asyncio.gather(*(episode(engine, renderer, name, arguments, keep) for name in names))
        )

    started = time.perf_counter()
    return asyncio.run(play()) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16, help="tokens per answer, on average")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    tokenizer = build_tokenizer(ACTION_PHRASES, ["open", "save", "the", "file", "and", "it"], 300)
    model = prepare(new_tiny_model(tiny_config(tokenizer.get_vocab_size(), special_ids(tokenizer)), seed=0))
    renderer = Renderer(tokenizer, IMAGE_SETTINGS)
    engine = InProcessEngine(model, renderer, SlotPasses(model, renderer.pad_id, arguments.episodes))
    warm_up = argparse.Namespace(**{**vars(arguments), "turns": 1})
    measure(engine, renderer, warm_up, keep=True)

    kept = measure(engine, renderer, arguments, keep=True)
    dropped = measure(engine, renderer, arguments, keep=False)
    report = {
        "benchmark": "engine",
        **vars(arguments),
        "tokens_per_second": {"kept": round(kept, 1), "prefilled_again": round(dropped, 1)},
        "ratio": round(kept / dropped, 2),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
