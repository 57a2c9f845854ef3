"""What a recipe will need of a GPU's memory, told before anything is loaded.

Weights, gradients and moments are counted exactly, from the model's configuration alone. Activations are
those of the longest sequence that the recipe allows, with what `recompute` keeps; real ones are shorter.
Of several ranks each has a GPU: what they share among them is divided, and rank 0 needs most, since it also
samples, with a whole model of its own. Nothing is allocated here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForImageTextToText

from arpo import vision
from arpo.config import Config
from arpo.models.families import head_width
from arpo.models.loading import read_config, resolve_model
from arpo.models.lora import ADAPTED
from arpo.vision import ImageSettings

BYTES = {"float32": 4, "bfloat16": 2}
GIB = 2**30
RESERVE = 4 * GIB  # the libraries' own, and what the allocator cannot use
LOGIT_ROWS = 1024  # logits are made for so many tokens at a time, in float32, a few copies of each
LOGIT_COPIES = 4
RANKS = (1, 2, 4, 8)  # as many GPUs as one machine has


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers of a model that decide its memory."""

    vision: int  # parameters
    language: int
    layer: int  # of one layer of the language model
    adapters: int  # of LoRA at the recipe's rank
    layers: int
    hidden: int
    heads: int  # width of all query heads together
    keys: int  # width of all key heads together
    intermediate: int
    vocabulary: int
    vision_layers: int
    vision_hidden: int
    vision_intermediate: int

    @property
    def outside(self) -> int:
        """Parameters of the language model outside of its layers: embeddings, head and a norm."""
        return self.language - self.layers * self.layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a recipe puts on a GPU: a model, and the tokens and patches of its longest trajectory."""

    shape: Shape
    sequence: int
    patches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bytes of rank 0 by what needs them; with one rank there is nothing gathered and no whole copy."""

    weights: int
    base_model: int
    gradients: int
    moments: int
    gathered: int  # what is whole for a while, of what is divided
    activations: int
    whole_copy: int  # that samples
    rollouts: int
    reserve: int

    @property
    def parts(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def other_ranks(self) -> int:
        """What each rank but 0 needs: those do not sample."""
        return self.total - self.whole_copy - self.rollouts


def read_shape(folder: Path, lora_rank: int) -> Shape:
    """From config.json: the model is laid out without memory, and measured."""
    config = read_config(folder)
    with torch.device("meta"):
        return shape_of(AutoModelForImageTextToText.from_config(config), lora_rank)


def shape_of(model: Any, lora_rank: int) -> Shape:
    text, tower = model.config.text_config, model.config.vision_config
    in_vision = sum(p.numel() for p in model.model.visual.parameters())
    head = head_width(text)
    adapted = [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ADAPTED.search(f".{name}.")
    ]
    return Shape(
        vision=in_vision,
        language=sum(p.numel() for p in model.parameters()) - in_vision,
        layer=sum(p.numel() for p in model.model.language_model.layers[0].parameters()),
        adapters=sum(lora_rank * (layer.in_features + layer.out_features) for layer in adapted),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        heads=head * text.num_attention_heads,
        keys=head * text.num_key_value_heads,
        intermediate=text.intermediate_size,
        vocabulary=text.vocab_size,
        vision_layers=tower.depth,
        vision_hidden=tower.hidden_size,
        vision_intermediate=tower.intermediate_size,
    )


def read_work(config: Config) -> Work:
    folder = resolve_model(config.model.path)
    shape = read_shape(folder, config.model.lora_rank)
    settings = ImageSettings.from_folder(folder, config.model.min_pixels, config.model.max_pixels)
    grid = vision.grid(config.env.width, config.env.height, settings)
    patches = math.prod(grid) * config.rollout.max_images
    sequence = min(
        config.rollout.max_context_tokens,
        vision.image_tokens(grid, settings) * config.rollout.max_images
        + config.rollout.max_answer_tokens * config.rollout.max_steps,
    )
    return Work(shape=shape, sequence=sequence, patches=patches)


def memory(work: Work, config: Config) -> Plan:
    """The plan for one trajectory at a time. A frozen tower is not divided among ranks: each has a copy."""
    shape, width, ranks = work.shape, BYTES[config.model.dtype], config.optim.ranks
    train, lora = config.model.train, config.model.train == "lora"
    everything = shape.vision + shape.language
    trained = {"all": everything, "language": shape.language, "lora": shape.adapters}[train]
    tower = 0 if train == "all" else shape.vision
    adapters = 4 * shape.adapters if lora else 0
    # A base model, for KL, shares a frozen tower in one process; on a rank it has its own, and keeps
    # embeddings and head gathered, since no backward pass divides them again.
    base = _share(width * trained, ranks) + (width * (tower + shape.outside) if ranks > 1 else 0)
    return Plan(
        weights=width * tower + _share(width * (everything - tower) + adapters, ranks),
        base_model=base if config.compares_with_base and not lora else 0,
        gradients=_share(trained * (4 if lora else width), ranks),
        moments=_share(2 * trained * (4 if lora else BYTES[config.optim.moments]), ranks),
        gathered=_gathered(shape, width, lora) if ranks > 1 else 0,
        activations=_activations(
            shape,
            width,
            max(work.sequence, config.optim.tokens_per_microbatch),
            work.patches if train == "all" else 0,
        ),
        whole_copy=width * everything + adapters if ranks > 1 else 0,
        rollouts=config.env.parallel * work.sequence * 2 * shape.keys * shape.layers * width,
        reserve=RESERVE,
    )


def _share(size: int, ranks: int) -> int:
    return -(-size // ranks)


def _gathered(shape: Shape, width: int, lora: bool) -> int:
    """Embeddings and head all through a pass, and of the layers the one that is run and the next.

    Gradients are whole until they are added up over the ranks, which is done in float32.
    """
    weights = width * (shape.outside + 2 * shape.layer)
    return weights if lora else weights + width * (shape.outside + shape.layer) + 4 * shape.layer


def _activations(shape: Shape, width: int, tokens: int, patches: int) -> int:
    """What is kept for the backward pass, and the block that is being made again."""
    kept = width * tokens * shape.layers * (shape.hidden + shape.heads)
    kept += width * patches * shape.vision_layers * shape.vision_hidden
    layer = layer_values(shape, tokens)
    block = patches * (8 * shape.vision_hidden + 3 * shape.vision_intermediate)
    logits = 4 * LOGIT_COPIES * LOGIT_ROWS * shape.vocabulary
    return kept + 2 * width * max(layer, block) + logits


def layer_values(shape: Shape, tokens: int) -> int:
    """How many values a layer of the language model keeps when nothing in it is made again."""
    return tokens * (4 * shape.hidden + 2 * shape.heads + 2 * shape.keys + 3 * shape.intermediate)


def spare_layers(model: Any, tokens: int, patches: int) -> int:
    """How many layers of the language model can keep everything in what the GPU has left for a backward pass.

    None where weights are divided among several GPUs: they are gathered when needed, so memory is not known.
    """
    parameters = list(model.parameters())
    if any(isinstance(parameter, DTensor) for parameter in parameters):
        return 0
    shape, width = shape_of(model, lora_rank=1), parameters[0].element_size()
    tower = any(parameter.requires_grad for parameter in model.model.visual.parameters())
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    coming = sum(p.nbytes for p in parameters if p.requires_grad and p.grad is None)
    spare = free - RESERVE - coming - _activations(shape, width, tokens, patches if tower else 0)
    return max(0, min(shape.layers, int(spare // (width * layer_values(shape, tokens)))))


def advice(work: Work, config: Config, room: int) -> str:
    """What to change when the plan does not fit into `room` bytes; nothing when it does."""
    plan = memory(work, config)
    if plan.total <= room:
        return ""
    remedies = []
    if config.model.dtype == "float32" and config.model.path != "base":
        remedies.append("--model.dtype bfloat16")
    if config.model.train != "lora":
        if config.optim.moments == "float32":
            remedies.append("--optim.moments bfloat16")
        remedies.append("--model.train lora")
    if (ranks := _better_ranks(work, config, room)) != config.optim.ranks:
        remedies.append(f"--optim.ranks {ranks} (each with a GPU)" if ranks > 1 else "--optim.ranks 1")
    if plan.rollouts > room // 4:
        remedies.append(
            f"--env.parallel {max(1, config.env.parallel // 4)} (each keeps its own attention cache)"
        )
    if plan.activations > room // 4:
        remedies.append("fewer screenshots (--rollout.max_images) or smaller ones (--model.max_pixels)")
    return "; ".join(remedies) or "a larger GPU"


def _better_ranks(work: Work, config: Config, room: int) -> int:
    """The fewest ranks that fit, else those that need least; as many as there are, if others need no less."""
    totals = {
        ranks: memory(work, replace(config, optim=replace(config.optim, ranks=ranks))).total
        for ranks in (config.optim.ranks, *RANKS)
    }
    fitting = [ranks for ranks in RANKS if totals[ranks] <= room]
    return min(fitting) if fitting else min(totals, key=lambda ranks: totals[ranks])


def describe(work: Work, config: Config, room: int | None) -> list[str]:
    """Lines for a person: each part in GiB, the sums, whether it fits, and what to change if not."""
    plan, ranks = memory(work, config), config.optim.ranks
    lines = [
        f"{name.replace('_', ' '):>12} {size / GIB:8.1f} GiB" for name, size in plan.parts.items() if size
    ]
    lines.append(f"{'in all':>12} {plan.total / GIB:8.1f} GiB, for sequences of {work.sequence:,} tokens")
    if ranks > 1:
        lines.append(
            f"this is rank 0 of {ranks}, which also samples; every other one needs "
            f"{plan.other_ranks / GIB:.1f} GiB of a GPU of its own"
        )
    if room is None:
        return [*lines, "no GPU here: this is what one would need"]
    if not (remedy := advice(work, config, room)):
        return [*lines, f"fits into the {room / GIB:.0f} GiB of this GPU"]
    return [*lines, f"does not fit into the {room / GIB:.0f} GiB of this GPU: try {remedy}"]
