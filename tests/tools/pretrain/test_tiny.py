"""The folder of a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.nn.functional import softplus

from tools.pretrain.tiny import new_tiny_model, save_model_folder, tiny_config
from tools.pretrain.tokenizer import ACTION_PHRASES, build_tokenizer, special_ids


@pytest.mark.parametrize(
    ("family", "processor", "states"),
    [("qwen2_5_vl", "Qwen2_5_VLProcessor", None), ("qwen3_5", "Qwen3VLProcessor", "float32")],
)
def test_other_libraries_find_the_processor_and_the_precision_of_states(
    family: str, processor: str, states: str | None, tmp_path: Path
) -> None:
    tokenizer = build_tokenizer(ACTION_PHRASES, ["open"], 20)
    config = tiny_config(tokenizer.get_vocab_size(), special_ids(tokenizer), family=family, hidden=64)
    save_model_folder(new_tiny_model(config, 0), tokenizer, tmp_path)
    images, model = (
        json.loads((tmp_path / name).read_text()) for name in ("preprocessor_config.json", "config.json")
    )
    assert images["processor_class"] == processor
    assert model["text_config"].get("mamba_ssm_dtype") == states


def test_heads_of_linear_attention_begin_with_memories_of_10_to_1000_tokens() -> None:
    tokenizer = build_tokenizer(ACTION_PHRASES, ["open"], 20)
    config = tiny_config(tokenizer.get_vocab_size(), special_ids(tokenizer), family="qwen3_5")
    model = new_tiny_model(config, 0)
    linear, full, *_ = model.model.language_model.layers
    mixer = linear.linear_attn
    forgotten = mixer.A_log.exp() * softplus(mixer.dt_bias)  # by a token whose in_proj_a is 0
    assert (1 / forgotten).tolist() == pytest.approx([10, 46.416, 215.443, 1000], rel=1e-3)
    assert not hasattr(full, "linear_attn")
    assert config.text_config.layer_types == ["linear_attention", "full_attention"] * 2
