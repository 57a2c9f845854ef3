"""A model folder is loaded as it is, or refused with the place and the remedy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo.errors import UserError
from arpo.models.loading import load_model, resolve_device, resolve_model
from arpo.models.tiny import save_model_folder
from tiny_vlm import TOKENIZER, screenshot, stock_inputs, tiny_model, tiny_renderer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_model_folder(tiny_model(stock=True), TOKENIZER, path, dtype=torch.float32)
    return path


def test_a_loaded_model_gives_the_logits_of_plain_transformers(folder: Path) -> None:
    ours = load_model(folder, "float32", "cpu")
    stock = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    renderer = tiny_renderer()
    shot = screenshot(0)
    message = [renderer._ids["<|vision_start|>"], *[renderer.image_token_id] * 12, 40, 41, 42]
    inputs = stock_inputs(renderer, message, [shot])
    with torch.no_grad():
        torch.testing.assert_close(ours(**inputs).logits, stock(**inputs).logits, atol=1e-5, rtol=0)
    assert not ours.training


def test_dtype_is_the_one_asked_for(folder: Path) -> None:
    assert load_model(folder, "bfloat16", "cpu").dtype == torch.bfloat16
    with pytest.raises(UserError, match=r"model.dtype = 'float8': use one of float32, bfloat16"):
        load_model(folder, "float8", "cpu")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere/config.json: not found; model.path needs 'base' or"):
        load_model(tmp_path / "nowhere", "float32", "cpu")


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UserError, match="model_type is 'llama'; only 'qwen2_5_vl' models are supported"):
        load_model(tmp_path, "float32", "cpu")


def test_a_config_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"config.json: must be an object, not list"):
        load_model(tmp_path, "float32", "cpu")


def test_pickled_weights_are_never_opened(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(UserError, match="no weights; save the model as safetensors"):
        load_model(tmp_path, "float32", "cpu")
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(
        UserError, match=r"only pickled weights \(pytorch_model.bin\), which are never opened"
    ):
        load_model(tmp_path, "float32", "cpu")


def test_damaged_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="the model cannot be loaded"):
        load_model(tmp_path, "float32", "cpu")


def test_weights_that_are_not_there_are_not_made_up(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = 3
    config["text_config"].pop("layer_types", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"weights do not fit config.json, 12 of them, first .*layers.2"):
        load_model(tmp_path, "float32", "cpu")


def test_names_of_models_and_devices() -> None:
    assert resolve_model("models/mine") == Path("models/mine")
    try:
        assert resolve_model("base").parts[-3:] == ("arpo", "models", "base")
    except UserError as error:
        assert "arpo pretrain" in str(error)
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="torch finds no CUDA device here; use 'auto' or 'cpu'"):
        resolve_device("cuda")
