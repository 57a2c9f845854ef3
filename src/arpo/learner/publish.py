"""Publishes the weights of a learner for engines in other processes (`storage/published_weights`).

    with open_publisher(config, learner, renderer, run_folder) as publisher:
        await engine.load(publisher.publish())  # after each batch

A version has a checksum of each tensor: an engine shows with them that it has the values of these weights, at
any later time, without the learner. A checksum is a sum: it does not see the order of values within a tensor.
A version also has a probe: a fixed prompt with screenshots and an answer, and the learner's log-probabilities
of the answer's tokens. It shows that an engine computes with these weights.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from arpo.algorithms.microbatches import balance_sizes
from arpo.algorithms.samples import scored_answer
from arpo.config import ClusterConfig, EngineConfig, ModelConfig
from arpo.engines.base import Weights
from arpo.learner.base import Learner
from arpo.learner.saved_state import rank_file, save_tensors
from arpo.models.checksums import bit_sum
from arpo.models.loading import DTYPES
from arpo.models.lora import ALPHA, SCALED, has_adapters, peft_tensors, write_peft_config
from arpo.prompts.rendering import Renderer
from arpo.storage.published_weights import (
    ADAPTER_FILE,
    CHECKSUM_FILE,
    MODEL_FILE,
    Probe,
    publishing,
    weights_root,
    write_probe,
)
from arpo.types import Message, Screenshot

PROBE_TEXT = "Open the settings and save the file."
PROBE_ANSWER = "Thought: I click on the button.\nAction: click(start_box='(28,56)')"


class Publisher:
    """Publishes versions of the learner in the folder `root`. `folder` is that of the last one."""

    def __init__(self, learner: Learner, renderer: Renderer, root: Path) -> None:
        self._learner = learner
        self._root = root
        self.folder: Path | None = None
        self._question, self._images, self._answer = _conversation(renderer)

    def publish(self) -> Weights:
        """Write the current version. Returns the handle on its folder. Raises OSError if the disk is full."""
        version = self._learner.weights().version
        with publishing(self._root, version) as folder:
            self._learner.publish(folder)
            write_probe(folder, self._probe())
        self.folder = folder
        return Weights(version=version, handle=folder)

    def _probe(self) -> Probe:
        unscored = (0.0,) * len(self._answer)
        sample = scored_answer(self._question, self._images, self._answer, unscored)
        [logprobs] = self._learner.logprobs([sample], base=False, temperature=1.0)
        return Probe(token_ids=self._question, images=self._images, answer=self._answer, logprobs=logprobs)


def _conversation(renderer: Renderer) -> tuple[tuple[int, ...], tuple[Screenshot, ...], tuple[int, ...]]:
    """Prompt tokens with two screenshots, the screenshots, and the tokens of an answer."""
    messages = [
        Message(role="user", text=PROBE_TEXT, screenshot=_drawing(112, 84, "navy")),
        Message(role="user", screenshot=_drawing(84, 112, "orange")),
    ]
    rendered = renderer.render(messages)
    return rendered.token_ids, rendered.images, (*renderer.encode(PROBE_ANSWER), renderer.end_of_turn_id)


def _drawing(width: int, height: int, colour: str) -> Screenshot:
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((8, 8, width - 20, height // 2), fill=colour)
    draw.line((0, 0, width, height), fill="green", width=3)
    file = io.BytesIO()
    image.save(file, "PNG")
    return Screenshot.of(file.getvalue())


def write_weights(model: nn.Module, settings: ModelConfig, folder: Path) -> None:
    """Write the full model, or its adapters, from one process."""
    if has_adapters(model):
        tensors = {name: tensor.contiguous() for name, tensor in peft_tensors(model).items()}
        save_tensors(tensors, folder / ADAPTER_FILE)
        write_peft_config(folder, settings, tensors)
    else:
        tensors = {name: p.detach().contiguous() for name, p in model.named_parameters()}
        save_tensors(tensors, folder / MODEL_FILE)
    _write_checksums(tensors, settings, folder / CHECKSUM_FILE)


def _write_checksums(tensors: Mapping[str, Tensor], settings: ModelConfig, path: Path) -> None:
    """Checksums of the tensors as vLLM holds them: in model.dtype, and matrix B of an adapter scaled."""
    dtype, scale = DTYPES[settings.dtype], ALPHA / settings.lora_rank
    sums = {}
    for name, tensor in tensors.items():
        held = tensor.to(dtype)
        sums[name] = bit_sum(held * scale if name.endswith(SCALED) else held)
    path.write_text(json.dumps(sums) + "\n", encoding="utf-8")


@torch.no_grad()
def write_shards(
    model: nn.Module, settings: ModelConfig, folder: Path, rank: int, writers: Sequence[int]
) -> None:
    """Write the weights of a sharded model together with all other ranks; returns when all are done.

    Each of the ranks `writers` writes a part of the full tensors, so that no rank gathers the model if there
    are several. Rank 0 writes adapters.
    """
    adapters = peft_tensors(model)
    tensors = adapters or {name: p.detach() for name, p in model.named_parameters()}
    names, writers = list(tensors), [0] if adapters else writers
    shares = balance_sizes([tensor.numel() for tensor in tensors.values()], len(writers))
    mine = {names[index] for index in dict(zip(writers, shares, strict=True)).get(rank, [])}
    written = {}
    for name, tensor in tensors.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if name in mine:
            written[name] = full.cpu().contiguous()
    if not adapters and rank in writers:
        save_tensors(written, folder / rank_file(MODEL_FILE, rank))
        _write_checksums(written, settings, folder / rank_file(CHECKSUM_FILE, rank))
    elif adapters and rank == 0:
        save_tensors(written, folder / ADAPTER_FILE)
        write_peft_config(folder, settings, adapters)
        _write_checksums(written, settings, folder / CHECKSUM_FILE)
    dist.barrier()


def published_bytes(model: nn.Module) -> int:
    """Size of a published version of this model."""
    return sum(tensor.nbytes for tensor in (peft_tensors(model) or dict(model.named_parameters())).values())


@contextmanager
def open_publisher(
    cluster: ClusterConfig, engine: EngineConfig, learner: Learner, renderer: Renderer, run: Path
) -> Iterator[Publisher]:
    """A publisher with the root folder of the run (`weights_root`), which is removed at the end.

    Servers on a cluster cannot read the shared memory of this node: they read the run folder, by default.
    """
    size = published_bytes(learner.weights().handle)
    chosen = engine.weights or (str(run.resolve()) if cluster.ray else "")
    with weights_root(chosen, run, size) as root:
        yield Publisher(learner, renderer, root)
