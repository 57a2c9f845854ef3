"""Tiny models of all families with fresh weights, screenshots, and inputs for plain transformers."""

from __future__ import annotations

import copy
import functools
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from arpo.models.families import VisionLanguageModel
from arpo.models.loading import prepare
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.prompts.vision import ImageSettings
from arpo.types import Completion, Message, Prompt, Sampling, Screenshot
from tools.pretrain.tiny import IMAGE_SETTINGS, new_tiny_model, save_model_folder, tiny_config
from tools.pretrain.tokenizer import ACTION_PHRASES, build_tokenizer, special_ids

TOKENIZER = build_tokenizer(ACTION_PHRASES, ["open", "save", "file", "the"], 20)
QWEN2, QWEN2_5, QWEN3, QWEN3_5 = "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"
QWEN3_5_MOE = "qwen3_5_moe"
FAMILIES = (QWEN2, QWEN2_5, QWEN3, QWEN3_5, QWEN3_5_MOE)
EACH_FAMILY = (pytest.param(QWEN2, marks=pytest.mark.slow), QWEN2_5, QWEN3, QWEN3_5, QWEN3_5_MOE)
LINEAR = (QWEN3_5, QWEN3_5_MOE)  # families with linear attention
QWEN3_SETTINGS = ImageSettings(
    patch_size=16,
    merge_size=2,
    temporal_patch_size=2,
    min_pixels=4096,
    max_pixels=2116800,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)
SETTINGS = {
    QWEN2: IMAGE_SETTINGS,
    QWEN2_5: IMAGE_SETTINGS,
    QWEN3: QWEN3_SETTINGS,
    QWEN3_5: QWEN3_SETTINGS,
    QWEN3_5_MOE: QWEN3_SETTINGS,
}


def tiny_renderer(family: str = QWEN2_5) -> Renderer:
    return Renderer(TOKENIZER, SETTINGS[family])


def tiny_of(family: str, seed: int = 0, *, stock: bool = False) -> VisionLanguageModel:
    """A model that the caller may change. `stock` keeps the attention of transformers."""
    return copy.deepcopy(_made(family, seed, stock))


def in_precision(model: VisionLanguageModel, dtype: torch.dtype) -> VisionLanguageModel:
    if model.config.model_type == QWEN3_5_MOE and dtype == torch.float64:
        model.set_experts_implementation("eager")  # torch's grouped product has no float64
    return model.to(dtype)


def tiny_model(seed: int = 0, *, stock: bool = False) -> Qwen2_5_VLForConditionalGeneration:
    return tiny_of(QWEN2_5, seed, stock=stock)


@functools.cache
def _made(family: str, seed: int, stock: bool) -> VisionLanguageModel:
    """A copy of a model takes a third of the time that it takes to make it."""
    make = {QWEN2: tiny_qwen2, QWEN2_5: _tiny_qwen2_5, QWEN3: tiny_qwen3, QWEN3_5: tiny_qwen3_5}
    if family == QWEN3_5_MOE:
        return tiny_qwen3_5(seed, stock=stock, experts=4)
    return make[family](seed, stock=stock)


def tiny_qwen2(
    seed: int = 0, *, stock: bool = False, tokenizer: Tokenizer = TOKENIZER
) -> Qwen2VLForConditionalGeneration:
    """The vision tower is wider than the language model; two query heads share each key head."""
    ids = special_ids(tokenizer)
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": tokenizer.get_vocab_size(), "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
            "bos_token_id": None, "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={"depth": 2, "embed_dim": 96, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2},
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        model = Qwen2VLForConditionalGeneration(config).float()
    return _initialised(model, seed, stock)


def tiny_qwen3(
    seed: int = 0,
    *,
    stock: bool = False,
    tokenizer: Tokenizer = TOKENIZER,
    tied: bool = False,
    head: int = 24,
) -> Qwen3VLForConditionalGeneration:
    """Three levels of deep features, heads wider than the hidden size says, two of them to each key head."""
    with torch.random.fork_rng(devices=[]):
        model = Qwen3VLForConditionalGeneration(qwen3_config(tokenizer, tied, head)).float()
    return _initialised(model, seed, stock)


