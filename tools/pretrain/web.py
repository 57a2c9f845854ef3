"""Trains Desk's base model further on web pages, for tasks in a browser.

    python -m tools.pretrain.web_pages --out pages.zip
    python -m tools.pretrain.web --data pages.zip --out web-model --minutes 3

The learning rate falls to almost 0 within the time limit. All screens are on the GPU.
Output: a model folder, for `--model.path`.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, interpolate

from arpo.config.recipe import load_config
from arpo.envs.browser.miniwob import HEIGHT, WIDTH
from arpo.models.forward import hidden_states
from arpo.models.loading import load_model
from arpo.prompts import vision
from tools.pretrain.tiny import IMAGE_SETTINGS, save_model_folder
from tools.pretrain.tokenizer import desk_tokenizer
from tools.pretrain.web_lessons import (
    CHARACTER_CELLS,
    CHARACTERS,
    GRID,
    MODEL_HEIGHT,
    MODEL_WIDTH,
    TARGET_CELLS,
    TOKENS,
    Batch,
    Lessons,
    load,
    palette,
)

LOSSES = {"answers": 1.0, "characters": 1.0, "shown": 0.5, "places": 1.0, "targets": 2.0}  # weights
_TARGET_WEIGHT = 8.0  # of a marked cell: few cells are marked
_HELD_OUT = 50  # every n-th page measures
_MEASURED_BATCHES = 4
_WARMUP, _MIN_RATE = 100, 0.02
_REPORT_SECONDS = 10
_QUEUED_BATCHES = 3  # per worker


class Head(torch.nn.Module):
    """Trains the model to read and to find, as `training.ReadingHead` does; it is not part of the model."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.places = torch.nn.Linear(hidden, TOKENS)
        self.characters = torch.nn.Linear(hidden, math.prod(CHARACTER_CELLS) * len(CHARACTERS))
        self.scale = torch.nn.RMSNorm(hidden)
        self.targets = torch.nn.Linear(hidden, math.prod(TARGET_CELLS))


