"""What a recipe will need of a GPU's memory, told before anything is loaded.

Weights, gradients and moments are counted exactly, from the model's configuration alone. Activations are
those of the longest sequence that the recipe allows, with what `recompute` keeps; real ones are shorter.
Of several ranks each has a GPU: what they share among them is divided, and rank 0 needs most, since it also
samples, with a whole model of its own. Where a recipe does not fit, settings are looked for with which it
does. Nothing is allocated here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForImageTextToText

from arpo.config import Config
from arpo.models.families import IMAGE_BOUNDS, family_of, head_width
from arpo.models.kv_cache import places
from arpo.models.loading import read_config, resolve_model
from arpo.models.lora import ADAPTED
from arpo.models.recompute import Keeping
from arpo.prompts import vision
from arpo.prompts.vision import ImageSettings
from arpo.recipe import value

BYTES = {"float32": 4, "bfloat16": 2}
GIB = 2**30
RESERVE = 4 * GIB  # the libraries' own, and what the allocator cannot use
FRAGMENTS = 10  # of what is free, one part in so many is left to gaps between what is kept
MOST_LOGITS = 2**26  # that are made at once, in float32; with their copies, a gigabyte
LOGIT_COPIES = 4
PROMPT_TOKENS = 1024  # of all words that are neither answers nor screenshots
SHORT_ANSWER = 512  # tokens: a thought and an action still fit
LEGIBLE = 2**19  # pixels, below which a desktop's text cannot be read
RANKS = (1, 2, 4, 8)  # as many GPUs as one machine has
LORA_RATE = 1e-4  # adapters want a higher learning rate than weights
LEARNS_OTHERWISE = ("model.train", "model.max_pixels", "rollout.")  # beginnings of keys; others cost time

Change = dict[str, Any]  # settings by their dotted keys


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
    vision_whole: int  # layers of the vision tower that attend to all of a picture
    vision_hidden: int
    vision_intermediate: int

    @property
    def outside(self) -> int:
        """Parameters of the language model outside of its layers: embeddings, head and a norm."""
        return self.language - self.layers * self.layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a model's folder says of it: the numbers of its weights, and how it wants its images."""

    shape: Shape
    images: ImageSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The most that a recipe puts on a GPU at once."""

    sequence: int  # tokens of the longest trajectory
    tokens: int  # of a micro-batch
    patches: int  # of its screenshots


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
    visual, family = model.model.visual, family_of(model)
    in_vision = sum(p.numel() for p in visual.parameters())
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
        vision_whole=sum(family.bounds(visual, layer) == IMAGE_BOUNDS for layer in range(tower.depth)),
        vision_hidden=tower.hidden_size,
        vision_intermediate=tower.intermediate_size,
    )


def read_facts(config: Config) -> Facts:
    folder = resolve_model(config.model.path)
    return Facts(
        shape=read_shape(folder, config.model.lora_rank),
        images=ImageSettings.from_folder(folder, config.model.min_pixels, config.model.max_pixels),
    )


def work_of(facts: Facts, config: Config) -> Work:
    """A micro-batch has one trajectory that is longer than it should be, or several that are short."""
    rollout, most = config.rollout, config.optim.tokens_per_microbatch
    patches, tokens = _screen(facts, config)
    answers = rollout.max_answer_tokens * rollout.max_steps
    sequence = min(rollout.max_context_tokens, PROMPT_TOKENS + tokens * rollout.max_images + answers)
    return Work(
        sequence=sequence,
        tokens=max(sequence, most),
        patches=patches * max(rollout.max_images, most // tokens),
    )


def _screen(facts: Facts, config: Config) -> tuple[int, int]:
    """The patches of one screenshot, and its tokens."""
    settings = replace(facts.images, min_pixels=config.model.min_pixels, max_pixels=config.model.max_pixels)
    grid = vision.grid(config.env.width, config.env.height, settings)
    return math.prod(grid), vision.image_tokens(grid, settings)


def memory(facts: Facts, config: Config) -> Plan:
    """What the recipe needs at most. A frozen tower is not divided among ranks: each has a copy."""
    shape, work = facts.shape, work_of(facts, config)
    width, ranks = BYTES[config.model.dtype], config.optim.ranks
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
        moments=_share(2 * trained * BYTES[config.optim.moments], ranks),
        gathered=_gathered(shape, width, lora) if ranks > 1 else 0,
        activations=_activations(shape, width, work.tokens, work.patches if train == "all" else 0),
        whole_copy=width * everything + adapters if ranks > 1 else 0,
        rollouts=config.env.parallel * places(work.sequence) * 2 * shape.keys * shape.layers * width,
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
    kept += width * patches * (shape.vision_layers + shape.vision_whole) * shape.vision_hidden
    layer = layer_bytes(shape, width, tokens)
    block = block_bytes(shape, width, patches)
    logits = 4 * LOGIT_COPIES * min(MOST_LOGITS, tokens * shape.vocabulary)
    return kept + 2 * max(layer, block) + logits


def layer_bytes(shape: Shape, width: int, tokens: int) -> int:
    """What a layer of the language model keeps when nothing in it is made again.

    Attention in float32 has a copy of keys and values for each query head.
    """
    keys = shape.heads if width == BYTES["float32"] else shape.keys
    return width * tokens * (4 * shape.hidden + 2 * shape.heads + 2 * keys + 3 * shape.intermediate)


def product_bytes(shape: Shape, width: int, tokens: int) -> int:
    """What a layer keeps in addition where its matrix products are not made again."""
    return width * tokens * (shape.hidden + shape.heads + 2 * shape.keys + 2 * shape.intermediate)


def block_bytes(shape: Shape, width: int, patches: int) -> int:
    """What a block of the vision tower keeps when nothing in it is made again."""
    return width * patches * (8 * shape.vision_hidden + 3 * shape.vision_intermediate)


def spare(model: Any, tokens: int, patches: int) -> Keeping:
    """What a forward pass can keep in memory that is left on the GPU, until its backward pass.

    Nothing where weights are divided among several GPUs: they are gathered when needed, so it is not known.
    """
    parameters = list(model.parameters())
    if any(isinstance(parameter, DTensor) for parameter in parameters):
        return Keeping()
    tower = any(parameter.requires_grad for parameter in model.model.visual.blocks.parameters())
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    coming = sum(p.nbytes for p in parameters if p.requires_grad and p.grad is None)
    width, patches = parameters[0].element_size(), patches if tower else 0
    return most_kept(shape_of(model, lora_rank=1), width, tokens, patches, free, coming)


def most_kept(shape: Shape, width: int, tokens: int, patches: int, free: int, coming: int) -> Keeping:
    """In so many free bytes, into which gradients of `coming` bytes must go too.

    The products of all layers come first, since they save most for their size. A backward pass begins with
    the layers, when of the gradients only the head's are there; it comes to the tower with all of them.
    """
    room = free - free // FRAGMENTS - RESERVE - _activations(shape, width, tokens, patches)
    first = room - min(coming, width * shape.outside)
    product, layer = product_bytes(shape, width, tokens), layer_bytes(shape, width, tokens)
    whole = _within(shape.layers, first - shape.layers * product, layer - product)
    products = _within(shape.layers - whole, first - whole * layer, product)
    left = min(first - whole * layer - products * product, room - coming)
    blocks = _within(shape.vision_layers, left, block_bytes(shape, width, patches)) if patches else 0
    return Keeping(products=products, whole=whole, blocks=blocks)


def _within(most: int, room: int, size: int) -> int:
    return max(0, min(most, room // size))


def fitting(facts: Facts, config: Config, room: int) -> Change:
    """Few and harmless settings with which the recipe fits into `room` bytes; else those that need least.

    Changes are taken in the order of `_ladders` until it fits, also those that help only with later ones.
    Then they are taken back as far as can be, the most harmful first.
    """
    ladders = _ladders(facts, config)

    def need(changes: Iterable[Change]) -> int:
        return memory(facts, with_changes(config, _together(changes))).total

    taken: list[Change] = []
    for ladder in ladders:
        taken.append({})
        for change in ladder:
            if room < need(taken) >= need([*taken[:-1], change]):
                taken[-1] = change
    enough = max(room, need(taken))
    for rung in reversed(range(len(taken))):
        for change in ({}, *ladders[rung]):
            less = [*taken[:rung], change, *taken[rung + 1 :]]
            if need(less) <= enough:
                taken = less
                break
    return {key: new for key, new in _together(taken).items() if new != value(config, key)}


def _ladders(facts: Facts, config: Config) -> list[list[Change]]:
    """What could be changed, the least harmful first; of each, one step after the other."""
    model, rollout, optim = config.model, config.rollout, config.optim
    lora: Change = {"model.train": "lora", "optim.ranks": 1, "optim.lr": max(optim.lr, LORA_RATE)}
    less_trained: list[Change] = [{"model.train": "language"}, lora]
    fewer_screens = range(rollout.max_images - 1, 0, -1)
    short = {"rollout.max_answer_tokens": min(SHORT_ANSWER, rollout.max_answer_tokens)}
    first_turn = PROMPT_TOKENS + _screen(facts, config)[1] + SHORT_ANSWER
    contexts = _halved("rollout.max_context_tokens", rollout.max_context_tokens, first_turn)
    return [
        [{"model.dtype": "bfloat16"}],
        [{"optim.moments": "bfloat16"}],
        _halved("optim.tokens_per_microbatch", optim.tokens_per_microbatch, PROMPT_TOKENS),
        _halved("env.parallel", config.env.parallel, 1),
        [{"optim.ranks": ranks} for ranks in RANKS],
        _halved("rollout.max_answer_tokens", rollout.max_answer_tokens, SHORT_ANSWER),
        less_trained[("all", "language", "lora").index(model.train) :],
        [{"rollout.max_images": screens} for screens in fewer_screens],
        _halved("model.max_pixels", model.max_pixels, max(model.min_pixels, LEGIBLE)),
        [short | context for context in contexts],
    ]


def _halved(key: str, value: int, least: int) -> list[Change]:
    halves = []
    while (value := value // 2) >= least:
        halves.append({key: value})
    return halves


def _together(changes: Iterable[Change]) -> Change:
    return {key: value for change in changes for key, value in change.items()}


def with_changes(config: Config, change: Change) -> Config:
    for key, new in change.items():
        section, name = key.split(".")
        part: Change = {section: replace(getattr(config, section), **{name: new})}
        config = replace(config, **part)
    return config


def advice(facts: Facts, config: Config, room: int) -> list[str]:
    """Lines that say what to change when the plan does not fit into `room` bytes; none when it does."""
    if memory(facts, config).total <= room:
        return []
    change = fitting(facts, config, room)
    better = with_changes(config, change)
    need, ranks = memory(facts, better).total, better.optim.ranks
    size = f"{need / GIB:.1f} GiB" + (f" of each of {ranks} GPUs" if ranks > 1 else "")
    so = "it needs" if need <= room else "a larger one is needed: the least found is"
    settings = " ".join(f"--{key} {value}" for key, value in change.items())
    lines = [f"does not fit into a GPU of {room / GIB:.0f} GiB; {so} {size} with"]
    lines.append(f"    {settings or 'the settings as they are'}")
    if other := [key for key in change if key.startswith(LEARNS_OTHERWISE)]:
        lines.append(f"which changes what is learned ({', '.join(other)})")
    return lines


def describe(facts: Facts, config: Config, room: int | None) -> list[str]:
    """Lines for a person: each part in GiB, the sums, whether it fits, and what to change if not."""
    plan, ranks, tokens = memory(facts, config), config.optim.ranks, work_of(facts, config).sequence
    lines = [
        f"{name.replace('_', ' '):>12} {size / GIB:8.1f} GiB" for name, size in plan.parts.items() if size
    ]
    lines.append(f"{'in all':>12} {plan.total / GIB:8.1f} GiB, for sequences of {tokens:,} tokens")
    if ranks > 1:
        lines.append(
            f"this is rank 0 of {ranks}, which also samples; every other one needs "
            f"{plan.other_ranks / GIB:.1f} GiB of a GPU of its own"
        )
    if room is None:
        return [*lines, "no GPU here: this is what one would need; --gpu 80 plans for one of 80 GiB"]
    return [*lines, *(advice(facts, config, room) or [f"fits into a GPU of {room / GIB:.0f} GiB"])]
