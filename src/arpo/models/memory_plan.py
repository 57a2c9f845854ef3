"""GPU memory of a recipe, computed before anything is loaded.

Weights, gradients and moments are exact, from the model's configuration alone. Activations are an upper
bound: those of the longest possible sequence, minus the ones recomputed (see `recompute`). With
several ranks, each has a GPU. They share weights, gradients and moments. Rank 0 needs most: it also samples,
with a full model of its own. If a recipe does not fit, `advise` finds settings that do. Nothing is allocated.

    info = read_model_info(config)
    plan_memory(info, config).total  # bytes on rank 0
    advise(info, config, 80 * GIB)  # [] if the recipe fits into 80 GiB
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
from arpo.models import float32_head
from arpo.models.families import IMAGE_BOUNDS, family_of, head_width, vision_widths
from arpo.models.kv_cache import capacity_for
from arpo.models.loading import read_config, resolve_model
from arpo.models.lora import ADAPTED_LAYERS
from arpo.models.recompute import KeptActivations
from arpo.prompts import vision
from arpo.prompts.vision import ImageSettings
from arpo.recipe import value

BYTES = {"float32": 4, "bfloat16": 2}
GIB = 2**30
RESERVE = 4 * GIB  # memory of the libraries, and gaps of the allocator
FRAGMENTATION_DIVISOR = 10  # one part in this many of the free memory is lost to fragmentation
MAX_LOGITS = 2**26  # computed at once, in float32; with copies, one gigabyte
LOGIT_COPIES = 4
PROMPT_TOKENS = 1024  # all text of a trajectory except answers
SHORT_ANSWER_TOKENS = 512  # enough for a thought and an action
MIN_LEGIBLE_PIXELS = 2**19  # below this, the text of a desktop is unreadable
RANK_COUNTS = (1, 2, 4, 8)  # number of GPUs in one machine
LORA_LEARNING_RATE = 1e-4  # adapters need a higher learning rate than weights
RESULT_CHANGING_KEYS = (
    "model.train",
    "model.max_pixels",
    "rollout.",
)  # prefixes; other settings cost only time

Change = dict[str, Any]  # values by dotted config key


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDimensions:
    """Parameter counts, layer counts and widths of a model."""

    vision_parameters: int
    language_parameters: int
    layer_parameters: int  # of one language layer
    adapter_parameters: int  # at the recipe's LoRA rank
    layers: int
    hidden: int
    query_width: int  # width of all query heads together
    key_width: int  # width of all key heads together
    intermediate: int
    vocabulary: int
    vision_layers: int
    vision_full_layers: int  # with attention over the whole image
    vision_hidden: int
    vision_intermediate: int
    converted_head: int = 0  # bytes of the head's weights in float32, if model.float32_head converts them

    @property
    def non_layer_parameters(self) -> int:
        """Language-model parameters outside its layers: embeddings, head and a norm."""
        return self.language_parameters - self.layers * self.layer_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Dimensions and image settings of a model folder."""

    dims: ModelDimensions
    images: ImageSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The largest micro-batch of a recipe."""

    sequence: int  # tokens of the longest trajectory
    tokens: int  # of a micro-batch
    patches: int  # of the screenshots of a micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes on rank 0 by purpose. `gathered` and `sampling_model` are 0 with one rank."""

    weights: int
    base_model: int
    gradients: int
    moments: int
    gathered: int  # sharded tensors while they are gathered
    activations: int
    sampling_model: int  # full model of rank 0, for sampling
    kv_cache: int
    reserve: int

    @property
    def parts(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def other_ranks(self) -> int:
        """Bytes on each rank but 0: these do not sample."""
        return self.total - self.sampling_model - self.kv_cache


def read_dimensions(folder: Path, lora_rank: int) -> ModelDimensions:
    """Measure the model of a config.json on the device "meta", without memory."""
    config = read_config(folder)
    with torch.device("meta"):
        return measure_dimensions(AutoModelForImageTextToText.from_config(config), lora_rank)


def measure_dimensions(model: Any, lora_rank: int) -> ModelDimensions:
    text, tower = model.config.text_config, model.config.vision_config
    visual, family = model.model.visual, family_of(model)
    in_vision = sum(p.numel() for p in visual.parameters())
    head, (vision_hidden, vision_intermediate) = head_width(text), vision_widths(tower)
    adapted = [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ADAPTED_LAYERS.search(f".{name}.")
    ]
    return ModelDimensions(
        vision_parameters=in_vision,
        language_parameters=sum(p.numel() for p in model.parameters()) - in_vision,
        layer_parameters=sum(p.numel() for p in model.model.language_model.layers[0].parameters()),
        adapter_parameters=sum(lora_rank * (layer.in_features + layer.out_features) for layer in adapted),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        query_width=head * text.num_attention_heads,
        key_width=head * text.num_key_value_heads,
        intermediate=text.intermediate_size,
        vocabulary=text.vocab_size,
        vision_layers=tower.depth,
        vision_full_layers=sum(
            family.bounds_argument(visual, layer) == IMAGE_BOUNDS for layer in range(tower.depth)
        ),
        vision_hidden=vision_hidden,
        vision_intermediate=vision_intermediate,
        converted_head=float32_head.converted_bytes(model),
    )


def read_model_info(config: Config) -> ModelInfo:
    folder = resolve_model(config.model.path)
    dims = read_dimensions(folder, config.model.lora_rank)
    if config.model.float32_head and config.model.dtype != "float32":
        dims = replace(dims, converted_head=BYTES["float32"] * dims.vocabulary * dims.hidden)
    return ModelInfo(
        dims=dims,
        images=ImageSettings.from_folder(folder, config.model.min_pixels, config.model.max_pixels),
    )


def workload_of(info: ModelInfo, config: Config) -> Workload:
    """A micro-batch holds either one long trajectory or several short ones."""
    rollout, max_tokens = config.rollout, config.optim.tokens_per_microbatch
    patches, tokens = _screenshot_size(info, config)
    answers = rollout.max_answer_tokens * rollout.max_steps
    sequence = min(rollout.max_context_tokens, PROMPT_TOKENS + tokens * rollout.max_images + answers)
    return Workload(
        sequence=sequence,
        tokens=max(sequence, max_tokens),
        patches=patches * max(rollout.max_images, max_tokens // tokens),
    )


def _screenshot_size(info: ModelInfo, config: Config) -> tuple[int, int]:
    """(patches, tokens) of one screenshot."""
    settings = replace(info.images, min_pixels=config.model.min_pixels, max_pixels=config.model.max_pixels)
    grid = vision.grid(config.env.width, config.env.height, settings)
    return math.prod(grid), vision.image_tokens(grid, settings)


def plan_memory(info: ModelInfo, config: Config) -> MemoryPlan:
    """Upper bound for the recipe. Each rank has a full copy of a frozen vision tower."""
    dims, workload = info.dims, workload_of(info, config)
    width, ranks = BYTES[config.model.dtype], config.optim.ranks
    train, lora = config.model.train, config.model.train == "lora"
    everything = dims.vision_parameters + dims.language_parameters
    trained = everything if train == "all" else dims.adapter_parameters if lora else dims.language_parameters
    tower = 0 if train == "all" else dims.vision_parameters
    adapters = 4 * dims.adapter_parameters if lora else 0
    # For KL, the base model shares a frozen tower in one process. A rank has a copy of its own, and keeps
    # embeddings and head gathered, because no backward pass reshards them.
    base = _per_rank(width * trained, ranks) + (
        width * (tower + dims.non_layer_parameters) if ranks > 1 else 0
    )
    key_value_bytes = 2 * dims.key_width * dims.layers * width  # of one token
    return MemoryPlan(
        weights=width * tower + _per_rank(width * (everything - tower) + adapters, ranks),
        base_model=base if config.compares_with_base and not lora else 0,
        gradients=_per_rank(trained * (4 if lora else width), ranks),
        moments=_per_rank(2 * trained * BYTES[config.optim.moments], ranks),
        gathered=_gathered_bytes(dims, width, lora) if ranks > 1 else 0,
        activations=_activation_bytes(
            dims, width, workload.tokens, workload.patches if train == "all" else 0
        ),
        sampling_model=width * everything + adapters if ranks > 1 else 0,
        kv_cache=config.env.parallel * capacity_for(workload.sequence) * key_value_bytes,
        reserve=RESERVE,
    )


def _per_rank(size: int, ranks: int) -> int:
    return -(-size // ranks)


def _gathered_bytes(dims: ModelDimensions, width: int, lora: bool) -> int:
    """Full tensors during a pass: embeddings, head, the current layer and the next one.

    Gradients are full tensors until they are summed over the ranks, in float32.
    """
    weights = width * (dims.non_layer_parameters + 2 * dims.layer_parameters)
    if lora:
        return weights
    return weights + width * (dims.non_layer_parameters + dims.layer_parameters) + 4 * dims.layer_parameters


def _activation_bytes(dims: ModelDimensions, width: int, tokens: int, patches: int) -> int:
    """Activations kept for the backward pass, the block being recomputed, and the logits."""
    kept = width * tokens * dims.layers * (dims.hidden + dims.query_width)
    kept += width * patches * (dims.vision_layers + dims.vision_full_layers) * dims.vision_hidden
    layer = layer_bytes(dims, width, tokens)
    block = block_bytes(dims, width, patches)
    logits = 4 * LOGIT_COPIES * min(MAX_LOGITS, tokens * dims.vocabulary)
    return kept + 2 * max(layer, block) + logits + 2 * dims.converted_head  # and its gradient


def layer_bytes(dims: ModelDimensions, width: int, tokens: int) -> int:
    """Activations of a language layer without recomputation.

    In float32, attention copies keys and values for each query head.
    """
    key_width = dims.query_width if width == BYTES["float32"] else dims.key_width
    return width * tokens * (4 * dims.hidden + 2 * dims.query_width + 2 * key_width + 3 * dims.intermediate)


def product_bytes(dims: ModelDimensions, width: int, tokens: int) -> int:
    """Additional activations of a language layer with kept matrix products."""
    return width * tokens * (dims.hidden + dims.query_width + 2 * dims.key_width + 2 * dims.intermediate)


def block_bytes(dims: ModelDimensions, width: int, patches: int) -> int:
    """Activations of a block of the vision tower without recomputation."""
    return width * patches * (8 * dims.vision_hidden + 3 * dims.vision_intermediate)


def activations_to_keep(model: Any, tokens: int, patches: int) -> KeptActivations:
    """The activations to keep in free GPU memory until the backward pass.

    If weights are sharded over several GPUs, none: gathering needs an unknown amount of memory.
    """
    parameters = list(model.parameters())
    if any(isinstance(parameter, DTensor) for parameter in parameters):
        return KeptActivations()
    tower = any(parameter.requires_grad for parameter in model.model.visual.blocks.parameters())
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    pending_gradients = sum(p.nbytes for p in parameters if p.requires_grad and p.grad is None)
    width, patches = parameters[0].element_size(), patches if tower else 0
    return max_kept_activations(
        measure_dimensions(model, lora_rank=1), width, tokens, patches, free, pending_gradients
    )


def max_kept_activations(
    dims: ModelDimensions, width: int, tokens: int, patches: int, free: int, pending_gradients: int
) -> KeptActivations:
    """The activations that fit into `free` bytes besides `pending_gradients` bytes of gradients to come.

    Products of all layers come first: they save most time per byte. The backward pass runs through the layers
    while only the gradients of the head exist, and reaches the vision tower when all others do.
    """
    available = (
        free - free // FRAGMENTATION_DIVISOR - RESERVE - _activation_bytes(dims, width, tokens, patches)
    )
    for_layers = available - min(pending_gradients, width * dims.non_layer_parameters)
    product, layer = product_bytes(dims, width, tokens), layer_bytes(dims, width, tokens)
    whole_layers = _count_that_fit(dims.layers, for_layers - dims.layers * product, layer - product)
    product_layers = _count_that_fit(dims.layers - whole_layers, for_layers - whole_layers * layer, product)
    left = min(for_layers - whole_layers * layer - product_layers * product, available - pending_gradients)
    vision_blocks = (
        _count_that_fit(dims.vision_layers, left, block_bytes(dims, width, patches)) if patches else 0
    )
    return KeptActivations(
        product_layers=product_layers, whole_layers=whole_layers, vision_blocks=vision_blocks
    )


def _count_that_fit(max_count: int, available: int, size: int) -> int:
    return max(0, min(max_count, available // size))


def find_fitting_changes(info: ModelInfo, config: Config, gpu_bytes: int) -> Change:
    """The least harmful changes to fit into `gpu_bytes`; if none fit, those with the least memory.

    Changes are applied in the order of `_candidate_changes` until the recipe fits; some help only together
    with later ones. Then they are reverted as far as possible, the most harmful first.
    """
    candidates = _candidate_changes(info, config)

    def need(changes: Iterable[Change]) -> int:
        return plan_memory(info, with_changes(config, _merge_changes(changes))).total

    taken: list[Change] = []
    for steps in candidates:
        taken.append({})
        for change in steps:
            if gpu_bytes < need(taken) >= need([*taken[:-1], change]):
                taken[-1] = change
    limit = max(gpu_bytes, need(taken))
    for index in reversed(range(len(taken))):
        for change in ({}, *candidates[index]):
            fewer = [*taken[:index], change, *taken[index + 1 :]]
            if need(fewer) <= limit:
                taken = fewer
                break
    return {key: new for key, new in _merge_changes(taken).items() if new != value(config, key)}


def _candidate_changes(info: ModelInfo, config: Config) -> list[list[Change]]:
    """Lists of alternative changes, the least harmful list first and the smallest change of each first."""
    model, rollout, optim = config.model, config.rollout, config.optim
    lora: Change = {"model.train": "lora", "optim.ranks": 1, "optim.lr": max(optim.lr, LORA_LEARNING_RATE)}
    less_trained: list[Change] = [{"model.train": "language"}, lora]
    fewer_screens = range(rollout.max_images - 1, 0, -1)
    short = {"rollout.max_answer_tokens": min(SHORT_ANSWER_TOKENS, rollout.max_answer_tokens)}
    first_turn = PROMPT_TOKENS + _screenshot_size(info, config)[1] + SHORT_ANSWER_TOKENS
    contexts = _halved("rollout.max_context_tokens", rollout.max_context_tokens, first_turn)
    return [
        [{"model.dtype": "bfloat16"}],
        [{"optim.moments": "bfloat16"}],
        _halved("optim.tokens_per_microbatch", optim.tokens_per_microbatch, PROMPT_TOKENS),
        _halved("env.parallel", config.env.parallel, 1),
        [{"optim.ranks": ranks} for ranks in RANK_COUNTS],
        _halved("rollout.max_answer_tokens", rollout.max_answer_tokens, SHORT_ANSWER_TOKENS),
        less_trained[("all", "language", "lora").index(model.train) :],
        [{"rollout.max_images": screens} for screens in fewer_screens],
        _halved("model.max_pixels", model.max_pixels, max(model.min_pixels, MIN_LEGIBLE_PIXELS)),
        [short | context for context in contexts],
    ]


def _halved(key: str, value: int, minimum: int) -> list[Change]:
    halves = []
    while (value := value // 2) >= minimum:
        halves.append({key: value})
    return halves


def _merge_changes(changes: Iterable[Change]) -> Change:
    return {key: value for change in changes for key, value in change.items()}


def with_changes(config: Config, change: Change) -> Config:
    for key, new in change.items():
        section, name = key.split(".")
        part: Change = {section: replace(getattr(config, section), **{name: new})}
        config = replace(config, **part)
    return config


def advise(info: ModelInfo, config: Config, gpu_bytes: int) -> list[str]:
    """Lines with changes to fit the recipe into `gpu_bytes`; none if it fits."""
    if plan_memory(info, config).total <= gpu_bytes:
        return []
    change = find_fitting_changes(info, config, gpu_bytes)
    fitted = with_changes(config, change)
    need, ranks = plan_memory(info, fitted).total, fitted.optim.ranks
    size = f"{need / GIB:.1f} GiB" + (f" on each of {ranks} GPUs" if ranks > 1 else "")
    verdict = "it needs" if need <= gpu_bytes else "a larger GPU is needed: the minimum is"
    settings = " ".join(f"--{key} {value}" for key, value in change.items())
    lines = [f"does not fit into a GPU of {gpu_bytes / GIB:.0f} GiB; {verdict} {size} with"]
    lines.append(f"    {settings or 'the current settings'}")
    if other := [key for key in change if key.startswith(RESULT_CHANGING_KEYS)]:
        lines.append(f"this changes training results ({', '.join(other)})")
    return lines


def describe_plan(info: ModelInfo, config: Config, gpu_bytes: int | None) -> list[str]:
    """Lines for the user: GiB by purpose, totals, whether the recipe fits, and changes if it does not."""
    plan, ranks, tokens = plan_memory(info, config), config.optim.ranks, workload_of(info, config).sequence
    lines = [
        f"{name.replace('_', ' '):>14} {size / GIB:8.1f} GiB" for name, size in plan.parts.items() if size
    ]
    lines.append(f"{'total':>14} {plan.total / GIB:8.1f} GiB, for sequences of {tokens:,} tokens")
    if ranks > 1:
        lines.append(
            f"these are for rank 0 of {ranks}, which also samples; each other rank needs "
            f"{plan.other_ranks / GIB:.1f} GiB on its own GPU"
        )
    if gpu_bytes is None:
        return [*lines, "no GPU found; --gpu 80 checks the plan against a GPU of 80 GiB"]
    return [*lines, *(advise(info, config, gpu_bytes) or [f"fits into a GPU of {gpu_bytes / GIB:.0f} GiB"])]
