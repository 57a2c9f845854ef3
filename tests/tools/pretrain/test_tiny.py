"""The folder of a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
