"""Disagreement of engine and learner in bfloat16: engine_kl, with and without a float32 head.

A 7B model with random weights answers prompts with screenshots of 1920x1080; the learner computes the
probabilities of the same tokens. The head is scaled so that answers have about the entropy of a trained
model's. `ratio` is engine_kl without divided by engine_kl with model.float32_head. One JSON line:

    PYTHONPATH=. python benchmarks/engine_gap.py [--episodes 8] [--turns 3] [--tokens 150]
    PYTHONPATH=. python benchmarks/engine_gap.py --vllm .venv-vllm/bin/python
    PYTHONPATH=. python benchmarks/engine_gap.py --tiny    # on a CPU in float32, to test this script

`--vllm`: a vLLM server on the same GPU samples too, after 0, 1, 5 and 20 updates of all weights, and with
LoRA adapters after 0 and 5. The weights are loaded into the server as in training. `ratio` is then engine_kl
of the server divided by that of the engine in the process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from learner import IMAGE_SETTINGS, draw_screenshot, seven_b
from safetensors.torch import save_file
from torch import Tensor

from arpo.algorithms.losses import k3
from arpo.config import Config, EngineConfig, EnvConfig, LossConfig, ModelConfig, OptimConfig, RolloutConfig
from arpo.engines.base import Engine
from arpo.engines.factory import open_passes
from arpo.engines.in_process import InProcessEngine
from arpo.engines.vllm import VllmEngine
from arpo.learner.base import Batch
from arpo.learner.local import LocalLearner
from arpo.learner.publish import Publisher
from arpo.models import float32_head
from arpo.models.forward import sampled_logprobs
from arpo.models.loading import load_model, load_renderer, resolve_model
from arpo.models.trainable import set_trainable
from arpo.prompts.rendering import Renderer
from arpo.rollout.player import release_gpu_memory
from arpo.serving.servers import open_servers
from arpo.types import Message, Prompt, Sample, Sampling

SHARPNESS = 4.5  # standard deviation of the logits
SIZE = (1920, 1080)
UPDATES: dict[Literal["all", "language", "lora"], tuple[int, ...]] = {"all": (0, 1, 5, 20), "lora": (0, 5)}
LEARNING_RATES = {"all": 1e-6, "lora": 1e-4}
ANSWER_PARTS = 3  # of equal length, for gaps by position
TRAINED = 2  # episodes of an update: each changes all weights
CACHE_GIGABYTES = 4.0
# The answer of the probe is improbable to random weights, so rounding changes its log-probabilities more.
PROBE_GAP = 5.0


async def play(
    engine: Engine, renderer: Renderer, name: int, turns: int, tokens: int, size: tuple[int, int]
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
        if turn + 1 == turns or min(answer.token_ids) <= renderer.image_token_id + 1:
            break  # random weights sample tokens of images, which no prompt may contain as text
        rest = renderer.continuation(Message(role="user", screenshot=shots[turn + 1]), answer.token_ids)
        token_ids, mask = token_ids + rest.token_ids, mask + (False,) * len(rest.token_ids)
        images += rest.images
    await engine.release(str(name))
    return Sample(
        token_ids=token_ids, mask=mask, images=images, behaviour_logprobs=logprobs,
        advantage=0.0, weight=0.0, replayed=False,
    )  # fmt: skip


def compare(settings: ModelConfig, arguments: argparse.Namespace, size: tuple[int, int]) -> dict[str, Any]:
    """Play with the engine, then compute the same log-probabilities as the learner does."""
    renderer, model = load_renderer(settings), load_model(settings, seed=0)
    sharpen(model, arguments.tiny)
    config = Config(
        model=settings,
        env=EnvConfig(parallel=arguments.episodes),
        engine=EngineConfig(cache_gigabytes=CACHE_GIGABYTES),
        rollout=RolloutConfig(max_context_tokens=65536),
    )
    engine = InProcessEngine(model, renderer, open_passes(model, renderer.pad_id, config))
    samples = asyncio.run(play_all(engine, renderer, arguments, size))
    with torch.no_grad():
        parts = [sampled_logprobs(model, [sample], renderer, 1.0) for sample in samples]
    learner_T, entropy_T = (torch.cat(values).double().cpu() for values in zip(*parts, strict=True))
    return {"entropy": round(entropy_T.mean().item(), 3), **gap(samples, learner_T)}


async def play_all(
    engine: Engine, renderer: Renderer, arguments: argparse.Namespace, size: tuple[int, int]
) -> list[Sample]:
    turns, tokens = arguments.turns, arguments.tokens
    names = range(arguments.episodes)
    return await asyncio.gather(*(play(engine, renderer, name, turns, tokens, size) for name in names))


def gap(samples: Sequence[Sample], learner_T: Tensor) -> dict[str, Any]:
    """Differences of the log-probabilities of sampled tokens, also by picture and by place in the answer."""
    engine_T = torch.tensor([p for sample in samples for p in sample.behaviour_logprobs]).double()
    pictures, places = zip(*(where for sample in samples for where in _places(sample)), strict=True)
    gaps_T, kl_T = (learner_T - engine_T).abs(), k3(engine_T, learner_T)

    def by(groups: Sequence[int]) -> list[float]:
        groups_T = torch.tensor(groups)
        return [float(f"{kl_T[groups_T == group].mean().item():.3g}") for group in sorted(set(groups))]

    return {
        "tokens": engine_T.numel(),
        "engine_kl": kl_T.mean().item(),
        "gap_mean": gaps_T.mean().item(),
        "gap_99": gaps_T.quantile(0.99).item(),
        "gap_max": gaps_T.max().item(),
        "kl_by_picture": by(pictures),
        "kl_by_part_of_answer": by(places),
    }


def _places(sample: Sample) -> list[tuple[int, int]]:
    """For each sampled token: the number of its answer, and the part of the answer that it lies in."""
    lengths: list[int] = []
    for before, now in zip((False, *sample.mask), sample.mask, strict=False):
        if now:
            lengths = [*lengths[:-1], lengths[-1] + 1] if before else [*lengths, 1]
    return [
        (answer, ANSWER_PARTS * place // length)
        for answer, length in enumerate(lengths)
        for place in range(length)
    ]


async def compare_server(
    settings: ModelConfig, arguments: argparse.Namespace, size: tuple[int, int]
) -> dict[str, Any]:
    """Play with a vLLM server after some updates of a learner, which computes the same log-probabilities."""
    config = Config(
        model=settings,
        env=EnvConfig(parallel=arguments.episodes),
        engine=EngineConfig(name="vllm", replicas=1, python=arguments.vllm, cache_gigabytes=CACHE_GIGABYTES),
        rollout=RolloutConfig(max_context_tokens=65536),
        loss=LossConfig(kl=0.0),
        optim=OptimConfig(
            lr=LEARNING_RATES[settings.train], moments=settings.dtype, tokens_per_microbatch=16384
        ),
    )
    renderer, servers = load_renderer(settings), open_servers(config, learning=False)
    assert servers is not None
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        async with servers.running(None, lambda text: print(text, file=sys.stderr)) as started:
            model = load_model(settings, seed=0)
            set_trainable(model, settings, 0)
            learner = LocalLearner(model, renderer, config)
            publisher = Publisher(learner, renderer, Path(root))
            engine = VllmEngine(config, renderer, servers.key, learning=True)
            engine.report = lambda text: print(text, file=sys.stderr, flush=True)
            engine.max_probe_gap = PROBE_GAP
            engine.use_servers([server.address for server in started], servers.key)
            await engine.start()
            samples: list[Sample] = []

            def score() -> dict[str, Any]:
                logprobs = learner.logprobs(samples, base=False, temperature=1.0)
                return gap(samples, torch.tensor([p for one in logprobs for p in one]).double())

            for updates in UPDATES[settings.train]:
                while learner.weights().version < updates:
                    batch = [
                        replace(
                            sample, advantage=1.0 if number % 2 else -1.0, weight=1 / sample.sampled_tokens
                        )
                        for number, sample in enumerate(samples[:TRAINED])
                    ]
                    learner.train(Batch(updates=(tuple(batch),)))
                await engine.load(publisher.publish())
                samples = await play_all(engine, renderer, arguments, size)
                found[f"after {updates}"] = score()
                print(json.dumps(found), file=sys.stderr)
            await engine.close()
            if not arguments.tiny:
                float32_head.install(model)
                found["learner with float32 head"] = score()
    return found


def measure_vllm(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both engines, with the same weights, which are stored in `folder`."""
    size = (224, 168) if arguments.tiny else SIZE
    settings = model_settings(arguments, folder)
    plain = compare(settings, arguments, size)
    model = load_model(settings, seed=0)
    sharpen(model, arguments.tiny)
    stored = folder / "stored"
    shutil.copytree(settings.path, stored, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    save_file(weights, stored / "model.safetensors", metadata={"format": "pt"})
    del model, weights
    release_gpu_memory()
    settings = replace(settings, path=str(stored), weights="load")
    served = {}
    for train in UPDATES:
        served[train] = asyncio.run(compare_server(replace(settings, train=train), arguments, size))
        release_gpu_memory()
    ratio = served["all"]["after 0"]["engine_kl"] / max(plain["engine_kl"], 1e-12)
    return {
        "benchmark": "engine_gap",
        **vars(arguments),
        "in_process": plain,
        "vllm": served,
        "ratio": round(ratio, 2),
    }


def sharpen(model: Any, tiny: bool) -> None:
    if not tiny:  # its head is tied to the embeddings
        torch.manual_seed(0)
        model.lm_head.weight.data.normal_(std=SHARPNESS / model.lm_head.weight.shape[1] ** 0.5)


def model_settings(arguments: argparse.Namespace, folder: Path) -> ModelConfig:
    return ModelConfig(
        path=str(resolve_model("base") if arguments.tiny else seven_b(folder)),
        weights="random",
        dtype="float32" if arguments.tiny else "bfloat16",
        min_pixels=IMAGE_SETTINGS.min_pixels,
        max_pixels=IMAGE_SETTINGS.max_pixels,
        lora_rank=16,
    )


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    settings = model_settings(arguments, folder)
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
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter with vLLM: compare a server too")
    arguments = parser.parse_args()
    if not arguments.tiny and not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU with 80 GiB; --tiny runs on a CPU")
    with tempfile.TemporaryDirectory() as folder:
        run = measure_vllm if arguments.vllm else measure
        print(json.dumps(run(arguments, Path(folder))))


if __name__ == "__main__":
    main()
