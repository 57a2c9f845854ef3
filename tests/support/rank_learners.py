"""Recipes, batches and learners for tests of a learner on several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from arpo.config import (
    Config,
    LossConfig,
    ModelConfig,
    OptimConfig,
    ReplayConfig,
    RunConfig,
    StoreConfig,
)
from arpo.learner.base import Batch, Learner
from arpo.learner.local import LocalLearner
from arpo.learner.sharded import ShardedLearner
from arpo.models.loading import load_model
from arpo.models.trainable import base_model_of, set_trainable
from arpo.prompts.rendering import Renderer
from arpo.types import Message, Sample
from tiny_vlm import screenshot

Update = tuple[Sample, ...]


def sample(rng: Random, renderer: Renderer, tokens: int = 0) -> Sample:
    """One or two images of several sizes, then the sampled tokens."""
    shots = [screenshot(rng.randrange(999), 56 + 28 * rng.randrange(3)) for _ in range(rng.randint(1, 2))]
    rendered = renderer.render(
        [Message(role="user", text="open the file", screenshot=shot) for shot in shots]
    )
    sampled = [rng.randrange(4, 30) for _ in range(tokens or rng.randint(2, 30))]
    return Sample(
        token_ids=(*rendered.token_ids, *sampled),
        mask=b"\0" * len(rendered.token_ids) + b"\1" * len(sampled),
        images=rendered.images,
        behaviour_logprobs=tuple(-rng.uniform(4, 7) for _ in sampled),
        advantage=rng.uniform(-2, 2),
        weight=0.02,
        replayed=rng.random() < 0.3,
        kl_weight=0.03,
    )


def batches(renderer: Renderer) -> list[Batch]:
    """Two batches with several updates; in the last update of the second, most ranks have no samples."""
    rng = Random(1)

    def update(count: int) -> Update:
        return tuple(sample(rng, renderer) for _ in range(count))

    scaled = Batch(updates=(update(5), (), update(3)), lr_scales=(0.9, 0.7, 0.5))
    return [scaled, Batch(updates=(update(4), update(1)))]


def config(folder: Path, *, ranks: int = 2, kl: float = 0.0, teacher: float = 0.0, **model: Any) -> Config:
    dtype = model.get("dtype", "float32")
    return Config(
        run=RunConfig(threads=1),
        model=ModelConfig(path=str(folder), device="cpu", lora_rank=4, **model),
        loss=LossConfig(kl=kl, teacher=teacher),
        replay=ReplayConfig(ratio="truncated", seeds="taught" if teacher else ""),
        optim=OptimConfig(
            lr=1e-3,
            warmup_updates=3,
            moments=dtype,
            tokens_per_microbatch=150,
            ranks=ranks,
        ),
        store=StoreConfig(token_stats=True),
    )


def renderer_of(config: Config) -> Renderer:
    return Renderer.from_folder(Path(config.model.path), config.model.min_pixels, config.model.max_pixels)


def alone(config: Config) -> LocalLearner:
    model = load_model(config.model, config.run.seed)
    set_trainable(model, config.model, config.run.seed)
    base = base_model_of(model) if config.compares_with_base else None
    return LocalLearner(model, renderer_of(config), config, base)


@contextmanager
def on_ranks(config: Config) -> Iterator[ShardedLearner]:
    model = load_model(config.model, config.run.seed)
    set_trainable(model, config.model, config.run.seed)
    with closing(ShardedLearner(model, renderer_of(config), config)) as learner:
        yield learner


def train(learner: Learner, *batches: Batch) -> list[Mapping[str, float]]:
    return [learner.train(batch) for batch in batches]


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in learner.weights().handle.named_parameters()}


def tensors(folder: Path) -> dict[str, bytes]:
    """Everything in the files, by name, as bytes: weights, moments and steps."""
    found: dict[str, bytes] = {}
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            assert name not in found
            found[name] = tensor.numpy().tobytes()
    return found


def all_close(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    return all(torch.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5) for name in theirs)
