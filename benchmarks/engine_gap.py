"""Disagreement of engine and learner in bfloat16: engine_kl, with and without a float32 head.

A 7B model with random weights answers prompts with screenshots of 1920x1080; the learner computes the
probabilities of the same tokens. The head is scaled so that answers have about the entropy of a trained
model's. `ratio` is engine_kl without divided by engine_kl with model.float32_head. One JSON line:

    PYTHONPATH=. python benchmarks/engine_gap.py [--episodes 8] [--turns 3] [--tokens 150]
    PYTHONPATH=. python benchmarks/engine_gap.py --tiny    # on a CPU in float32, to test this script
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from learner import IMAGE_SETTINGS, draw_screenshot, seven_b

from arpo.algorithms.losses import k3
from arpo.config import Config, EngineConfig, EnvConfig, ModelConfig, RolloutConfig
from arpo.engines.factory import open_passes
from arpo.engines.in_process import InProcessEngine
from arpo.models.forward import sampled_logprobs
from arpo.models.loading import load_model, load_renderer, resolve_model
from arpo.prompts.rendering import Renderer
from arpo.types import Message, Prompt, Sample, Sampling

SHARPNESS = 4.5  # standard deviation of the logits
SIZE = (1920, 1080)


async def play(
    engine: InProcessEngine, renderer: Renderer, name: int, turns: int, tokens: int, size: tuple[int, int]
) -> Sample:
    """One episode, as the learner gets it."""
    shots = [draw_screenshot(31 * name + turn, size) for turn in range(turns)]
    opening = (Message(role="user", text="open the file"), Message(role="user", screenshot=shots[0]))
    rendered = renderer.render(opening)
    token_ids, images = rendered.token_ids, rendered.images
    mask: tuple[bool, ...] = (False,) * len(token_ids)
    logprobs: tuple[float, ...] = ()
    for turn in range(turns):
        prompt = Prompt(episode_id=str(name), token_ids=token_ids, images=images, messages=())
        answer = await engine.generate(
            prompt, Sampling(temperature=1.0, max_tokens=tokens, seed=1000 * name + turn)
        )
        token_ids, mask = token_ids + answer.token_ids, mask + (True,) * len(answer.token_ids)
        logprobs += answer.logprobs
        if turn + 1 < turns:
            rest = renderer.continuation(Message(role="user", screenshot=shots[turn + 1]), answer.token_ids)
            token_ids, mask = token_ids + rest.token_ids, mask + (False,) * len(rest.token_ids)
            images += rest.images
    await engine.release(str(name))
    return Sample(
        token_ids=token_ids, mask=mask, images=images, behaviour_logprobs=logprobs,
        advantage=0.0, weight=0.0, replayed=False,
    )  # fmt: skip


def compare(settings: ModelConfig, arguments: argparse.Namespace, size: tuple[int, int]) -> dict[str, float]:
    """Play with the engine, then compute the same log-probabilities as the learner does."""
    renderer, model = load_renderer(settings), load_model(settings, seed=0)
    if not arguments.tiny:  # its head is tied to the embeddings
        model.lm_head.weight.data.normal_(std=SHARPNESS / model.lm_head.weight.shape[1] ** 0.5)
    config = Config(
        model=settings,
        env=EnvConfig(parallel=arguments.episodes),
        engine=EngineConfig(cache_gigabytes=16.0),
        rollout=RolloutConfig(max_context_tokens=65536),
    )
    engine = InProcessEngine(model, renderer, open_passes(model, renderer.pad_id, config))

    async def play_all() -> list[Sample]:
        names = range(arguments.episodes)
        turns, tokens = arguments.turns, arguments.tokens
        return await asyncio.gather(*(play(engine, renderer, n, turns, tokens, size) for n in names))

    samples = asyncio.run(play_all())
    with torch.no_grad():
        parts = [sampled_logprobs(model, [sample], renderer, 1.0) for sample in samples]
    learner_T, entropy_T = (torch.cat(values).double().cpu() for values in zip(*parts, strict=True))
    engine_T = torch.tensor([p for sample in samples for p in sample.behaviour_logprobs]).double()
    gaps_T = (learner_T - engine_T).abs()
    return {
        "tokens": engine_T.numel(),
        "entropy": round(entropy_T.mean().item(), 3),
        "engine_kl": k3(engine_T, learner_T).mean().item(),
        "gap_mean": gaps_T.mean().item(),
        "gap_99": gaps_T.quantile(0.99).item(),
        "gap_max": gaps_T.max().item(),
    }


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    settings = ModelConfig(
        path=str(resolve_model("base") if arguments.tiny else seven_b(folder)),
        weights="random",
        dtype="float32" if arguments.tiny else "bfloat16",
        min_pixels=IMAGE_SETTINGS.min_pixels,
        max_pixels=IMAGE_SETTINGS.max_pixels,
    )
    size = (224, 168) if arguments.tiny else SIZE
    plain = compare(settings, arguments, size)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    exact = compare(replace(settings, float32_head=True), arguments, size)
    return {
        "benchmark": "engine_gap",
        **vars(arguments),
        "plain": plain,
        "float32_head": exact,
        "ratio": round(plain["engine_kl"] / max(exact["engine_kl"], 1e-12), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=150, help="maximum tokens per answer")
    parser.add_argument("--tiny", action="store_true", help="the tiny base model and small screenshots")
    arguments = parser.parse_args()
    if not arguments.tiny and not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU with 80 GiB; --tiny runs on a CPU")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(arguments, Path(folder))))


if __name__ == "__main__":
    main()
