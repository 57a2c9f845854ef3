"""Configurations of published models, to plan their memory before anything is downloaded.

known_model("/models/UI-TARS-1.5-7B").hub  # "ByteDance-Seed/UI-TARS-1.5-7B"
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoConfig


class _Text(NamedTuple):
    family: str
    hidden: int
    intermediate: int  # of an expert in a mixture; the numbers of experts are defaults of transformers
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    tied: bool


_SIZES = {
    "Qwen2-VL-2B": _Text("qwen2_vl", 1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2-VL-7B": _Text("qwen2_vl", 3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2-VL-72B": _Text("qwen2_vl", 8192, 29568, 80, 64, 8, 152064, False),
    "Qwen2.5-VL-3B": _Text("qwen2_5_vl", 2048, 11008, 36, 16, 2, 151936, True),
    "Qwen2.5-VL-7B": _Text("qwen2_5_vl", 3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2.5-VL-32B": _Text("qwen2_5_vl", 5120, 27648, 64, 40, 8, 152064, False),
    "Qwen2.5-VL-72B": _Text("qwen2_5_vl", 8192, 29568, 80, 64, 8, 152064, False),
    "Qwen3-VL-2B": _Text("qwen3_vl", 2048, 6144, 28, 16, 8, 151936, True),
    "Qwen3-VL-4B": _Text("qwen3_vl", 2560, 9728, 36, 32, 8, 151936, True),
    "Qwen3-VL-8B": _Text("qwen3_vl", 4096, 12288, 36, 32, 8, 151936, False),
    "Qwen3-VL-32B": _Text("qwen3_vl", 5120, 25600, 64, 64, 8, 151936, False),
    "Qwen3.5-9B": _Text("qwen3_5", 4096, 12288, 32, 16, 4, 248320, False),
    "Qwen3.5-35B-A3B": _Text("qwen3_5_moe", 2048, 512, 40, 16, 2, 248320, False),
}
_HEAD_WIDTHS = {"qwen3_vl": 128, "qwen3_5": 256, "qwen3_5_moe": 256}  # the others follow from the hidden size
# Beginning of a model's name, its size, its repository on the hub.
_MODELS = (
    ("UI-TARS-1.5-7B", "Qwen2.5-VL-7B", "ByteDance-Seed/UI-TARS-1.5-7B"),
    ("UI-TARS-2B", "Qwen2-VL-2B", "ByteDance-Seed/UI-TARS-2B-SFT"),
    ("UI-TARS-7B", "Qwen2-VL-7B", "ByteDance-Seed/UI-TARS-7B-DPO"),
    ("UI-TARS-72B", "Qwen2-VL-72B", "ByteDance-Seed/UI-TARS-72B-DPO"),
    *((size, size, f"Qwen/{size}{'-Instruct' * ('VL' in size)}") for size in _SIZES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A published model: its transformers configuration, and its repository on the hub."""

    config: Any
    hub: str


def known_model(path: str) -> KnownModel | None:
    """The published model with the name of this folder or repository; None if the name is not known."""
    name = Path(path.partition("@")[0]).name.lower()
    for beginning, size, hub in _MODELS:
        if name.startswith(beginning.lower()):
            return KnownModel(config=_config(_SIZES[size]), hub=hub)
    return None


def _config(text: _Text) -> Any:
    return AutoConfig.for_model(
        text.family,
        text_config={
            "hidden_size": text.hidden,
            "moe_intermediate_size"
            if text.family == "qwen3_5_moe"
            else "intermediate_size": text.intermediate,
            "num_hidden_layers": text.layers,
            "num_attention_heads": text.heads,
            "num_key_value_heads": text.key_heads,
            "vocab_size": text.vocabulary,
            "tie_word_embeddings": text.tied,
            **({"head_dim": _HEAD_WIDTHS[text.family]} if text.family in _HEAD_WIDTHS else {}),
        },
        vision_config=_tower(text),
        tie_word_embeddings=text.tied,
    )


def _tower(text: _Text) -> dict[str, Any]:
    if text.family == "qwen2_vl":
        return {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "hidden_size": text.hidden}
    if text.family == "qwen2_5_vl":
        width = 3420 if text.hidden < 5120 else 3456
        shape = {"depth": 32, "hidden_size": 1280, "intermediate_size": width, "num_heads": 16}
        return {**shape, "fullatt_block_indexes": [7, 15, 23, 31], "out_hidden_size": text.hidden}
    if text.hidden < 4096 and text.family == "qwen3_vl":
        shape = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16}
        return {**shape, "deepstack_visual_indexes": [5, 11, 17], "out_hidden_size": text.hidden}
    shape = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16}
    levels = {"deepstack_visual_indexes": [8, 16, 24]} if text.family == "qwen3_vl" else {}
    return {**shape, **levels, "out_hidden_size": text.hidden}
