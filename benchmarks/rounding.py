"""Effect of small updates: in bfloat16 with stochastic rounding, and in float32.

The learner makes a few random answers more likely, on a tiny model with fresh weights. Their mean
log-probability is computed from the final weights, in float32. One JSON line: the gain of each variant in
nats per token, and its ratio to the gain of float32:

    PYTHONPATH=. python benchmarks/rounding.py --lr 1e-6 --updates 200
"""

from __future__ import annotations

import argparse
import copy
import io
import json
from random import Random
from typing import Any

import torch
from PIL import Image

from arpo.config import Config, OptimConfig
from arpo.learner.base import Batch
from arpo.learner.local import LocalLearner
from arpo.models.forward import sampled_logprobs
from arpo.models.loading import DTYPES, prepare
from arpo.prompts.rendering import Renderer
from arpo.types import Message, Sample, Screenshot
from tools.pretrain.tiny import IMAGE_SETTINGS, new_tiny_model, tiny_config
from tools.pretrain.tokenizer import ACTION_PHRASES, build_tokenizer, special_ids

TOKENIZER = build_tokenizer(ACTION_PHRASES, ["save", "the", "file"], 300)
VARIANTS: dict[str, dict[str, Any]] = {  # dtype of the weights, and optimiser settings
    "float32": {"dtype": "float32"},
    "by chance": {"dtype": "bfloat16", "moments": "float32"},
    "by chance, moments too": {"dtype": "bfloat16", "moments": "bfloat16"},
}


def samples(renderer: Renderer, count: int) -> tuple[Sample, ...]:
    """A plain screen and a random answer each."""
    rng = Random(0)
    made = []
    for _ in range(count):
        png = io.BytesIO()
        Image.new("RGB", (112, 84), tuple(rng.randrange(256) for _ in range(3))).save(png, "PNG")
        look = Message(role="user", text="save the file", screenshot=Screenshot.of(png.getvalue()))
        rendered = renderer.render([look])
        answer = [rng.randrange(20, 250) for _ in range(16)]
        made.append(
            Sample(
                token_ids=(*rendered.token_ids, *answer),
                mask=(*[False] * len(rendered.token_ids), *[True] * len(answer)),
                images=rendered.images,
                behaviour_logprobs=(-5.0,) * len(answer),
                advantage=1.0,
                weight=1 / (count * len(answer)),
                replayed=False,
            )
        )
    return tuple(made)


@torch.no_grad()
def likelihood(model: Any, renderer: Renderer, batch: tuple[Sample, ...]) -> float:
    exact = copy.deepcopy(model).float()
    return sampled_logprobs(exact, batch, renderer, 1.0)[0].mean().item()


def measure(variant: dict[str, Any], renderer: Renderer, arguments: argparse.Namespace) -> float:
    """Gain of the mean log-probability of the answers."""
    optim = {key: value for key, value in variant.items() if key != "dtype"}
    config = Config(
        optim=OptimConfig(lr=arguments.lr, beta2=0.999, warmup_updates=0, grad_norm=1e9, **optim),
    )
    batch = samples(renderer, arguments.samples)
    model = new_tiny_model(tiny_config(renderer.vocab_size, special_ids(TOKENIZER)), seed=0)
    with torch.no_grad():
        for parameter in model.parameters():  # all variants start with the same values
            parameter.data = parameter.data.bfloat16().to(DTYPES[variant["dtype"]])
    learner = LocalLearner(prepare(model), renderer, config)
    before = likelihood(model, renderer, batch)
    for _ in range(arguments.updates):
        learner.train(Batch(updates=(batch,)))
    return likelihood(model, renderer, batch) - before


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--samples", type=int, default=4)
    arguments = parser.parse_args()
    renderer = Renderer(TOKENIZER, IMAGE_SETTINGS)
    gained = {name: measure(variant, renderer, arguments) for name, variant in VARIANTS.items()}
    report = {
        "benchmark": "rounding",
        **vars(arguments),
        "gained": {name: round(gain, 5) for name, gain in gained.items()},
        "ratio": {name: round(gain / gained["float32"], 3) for name, gain in gained.items()},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
