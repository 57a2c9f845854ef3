"""GPU memory of a recipe, computed before anything is loaded.

Weights, gradients and moments are exact, from the model's configuration alone. Activations are an upper
bound: those of the longest possible sequence, minus the ones recomputed (see `recompute`). A run alternates
between sampling and learning, and needs the larger of both. In asynchronous training it does both at once,
and the engine has trained weights of its own. With several ranks, each has a GPU. They share weights,
gradients and moments. Rank 0 also samples, with a full model of its own, without its trained weights while
learning. With vLLM servers, this process does not sample. Nothing is allocated.

    info = read_model_info(config)
    plan_memory(info, config).total  # bytes on rank 0
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForImageTextToText

from arpo.config import Config, EnvConfig, ModelConfig
from arpo.errors import EngineError
from arpo.models import float32_head
from arpo.models.families import IMAGE_BOUNDS, family_of, head_width, linear_layers, vision_widths
from arpo.models.kv_cache import capacity_for, state_shapes
from arpo.models.linear_attention import has_kernels
from arpo.models.loading import read_config, resolve_model
from arpo.models.lora import ADAPTED_LAYERS
from arpo.models.recompute import KeptActivations
from arpo.models.token_pool import extent_size
from arpo.prompts import vision
from arpo.prompts.vision import ImageSettings

BYTES = {"float32": 4, "bfloat16": 2}
GIB = 2**30
RESERVE = 4 * GIB  # kept free on a GPU in use: libraries, and gaps of the allocator
MIN_RESERVE = GIB // 4  # if the pool would otherwise be too small for one episode
LIBRARIES = GIB  # of a plan; gaps of the allocator are one part in `RESERVE_DIVISOR` of the rest
RESERVE_DIVISOR = 32
FRAGMENTATION_DIVISOR = 10  # one part in this many of the free memory is lost to fragmentation
MAX_LOGITS = 2**26  # computed at once, in float32; with copies, one gigabyte
LOGIT_COPIES = 4
PROMPT_TOKENS = 1024  # all text of a trajectory except answers
MAX_PREFILL_TOKENS = 16384  # of one pass of the engine, without padding
MAX_ENCODED_PATCHES = 2**16  # of screenshots encoded at once by the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Language layers with gated linear attention; the others have full attention."""

    layers: int
    key_heads: int
    value_heads: int
    key_head: int  # width of one head
    value_head: int
    state_values: int  # of one episode in one layer, in float32
    window_values: int  # the same, in the precision of the model
    kernels: bool  # of flash-linear-attention, in place of torch's own operations


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDimensions:
    """Parameter counts, layer counts and widths of a model."""

    vision_parameters: int
    language_parameters: int
    layer_parameters: int  # of the largest language layer
    non_layer_parameters: int  # of the language model outside its layers: embeddings, head and a norm
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
    linear: LinearAttention | None = None

    @property
    def key_layers(self) -> int:
        """Layers with full attention, which have keys and values."""
        return self.layers - (self.linear.layers if self.linear else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Dimensions and image sizes of a model."""

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
    """Bytes on rank 0 by purpose. In lock step, one rank has no `gathered` tensors and no sampling model."""

    weights: int
    base_model: int
    moments: int
    sampling_model: int  # full model of rank 0, for sampling; in lock step without its trained weights
    slots: int  # cache of equal slots; 0 if the engine has a pool
    reserve: int
    gradients: int  # from here on: only while learning
    gathered: int  # sharded tensors while they are gathered
    activations: int
    sampling_weights: int  # from here on: only while sampling. Trained weights of the sampling model
    pool: int  # keys and values of the longest episode
    passes: int  # activations of the engine, and states of linear attention beside a pool
    concurrent: bool = False  # sampling and learning at the same time

    @property
    def parts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _PARTS}

    @property
    def learning(self) -> int:
        """Bytes in use only while learning."""
        return self.gradients + self.gathered + self.activations

    @property
    def sampling(self) -> int:
        """Bytes in use only while sampling, with a pool for one episode."""
        return self.sampling_weights + self.pool + self.passes

    @property
    def always(self) -> int:
        return sum(self.parts.values()) - self.learning - self.sampling

    @property
    def total(self) -> int:
        together = self.learning + self.sampling
        return self.always + (together if self.concurrent else max(self.learning, self.sampling))

    @property
    def other_ranks(self) -> int:
        """Bytes on each rank but 0: these do not sample."""
        return self.always - self.sampling_model - self.slots + self.learning

    def free_for_pool(self, gpu_bytes: int) -> int:
        """Bytes left for the pool while sampling on such a GPU."""
        return gpu_bytes - self.always - self.sampling + self.pool - self.learning * self.concurrent

    def cached_episodes(self, gpu_bytes: int) -> int:
        """The number of longest episodes in the pool on such a GPU."""
        return max(0, self.free_for_pool(gpu_bytes) // self.pool) if self.pool else 0


_PARTS = [field.name for field in fields(MemoryPlan) if field.name != "concurrent"]


def measure_dimensions(model: Any, lora_rank: int) -> ModelDimensions:
    text, tower = model.config.text_config, model.config.vision_config
    visual, family = model.model.visual, family_of(model)
    in_vision = sum(p.numel() for p in visual.parameters())
    in_language = sum(p.numel() for p in model.parameters()) - in_vision
    in_layers = [sum(p.numel() for p in layer.parameters()) for layer in model.model.language_model.layers]
    head, (vision_hidden, vision_intermediate) = head_width(text), vision_widths(tower)
    adapted = [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ADAPTED_LAYERS.search(f".{name}.")
    ]
    return ModelDimensions(
        vision_parameters=in_vision,
        language_parameters=in_language,
        layer_parameters=max(in_layers),
        non_layer_parameters=in_language - sum(in_layers),
        adapter_parameters=sum(lora_rank * (layer.in_features + layer.out_features) for layer in adapted),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        query_width=head * text.num_attention_heads,
        key_width=head * text.num_key_value_heads,
        intermediate=_intermediate(text),
        vocabulary=text.vocab_size,
        vision_layers=tower.depth,
        vision_full_layers=sum(
            family.bounds_argument(visual, layer) == IMAGE_BOUNDS for layer in range(tower.depth)
        ),
        vision_hidden=vision_hidden,
        vision_intermediate=vision_intermediate,
        converted_head=float32_head.converted_bytes(model),
        linear=_linear_attention(text),
    )


def _intermediate(text: Any) -> int:
    """Width of the MLP of one token; of a mixture, that of an MLP with as large activations.

    A token has its input, output and some indices at each chosen expert, and a number for each expert.
    """
    if not hasattr(text, "num_experts"):
        width: int = text.intermediate_size
        return width
    hidden, chosen = text.hidden_size, text.num_experts_per_tok
    at_experts: int = chosen * (text.moe_intermediate_size + hidden // 2 + 3) + text.num_experts // 2
    return at_experts + text.shared_expert_intermediate_size + hidden // 4


def _linear_attention(text: Any) -> LinearAttention | None:
    layers = len(linear_layers(text))
    if not layers:
        return None
    window, state = state_shapes(text)
    return LinearAttention(
        layers=layers,
        key_heads=text.linear_num_key_heads,
        value_heads=text.linear_num_value_heads,
        key_head=text.linear_key_head_dim,
        value_head=text.linear_value_head_dim,
        state_values=math.prod(state),
        window_values=math.prod(window),
        kernels=has_kernels(),
    )


def read_model_info(model: ModelConfig) -> ModelInfo:
    """The model of a config.json. No other file of its folder is read."""
    return model_info(read_config(resolve_model(model.path)), model)


def model_info(config: Any, model: ModelConfig) -> ModelInfo:
    """Measure the model of a transformers configuration on the device "meta", without memory."""
    with torch.device("meta"):
        dims = measure_dimensions(AutoModelForImageTextToText.from_config(config), model.lora_rank)
    if model.float32_head and model.dtype != "float32":
        dims = replace(dims, converted_head=BYTES["float32"] * dims.vocabulary * dims.hidden)
    tower = config.vision_config
    images = ImageSettings(  # only the sizes are used
        patch_size=tower.patch_size,
        merge_size=tower.spatial_merge_size,
        temporal_patch_size=tower.temporal_patch_size,
        min_pixels=model.min_pixels,
        max_pixels=model.max_pixels,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )
    return ModelInfo(dims=dims, images=images)


def workload_of(info: ModelInfo, config: Config) -> Workload:
    """A micro-batch holds either one long trajectory or several short ones."""
    rollout, max_tokens = config.rollout, config.optim.tokens_per_microbatch
    patches, tokens = screenshot_size(info, config.env, config.model)
    answers = rollout.max_answer_tokens * rollout.max_steps
    sequence = min(rollout.max_context_tokens, PROMPT_TOKENS + tokens * rollout.max_images + answers)
    return Workload(
        sequence=sequence,
        tokens=max(sequence, max_tokens),
        patches=patches * max(rollout.max_images, max_tokens // tokens),
    )


def screenshot_size(info: ModelInfo, env: EnvConfig, model: ModelConfig) -> tuple[int, int]:
    """(patches, tokens) of one screenshot."""
    settings = replace(info.images, min_pixels=model.min_pixels, max_pixels=model.max_pixels)
    grid = vision.grid(env.width, env.height, settings)
    return math.prod(grid), vision.image_tokens(grid, settings)


def plan_memory(info: ModelInfo, config: Config, *, learning: bool = True) -> MemoryPlan:
    """Upper bound for the recipe. Each rank has a full copy of a frozen vision tower."""
    dims, workload = info.dims, workload_of(info, config)
    width, ranks = BYTES[config.model.dtype], config.optim.ranks
    everything = dims.vision_parameters + dims.language_parameters
    pooled = config.model.dtype != "float32"
    sampling = {
        "slots": 0 if pooled else config.engine_episodes * slot_bytes(dims, width, workload.sequence),
        "pool": extent_size(config.rollout.max_context_tokens + 1) * key_value_bytes(dims, width)
        if pooled
        else 0,
        "passes": sampling_bytes(dims, width)
        + (states_bytes(dims, width, config.engine_episodes) if pooled else 0),
        "reserve": 0,
    }
    if not learning:
        parts: dict[str, Any] = dict.fromkeys(_PARTS, 0) | sampling | {"weights": width * everything}
        return _with_reserve(MemoryPlan(**parts))
    if not config.samples_in_process:
        sampling = dict.fromkeys(sampling, 0)
    train, lora = config.model.train, config.model.train == "lora"
    trained = everything if train == "all" else dims.adapter_parameters if lora else dims.language_parameters
    tower = 0 if train == "all" else dims.vision_parameters
    adapters = 4 * dims.adapter_parameters if lora else 0
    engine = _engine_model(config, width * everything + adapters, adapters if lora else width * trained)
    # For KL, the base model shares a frozen tower in one process. A rank has a copy of its own, and keeps
    # embeddings and head gathered, because no backward pass reshards them.
    base = _per_rank(width * trained, ranks) + (
        width * (tower + dims.non_layer_parameters) if ranks > 1 else 0
    )
    plan = MemoryPlan(
        weights=width * tower + _per_rank(width * (everything - tower) + adapters, ranks),
        base_model=base if config.compares_with_base and not lora else 0,
        gradients=_per_rank(trained * (4 if lora else width), ranks),
        moments=_per_rank(2 * trained * BYTES[config.optim.moments], ranks),
        gathered=_gathered_bytes(dims, width, lora) if ranks > 1 else 0,
        activations=_activation_bytes(
            dims, width, workload.tokens, workload.patches if train == "all" else 0
        ),
        **sampling | engine,
        concurrent=config.trains_a_copy,
    )
    return _with_reserve(plan)


def _engine_model(config: Config, everything: int, trained: int) -> dict[str, int]:
    """Weights of the engine besides those of the learner, in bytes.

    Ranks free the trained weights of a full model while they learn; adapters stay. In asynchronous training
    the engine has trained weights of its own; the full model of the ranks is then a third copy.
    """
    sharded, freed = config.optim.ranks > 1, 0 if config.model.train == "lora" else trained
    if not config.samples_in_process:
        always, sometimes = 0, 0
    elif not config.trains_a_copy:
        always, sometimes = (everything - freed, freed) if sharded else (0, 0)
    else:
        always, sometimes = (everything, trained) if sharded else (trained, 0)
    return {"sampling_model": always, "sampling_weights": sometimes}


def _with_reserve(plan: MemoryPlan) -> MemoryPlan:
    return replace(plan, reserve=LIBRARIES + plan.total // RESERVE_DIVISOR)


def key_value_bytes(dims: ModelDimensions, width: int) -> int:
    """Keys and values of one token."""
    return 2 * dims.key_width * dims.key_layers * width


def slot_bytes(dims: ModelDimensions, width: int, tokens: int) -> int:
    """Keys and values of one episode of this length, and its state."""
    return capacity_for(tokens) * key_value_bytes(dims, width) + episode_state_bytes(dims, width)


def states_bytes(dims: ModelDimensions, width: int, episodes: int) -> int:
    """States of linear attention of a pool for this many episodes; one more is for padding."""
    return (episodes + 1) * episode_state_bytes(dims, width)


def episode_state_bytes(dims: ModelDimensions, width: int) -> int:
    """States of linear attention, of all layers."""
    if not (linear := dims.linear):
        return 0
    return linear.layers * (linear.window_values * width + linear.state_values * BYTES["float32"])


def sampling_bytes(dims: ModelDimensions, width: int) -> int:
    """Activations of the engine: of one layer in the largest prefill, or of one block of the vision tower."""
    largest = max(
        layer_bytes(dims, width, MAX_PREFILL_TOKENS), 2 * block_bytes(dims, width, MAX_ENCODED_PATCHES)
    )
    return largest + dims.converted_head


def engine_pass_bytes(model: Any) -> int:
    """Activations of an engine with this model."""
    return sampling_bytes(measure_dimensions(model, lora_rank=1), model.dtype.itemsize)


def pool_tokens(model: Any, longest: int, episodes: int, gigabytes: float) -> int:
    """Tokens for the engine's pool of this many episodes, of which the longest has `longest` tokens.

    They fit into `gigabytes`, without the states of linear attention; 0: both fit into the free GPU memory.
    Raises EngineError if not even the longest episode fits.
    """
    if not gigabytes and model.device.type != "cuda":
        return episodes * longest
    dims = measure_dimensions(model, lora_rank=1)
    width = model.dtype.itemsize
    if gigabytes:
        available = int(gigabytes * GIB)
    else:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0] - states_bytes(dims, width, episodes)
        available = available_for_pool(dims, width, longest, free)
    tokens = min(episodes * longest, available // key_value_bytes(dims, width))
    if tokens < longest:
        more = "raise engine.cache_gigabytes" if gigabytes else "use a larger GPU"
        raise EngineError(
            "generate",
            f"the cache has room for {max(0, tokens):,} tokens ({available / GIB:.1f} GiB), and the longest "
            f"episode has {longest:,}: reduce rollout.max_context_tokens, or {more}",
        )
    return tokens


def available_for_pool(dims: ModelDimensions, width: int, longest: int, free: int) -> int:
    """Bytes of `free` ones for a pool. A GPU with room for the plan alone has room for one episode.

    Compaction of a pool copies one of its tensors.
    """
    free -= sampling_bytes(dims, width)
    tensors = 2 * dims.key_layers
    needed, roomy, tight = longest * key_value_bytes(dims, width), free - RESERVE, free - MIN_RESERVE
    roomy, tight = (size - size // tensors for size in (roomy, tight))
    return roomy if roomy >= needed else min(tight, needed)


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
    kept = width * tokens * (dims.layers * dims.hidden + dims.key_layers * dims.query_width)
    kept += width * patches * (dims.vision_layers + dims.vision_full_layers) * dims.vision_hidden
    layer = layer_bytes(dims, width, tokens)
    block = block_bytes(dims, width, patches)
    logits = 4 * LOGIT_COPIES * min(MAX_LOGITS, tokens * dims.vocabulary)
    return kept + 2 * max(layer, block) + logits + 2 * dims.converted_head  # and its gradient


def layer_bytes(dims: ModelDimensions, width: int, tokens: int) -> int:
    """Activations of the largest language layer without recomputation.

    In float32, attention copies keys and values for each query head.
    """
    key_width = dims.query_width if width == BYTES["float32"] else dims.key_width
    full = width * tokens * (4 * dims.hidden + 2 * dims.query_width + 2 * key_width + 3 * dims.intermediate)
    return max(full, _linear_layer_bytes(dims, dims.linear, width, tokens)) if dims.linear else full


def _linear_layer_bytes(dims: ModelDimensions, linear: LinearAttention, width: int, tokens: int) -> int:
    """Activations of a layer with linear attention.

    Torch's path of transformers computes in float32, on chunks of 64 tokens: their matrices, and a state
    after each chunk. The kernels keep one matrix of each chunk. On a GPU that has them, norms are fused.
    """
    heads, chunk = linear.value_heads, 64
    keys, values, hidden = heads * linear.key_head, heads * linear.value_head, dims.hidden
    unrepeated_keys, state = linear.key_heads * linear.key_head, keys * linear.value_head
    if linear.kernels:
        mixed = 4 * hidden + 2 * unrepeated_keys + 2 * keys + 5 * values + 3 * dims.intermediate
        return width * tokens * (mixed + heads * (chunk + 16))  # and some numbers for each head
    mixed = 8 * keys + 5 * values + 4 * unrepeated_keys + 2 * hidden + 4 * dims.intermediate
    matrices = heads * (5 * chunk + 16)  # and some numbers for each head, such as its decay
    in_float32 = 4 * keys + 6 * values + 4 * hidden + matrices + state // chunk
    return tokens * (width * mixed + BYTES["float32"] * in_float32)


def product_bytes(dims: ModelDimensions, width: int, tokens: int) -> int:
    """Additional activations of the largest language layer with kept matrix products."""
    mixed = dims.query_width + 2 * dims.key_width
    if linear := dims.linear:  # query, key, value and gate, two numbers for each head
        of_head = 2 * linear.value_head + 2
        mixed = max(mixed, 2 * linear.key_heads * linear.key_head + linear.value_heads * of_head)
    return width * tokens * (dims.hidden + mixed + 2 * dims.intermediate)


def block_bytes(dims: ModelDimensions, width: int, patches: int) -> int:
    """Activations of a block of the vision tower without recomputation."""
    return width * patches * (8 * dims.vision_hidden + 3 * dims.vision_intermediate)


def activations_to_keep(model: Any, tokens: int, patches: int, reserved: int = 0) -> KeptActivations:
    """The activations to keep in free GPU memory, except `reserved` bytes, until the backward pass.

    If weights are sharded over several GPUs, none: gathering needs an unknown amount of memory.
    """
    parameters = list(model.parameters())
    if any(isinstance(parameter, DTensor) for parameter in parameters):
        return KeptActivations()
    tower = any(parameter.requires_grad for parameter in model.model.visual.blocks.parameters())
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    free -= reserved
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