def tiny_qwen3_5(
    seed: int = 0,
    *,
    stock: bool = False,
    tokenizer: Tokenizer = TOKENIZER,
    hidden: int = 64,
    head: int = 24,
    experts: int = 0,
) -> Any:
    """Linear, full and linear attention; half of a head is rotated; two value heads for each key head.

    With `experts`, a token chooses two of them in each layer.
    """
    ids, twelfth = special_ids(tokenizer), head // 12
    mixture = {
        "num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    }  # fmt: skip
    config = (Qwen3_5MoeConfig if experts else Qwen3_5Config)(
        text_config={
            **(mixture if experts else {"intermediate_size": 96}),
            "vocab_size": tokenizer.get_vocab_size(), "hidden_size": hidden,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
            "linear_value_head_dim": 20,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                "mrope_interleaved": True, "mrope_section": [head // 4 - 2 * twelfth, twelfth, twelfth],
            },
            "bos_token_id": None, "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": head + 16, "num_heads": 2,
            "out_hidden_size": hidden, "num_position_embeddings": 36,
        },
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        kind = Qwen3_5MoeForConditionalGeneration if experts else Qwen3_5ForConditionalGeneration
        model = kind(config).float()
    model = _initialised(model, seed, stock)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("A_log"):
                weight.copy_(torch.linspace(-4, -2, 4))  # slow decay, so that a leak of state would show
            elif name.endswith("conv1d.weight"):
                weight.mul_(3)  # queries and keys have mostly positive values, so no output is nearly zero
            elif ".experts." in name:
                weight.mul_(6)  # else they would hardly matter
            elif name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                weight.mul_(0.25)  # rounding errors stay small
    return model


def _initialised(model: Any, seed: int, stock: bool) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() >= 2:
                weight.copy_(noise / math.sqrt(weight[0].numel()))
            else:
                weight.add_(0.2 * noise)
    return model.eval() if stock else prepare(model)


def qwen3_config(tokenizer: Tokenizer, tied: bool, head: int = 24) -> Qwen3VLConfig:
    ids = special_ids(tokenizer)
    sixth = head // 6
    return Qwen3VLConfig(
        text_config={
            "vocab_size": tokenizer.get_vocab_size(), "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head,
            "rope_theta": 5e6,
            "rope_scaling": {
                "rope_type": "default", "mrope_interleaved": True,
                "mrope_section": [head // 2 - 2 * sixth, sixth, sixth],
            },
            "bos_token_id": None, "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "model_type": "qwen3_vl", "depth": 4, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2,
            "out_hidden_size": 64, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1, 3],
        },
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=tied,
    )  # fmt: skip


def save_folder(model: Any, folder: Path, tokenizer: Tokenizer = TOKENIZER) -> Path:
    """A Hugging Face folder of a family, in float32, with the image settings as the hub has them."""
    family = model.config.model_type
    save_model_folder(model, tokenizer, folder, dtype=torch.float32, settings=SETTINGS[family])
    if family in (QWEN3, *LINEAR):
        settings = {
            "image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor",
            "patch_size": 16, "merge_size": 2, "temporal_patch_size": 2,
            "size": {"shortest_edge": 4096, "longest_edge": 2116800},
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        }  # fmt: skip
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def _tiny_qwen2_5(seed: int, *, stock: bool) -> Qwen2_5_VLForConditionalGeneration:
    """Two query heads share each key head."""
    config = tiny_config(
        TOKENIZER.get_vocab_size(),
        special_ids(TOKENIZER),
        hidden=64,
        layers=2,
        vision_hidden=32,
        vision_layers=2,
    )
    config.text_config.num_key_value_heads = 2
    model = new_tiny_model(config, seed)
    return model.eval() if stock else prepare(model)


@functools.cache
def screenshot(seed: int, width: int = 112, height: int = 84) -> Screenshot:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    return Screenshot.of(png.getvalue())


def first_prompt(
    renderer: Renderer, episode_id: str, shot: Screenshot, text: str = "open the file"
) -> Prompt:
    messages = (Message(role="user", text=text), Message(role="user", screenshot=shot))
    rendered = renderer.render(messages)
    return Prompt(
        episode_id=episode_id, token_ids=rendered.token_ids, images=rendered.images, messages=messages
    )


def next_prompt(renderer: Renderer, prompt: Prompt, answer: Completion, shot: Screenshot) -> Prompt:
    end = () if answer.finish == "stop" else (renderer.end_of_turn_id,)
    rest = renderer.continuation(Message(role="user", screenshot=shot))
    return Prompt(
        episode_id=prompt.episode_id,
        token_ids=(*prompt.token_ids, *answer.token_ids, *end, *rest.token_ids),
        images=(*prompt.images, *rest.images),
        messages=prompt.messages,
    )


def sampling(seed: int, max_tokens: int = 8, temperature: float = 1.0) -> Sampling:
    return Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)


def stock_inputs(
    renderer: Renderer, token_ids: Sequence[int], images: Sequence[Screenshot]
) -> dict[str, torch.Tensor]:
    """Inputs of plain transformers for one sequence; it computes positions and masks itself."""
    tokens = torch.tensor([token_ids])
    patches = np.concatenate([vision.patchify(image, renderer.settings) for image in images])
    return {
        "input_ids": tokens,
        "mm_token_type_ids": (tokens == renderer.image_token_id).int(),
        "pixel_values": torch.from_numpy(patches),
        "image_grid_thw": torch.tensor([renderer.grid(image) for image in images]),
    }
