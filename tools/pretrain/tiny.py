"""The tiny model, Qwen2.5-VL or Qwen3.5: configuration, initial weights, and saving as a model folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForImageTextToText,
    GenerationConfig,
    PretrainedConfig,
    Qwen2_5_VLConfig,
    Qwen3_5Config,
)
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from arpo.prompts import vision
from arpo.prompts.vision import ImageSettings

IMAGE_SETTINGS = ImageSettings(
    patch_size=14,
    merge_size=2,
    temporal_patch_size=2,
    min_pixels=3136,
    max_pixels=2116800,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)

EMBEDDING_STD = 0.06
ROPE_THETA = 10_000.0

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else %}{{- part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def tiny_config(
    vocab_size: int,
    ids: Mapping[str, int],
    *,
    family: str = "qwen2_5_vl",
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    key_heads: int = 2,
    vision_hidden: int = 128,
    vision_layers: int = 4,
    max_positions: int = 4096,
) -> Any:
    """Configuration with full attention in every vision layer. `ids` maps special tokens to ids."""
    config, in_text, in_rope, in_tower = FAMILIES[family](hidden // heads, heads, key_heads, vision_layers)
    half = hidden // heads // 2
    time = half // 4
    height = (half - time) // 2
    rope = {
        "rope_type": "default",
        "rope_theta": ROPE_THETA,
        "mrope_section": [time, height, half - time - height],
    }
    return config(
        text_config={
            "vocab_size": vocab_size,
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": key_heads,
            "max_position_embeddings": max_positions,
            "rope_parameters": rope | in_rope,
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            **in_text,
        },
        vision_config={
            "depth": vision_layers,
            "hidden_size": vision_hidden,
            "intermediate_size": 3 * vision_hidden,
            "num_heads": heads,
            "out_hidden_size": hidden,
            "patch_size": IMAGE_SETTINGS.patch_size,
            "spatial_merge_size": IMAGE_SETTINGS.merge_size,
            "temporal_patch_size": IMAGE_SETTINGS.temporal_patch_size,
            **in_tower,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


_Parts = tuple[type[PretrainedConfig], dict[str, Any], dict[str, Any], dict[str, Any]]


def _qwen2_5(head: int, heads: int, key_heads: int, vision_layers: int) -> _Parts:
    return Qwen2_5_VLConfig, {}, {}, {"fullatt_block_indexes": list(range(vision_layers))}


def _qwen3_5(head: int, heads: int, key_heads: int, vision_layers: int) -> _Parts:
    """Every second layer has full attention, the others have linear attention with heads of the same size.

    In published models, it is every fourth one. Of four layers, that is only the last one, and a model learns
    more slowly to find what its instruction names.
    """
    text = {
        "full_attention_interval": 2,
        "head_dim": head,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": head,
        "linear_value_head_dim": head,
        "mamba_ssm_dtype": "float32",  # of the states in vLLM, which has them in bfloat16 by default
        "tie_word_embeddings": True,
    }
    third = head // 6
    places = {"mrope_interleaved": True, "mrope_section": [head // 2 - 2 * third, third, third]}
    return Qwen3_5Config, text, {"partial_rotary_factor": 1.0} | places, {}


FAMILIES = {"qwen2_5_vl": _qwen2_5, "qwen3_5": _qwen3_5}
_PROCESSORS = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor"}


def new_tiny_model(config: PretrainedConfig, seed: int) -> Any:
    """Float32 weights, deviation 1/sqrt(fan-in). A model this small does not learn with the usual 0.02."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config).float()
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.dim() >= 2:
            std = EMBEDDING_STD if "embed_tokens" in name else 1 / math.sqrt(weight[0].numel())
            torch.nn.init.normal_(weight, std=std, generator=generator)
    for module in model.modules():
        if isinstance(module, Qwen3_5GatedDeltaNet):
            _spread_memory(module)
    return model


@torch.no_grad()
def _spread_memory(mixer: Qwen3_5GatedDeltaNet) -> None:
    """The heads of linear attention begin with memories of 10 to 1,000 tokens.

    In a new model of transformers, almost every head forgets each token before the next one.
    """
    forgotten = torch.logspace(-1, -3, len(mixer.dt_bias))  # the share of its memory, at each token
    mixer.A_log.zero_()
    mixer.dt_bias.copy_(forgotten.expm1().log())  # the inverse of softplus


def save_model_folder(
    model: Any,
    tokenizer: Tokenizer,
    folder: Path | str,
    *,
    dtype: torch.dtype = torch.float16,
    settings: ImageSettings = IMAGE_SETTINGS,
) -> None:
    """Write a Hugging Face model folder with weights of `dtype`. The model itself is not converted."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.to(dtype) for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    model.save_pretrained(folder, state_dict=weights)
    text = model.config.text_config
    GenerationConfig(eos_token_id=text.eos_token_id, pad_token_id=text.pad_token_id).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _write_json(folder / "config.json", config | {"dtype": str(dtype).removeprefix("torch.")})
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(text.max_position_embeddings))
    _write_json(folder / vision.CONFIG_NAME, _image_config(model.config.model_type, settings))


def _tokenizer_config(max_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _image_config(model_type: str, settings: ImageSettings) -> dict[str, Any]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": _PROCESSORS.get(model_type, "Qwen3VLProcessor"),
        "patch_size": settings.patch_size,
        "merge_size": settings.merge_size,
        "temporal_patch_size": settings.temporal_patch_size,
        "min_pixels": settings.min_pixels,
        "max_pixels": settings.max_pixels,
        "image_mean": list(settings.mean),
        "image_std": list(settings.std),
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