class WebTraining:
    def __init__(self, pixels_NHW: NDArray[np.uint8], base: str, device: str) -> None:
        settings = load_config("desk", {"model.path": base, "model.device": device})
        self.model: Any = load_model(settings.model, 0).train()
        self.device = self.model.device
        self.on_gpu = self.device.type == "cuda"
        torch.manual_seed(0)
        self.head = Head(self.model.config.text_config.hidden_size).to(self.device)
        self.screens_NHW = torch.from_numpy(pixels_NHW).to(self.device)
        self.palette = torch.from_numpy(palette()).to(self.device)
        self.weights = [*self.model.parameters(), *self.head.parameters()]
        self.optimiser = torch.optim.AdamW(
            self.weights, weight_decay=0.01, betas=(0.9, 0.98), fused=self.on_gpu
        )

    def update(self, batch: Batch, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        losses, _ = self.losses(batch)
        (losses * losses.new_tensor(list(LOSSES.values()))).sum().backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The losses by `LOSSES`, and the share of the answers' tokens that the model predicts."""
        at = {name: torch.from_numpy(getattr(batch, name)).to(self.device).long() for name in Batch.__slots__}
        model, head = self.model, self.head
        layers, half = model.model.language_model.layers, []
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.on_gpu):
            patches = vision.patchify_pixels(self.pixels(at["screens_N"], at["moves_N2"]), IMAGE_SETTINGS)
            grids = torch.tensor([GRID] * len(patches))
            features = model.model.visual(patches.flatten(0, 1), grid_thw=grids).pooler_output
            words = model.model.language_model.embed_tokens(at["tokens_BT"])
            embeds = words.flatten(0, 1).index_copy(0, at["slots_I"], features.to(words.dtype))
            hook = layers[len(layers) // 2 - 1].register_forward_hook(lambda *call: half.append(call[-1]))
            hidden = hidden_states(model, embeds.view_as(words), at["positions_3BT"]).flatten(0, 1)
            hook.remove()
            logits = model.lm_head(hidden.index_select(0, at["answers_A"] - 1)).float()
            wanted = at["tokens_BT"].flatten()[at["answers_A"]]
            tokens, cells, characters = at["characters_C3"].unbind(-1)
            readable, row = tokens.unique(return_inverse=True)
            read = head.characters(features[readable]).view(-1, len(CHARACTERS))
            read = read[row * math.prod(CHARACTER_CELLS) + cells].float()
            tokens, shown = at["shown_S2"].unbind(-1)
            readable, row = tokens.unique(return_inverse=True)
            similar = model.lm_head(head.scale(features[readable])).float().log_softmax(-1)
            places = head.places(features).float()
            marked = head.targets(half[0].flatten(0, 1).index_select(0, at["slots_I"])).float()
        losses = (
            cross_entropy(logits, wanted),
            cross_entropy(read, characters),
            -similar[row, shown].mean(),
            cross_entropy(places, torch.arange(len(features), device=self.device) % TOKENS),
            binary_cross_entropy_with_logits(
                marked, at["targets_IC"].float(), pos_weight=marked.new_tensor(_TARGET_WEIGHT)
            ),
        )
        return torch.stack(losses), (logits.argmax(-1) == wanted).float().mean()

    def pixels(self, screens_N: Tensor, moves_N2: Tensor) -> Tensor:
        """The moved screens, resized as the policy's screenshots are: [N, H, W, 3]."""
        columns = (torch.arange(WIDTH, device=self.device) - moves_N2[:, :1]).clamp(0, WIDTH - 1)
        rows = (torch.arange(HEIGHT, device=self.device) - moves_N2[:, 1:]).clamp(0, HEIGHT - 1)
        indices = self.screens_NHW[screens_N[:, None, None], rows[:, :, None], columns[:, None, :]]
        pixels = self.palette[indices.int()].permute(0, 3, 1, 2).float()
        resized = interpolate(pixels, (MODEL_HEIGHT, MODEL_WIDTH), mode="bicubic", antialias=True)
        return resized.round().clamp(0, 255).permute(0, 2, 3, 1)

    def measure(self, batches: Sequence[Batch]) -> str:
        with torch.no_grad():
            results = [self.losses(batch) for batch in batches]
        losses = torch.stack([losses for losses, _ in results]).mean(0).tolist()
        right = torch.stack([right for _, right in results]).mean()
        shown = ", ".join(f"{name} {loss:.3f}" for name, loss in zip(LOSSES, losses, strict=True))
        return f"new pages: {shown}; {100 * right:.1f}% of the answers' tokens right"


def _work(queue: Any, lessons: Lessons, seed: int, tokens: int) -> None:
    rng = random.Random(f"web-lessons-{seed}")
    while True:
        for batch in lessons.batches(rng, tokens):
            queue.put(batch)


def train(
    files: Sequence[Path],
    out: Path,
    *,
    base: str,
    minutes: float,
    lr: float,
    tokens: int,
    device: str,
    workers: int,
) -> None:
    """`minutes` counts from the start of this function."""
    start = time.monotonic()
    pixels, pages = load(files)
    print(f"{len(pixels)} screens, {len(pages)} pages: {time.monotonic() - start:.0f} s", flush=True)
    learned = Lessons([page for i, page in enumerate(pages) if i % _HELD_OUT])
    fork = multiprocessing.get_context("fork")  # before CUDA starts; the workers share the pages
    workers = workers or max(1, (os.cpu_count() or 2) - 1)
    queue = fork.Queue(_QUEUED_BATCHES * workers)
    processes = [
        fork.Process(target=_work, args=(queue, learned, seed, tokens), daemon=True)
        for seed in range(workers)
    ]
    for process in processes:
        process.start()
    measured = Lessons(pages[::_HELD_OUT]).batches(random.Random(0), tokens)[:_MEASURED_BATCHES]
    training = WebTraining(pixels, base, device)
    if training.on_gpu:
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.enable_cudnn_sdp(False)  # almost every batch has a new shape
    begun, step, reported = time.monotonic(), 0, 0.0
    limit = minutes * 60 - (begun - start)
    print(training.measure(measured), flush=True)
    while (seconds := time.monotonic() - begun) < limit:
        share = max(_MIN_RATE, 0.5 + 0.5 * math.cos(math.pi * seconds / limit))
        training.update(queue.get(), lr * share * min(1.0, (step + 1) / _WARMUP))
        step += 1
        if seconds > reported + _REPORT_SECONDS:
            print(f"{seconds:.0f} s, step {step}: {training.measure(measured)}", flush=True)
            reported = time.monotonic() - begun
    for process in processes:
        process.terminate()
    print(training.measure(measured), flush=True)
    save_model_folder(training.model, desk_tokenizer(), out)
    print(f"{out}: {step} steps, {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, nargs="+", required=True, metavar="FILE", help="web pages")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="output model folder")
    parser.add_argument("--base", default="base", metavar="FOLDER", help="model to begin with")
    parser.add_argument("--minutes", type=float, default=3.0, help="time limit (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3, help="highest learning rate (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=32768, help="tokens per update (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="device of the model")
    parser.add_argument(
        "--workers", type=int, default=0, help="processes that make lessons; 0: number of cores - 1"
    )
    options = vars(parser.parse_args())
    train(options.pop("data"), options.pop("out"), **options)


if __name__ == "__main__":
    main()
