"""A model folder of either family is loaded, or rejected with path and remedy."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from arpo.config import ModelConfig
from arpo.errors import UserError
from arpo.models.families import VisionLanguageModel, head_width
from arpo.models.loading import (
    check_compatible,
    load_model,
    load_renderer,
    read_config,
    resolve_device,
    resolve_model,
)
from arpo.prompts.rendering import Renderer
from tiny_vlm import (
    EACH_FAMILY,
    FAMILIES,
    QWEN2_5,
    QWEN3,
    QWEN3_5,
    QWEN3_SETTINGS,
    TOKENIZER,
    save_folder,
    screenshot,
    stock_inputs,
    tiny_of,
    tiny_qwen3,
    tiny_renderer,
)

# The hub's config of Qwen2.5-VL-7B, the base of UI-TARS-1.5, with text settings at the top level.
QWEN2_5_7B = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl",
    "bos_token_id": 151643, "eos_token_id": 151645, "vision_start_token_id": 151652,
    "vision_end_token_id": 151653, "vision_token_id": 151654, "image_token_id": 151655,
    "video_token_id": 151656, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
    "intermediate_size": 18944, "max_position_embeddings": 128000, "max_window_layers": 28,
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "sliding_window": 32768, "use_sliding_window": False, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 152064,
    "vision_config": {
        "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
        "in_chans": 3, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2,
        "spatial_patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip
QWEN3_4B = {
    "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
    "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652,
    "vision_end_token_id": 151653, "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text", "attention_bias": False, "dtype": "bfloat16", "eos_token_id": 151645,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 9728,
        "max_position_embeddings": 262144, "num_attention_heads": 32, "num_hidden_layers": 36,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 5000000, "vocab_size": 151936,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "tie_word_embeddings": True,
    },
    "vision_config": {
        "model_type": "qwen3_vl", "depth": 24, "deepstack_visual_indexes": [5, 11, 17], "hidden_size": 1024,
        "hidden_act": "gelu_pytorch_tanh", "intermediate_size": 4096, "num_heads": 16,
        "out_hidden_size": 2560, "num_position_embeddings": 2304, "patch_size": 16, "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        family: save_folder(tiny_of(family, stock=True), tmp_path_factory.mktemp(family))
        for family in FAMILIES
    }


@pytest.fixture
def folder(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(folders[QWEN3], tmp_path / "model")


def load(folder: Path, **settings: Any) -> VisionLanguageModel:
    return load_model(ModelConfig(path=str(folder), device="cpu", **settings), 0)


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(folder))
    return message.removeprefix(str(folder))


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_a_loaded_model_gives_the_logits_of_plain_transformers(family: str, folders: dict[str, Path]) -> None:
    ours = load(folders[family])
    stock = AutoModelForImageTextToText.from_pretrained(folders[family], dtype=torch.float32)
    renderer = tiny_renderer(family)
    message = [renderer._ids["<|vision_start|>"], *[renderer.image_token_id] * 12, 40, 41, 42]
    inputs = stock_inputs(renderer, message, [screenshot(0)])
    with torch.no_grad():
        torch.testing.assert_close(ours(**inputs).logits, stock(**inputs).logits, atol=2e-5, rtol=0)
    assert not ours.training


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_a_folder_in_shards_is_the_same_model(family: str, folders: dict[str, Path], tmp_path: Path) -> None:
    tiny_of(family, stock=True).save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 3
    whole, sharded = load(folders[family]).state_dict(), load(tmp_path).state_dict()
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


@pytest.mark.parametrize("stored_twice", [False, True])
def test_a_tied_head_is_the_embedding(stored_twice: bool, tmp_path: Path) -> None:
    model = tiny_qwen3(stock=True, tied=True)
    save_folder(model, tmp_path)
    if stored_twice:
        weights = load_file(tmp_path / "model.safetensors")
        embedding = weights["model.language_model.embed_tokens.weight"]
        save_file(weights | {"lm_head.weight": embedding.clone()}, tmp_path / "model.safetensors")
    loaded = load(tmp_path)
    assert loaded.lm_head.weight is loaded.model.language_model.embed_tokens.weight
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_the_hubs_older_layout_of_config_and_weights(folders: dict[str, Path], tmp_path: Path) -> None:
    stored = load_file(folders[QWEN2_5] / "model.safetensors")
    older = {
        name.replace("model.visual.", "visual.").replace("model.language_model.", "model."): weight
        for name, weight in stored.items()
    }
    assert "model.embed_tokens.weight" in older
    save_file(older, tmp_path / "model.safetensors")
    config = json.loads((folders[QWEN2_5] / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    del text["model_type"], text["layer_types"]
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    flat = config | text | {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    ours, theirs = load(tmp_path), load(folders[QWEN2_5])
    assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
    assert torch.equal(
        ours.model.language_model.rotary_emb.inv_freq, theirs.model.language_model.rotary_emb.inv_freq
    )


@pytest.mark.parametrize(
    ("content", "parameters", "width", "theta"),
    [(QWEN2_5_7B, 8_292_166_656, 128, 1e6), (QWEN3_4B, 4_437_815_808, 128, 5e6)],
    ids=["Qwen2.5-VL-7B", "Qwen3-VL-4B"],
)
def test_configurations_of_the_hub(
    content: dict[str, Any], parameters: int, width: int, theta: float, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    config = read_config(tmp_path)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert head_width(config.text_config) == width
    assert config.text_config.rope_parameters["rope_theta"] == theta


def test_weights_that_predict_several_tokens_are_left_out(folders: dict[str, Path], tmp_path: Path) -> None:
    """Published models of Qwen3.5 have them (mtp.*); transformers has no module for them."""
    folder = shutil.copytree(folders[QWEN3_5], tmp_path / "model")
    stored = load_file(folder / "model.safetensors")
    save_file(stored | {"mtp.fc.weight": torch.ones(2, 2)}, folder / "model.safetensors")
    assert load(folder).state_dict().keys() == load(folders[QWEN3_5]).state_dict().keys()
    save_file(stored | {"more.weight": torch.ones(2, 2)}, folder / "model.safetensors")
    assert "1 weights do not match config.json, first more.weight" in refused(folder)


def test_dtype_is_the_one_asked_for(folders: dict[str, Path]) -> None:
    for family in FAMILIES:
        assert load(folders[family], dtype="bfloat16").dtype == torch.bfloat16
    with pytest.raises(UserError, match=r"model.dtype = 'float8': use one of float32, bfloat16"):
        load(folders[QWEN3], dtype="float8")


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_random_weights_need_only_the_configuration(
    family: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copy(folders[family] / "config.json", tmp_path)
    settings = ModelConfig(path=str(tmp_path), device="cpu", dtype="bfloat16", weights="random")
    before = torch.random.get_rng_state()
    first, again, other = (load_model(settings, seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.dtype == torch.bfloat16
    assert not first.training
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    stored = load(folders[family])
    assert [tuple(p.shape) for p in first.parameters()] == [tuple(p.shape) for p in stored.parameters()]
    tied = first.lm_head.weight is first.model.language_model.embed_tokens.weight
    assert tied == stored.config.tie_word_embeddings


def test_a_path_without_a_folder_is_an_error(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere") == (
        ": not found; model.path needs 'base', a Hugging Face model folder, or ORG/NAME of the hub"
    )
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file").startswith(": is not a folder; model.path needs")
    assert refused(tmp_path).startswith("/config.json: not found; model.path needs 'base', ")


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [("llama", "another kind of model"), ("qwen3_vl_moe", "a mixture of experts"), (None, "another kind")],
)
def test_another_kind_of_model_is_refused(model_type: str | None, kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    message = refused(tmp_path)
    assert f"model_type is {model_type!r}, {kind}" in message
    assert message.endswith("supported are qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_5, qwen3_5_moe")


def test_a_config_that_cannot_be_read_is_refused(folder: Path) -> None:
    config = folder / "config.json"
    for content, reason in (("[]", "must be an object, not list"), ("{", "not JSON")):
        config.write_text(content)
        assert refused(folder).startswith(f"/config.json: {reason}")
    config.write_text(json.dumps({"model_type": "qwen3_vl", "text_config": {"hidden_size": "wide"}}))
    assert refused(folder).startswith("/config.json: not a configuration of qwen3_vl (")


def test_untrainable_models_are_refused(folder: Path, folders: dict[str, Path]) -> None:
    rewrite(folder / "config.json", quantization_config={"quant_method": "fp8"})
    assert "quantised weights cannot be trained" in refused(folder)
    config = json.loads((folders[QWEN2_5] / "config.json").read_text())
    config["text_config"]["layer_types"] = ["full_attention", "sliding_attention"]
    (folder / "config.json").write_text(json.dumps(config))
    assert "sliding-window attention is not supported" in refused(folder)
    config = json.loads((folders[QWEN3_5] / "config.json").read_text())
    text = config["text_config"]
    text["layer_types"] = ["linear_attention"] * text["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    assert "no layer has full attention" in refused(folder)


def test_pickled_weights_are_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert refused(folder) == (
        ": no weights; a model needs model.safetensors, or model.safetensors.index.json and its files"
    )
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    assert refused(folder).startswith(": only pickled weights (pytorch_model.bin), which ARPO never opens; ")


def test_code_in_a_folder_is_not_run(folder: Path) -> None:
    rewrite(
        folder / "config.json",
        auto_map={"AutoConfig": "own.Config", "AutoModelForImageTextToText": "own.Model"},
    )
    (folder / "own.py").write_text("raise SystemExit('ran')\nclass Config: ...\nclass Model: ...\n")
    assert load(folder).config.model_type == QWEN3
    assert load(folder, weights="random").config.model_type == QWEN3


def test_adapters_alone_are_no_model(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    assert refused(folder).startswith(": no weights; a model needs model.safetensors")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    tiny_qwen3(stock=True).save_pretrained(tmp_path, max_shard_size="200KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    shards[1].unlink()
    assert refused(tmp_path) == (
        f"/model.safetensors.index.json: 1 of {len(shards)} listed files are missing, "
        f"first {shards[1].name}; download them"
    )
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert refused(tmp_path) == "/model.safetensors.index.json: has no weight_map; download it again"


@pytest.mark.parametrize("kept", [0, 5, 1000, -1])
def test_weights_cut_short_are_refused(kept: int, folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    message = refused(folder)
    assert message.startswith("/model.safetensors: incomplete or damaged safetensors file (")
    assert message.endswith("); download it again")


def test_missing_weights_are_not_initialised(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = 5
    (folder / "config.json").write_text(json.dumps(config))
    assert refused(folder).startswith(": 11 weights do not match config.json, first ")
    config["text_config"]["num_hidden_layers"] = 3
    (folder / "config.json").write_text(json.dumps(config))
    assert refused(folder).startswith(": 11 weights do not match config.json, first ")


def test_weights_of_other_shapes_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["num_key_value_heads"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    assert refused(folder) == (
        ": 8 weights do not match config.json, first "
        "model.language_model.layers.0.self_attn.k_proj.weight is [48, 64], not [24, 64]"
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "preprocessor_config.json"])
def test_a_missing_file_is_named_before_weights_are_read(name: str, folder: Path) -> None:
    settings = ModelConfig(path=str(folder))
    assert load_renderer(settings).settings == replace(QWEN3_SETTINGS, min_pixels=settings.min_pixels)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"model/{name}: not found"):
        load_renderer(settings)


def test_tokenizer_and_image_settings_must_be_the_models(folders: dict[str, Path]) -> None:
    model = load(folders[QWEN3])
    check_compatible(model, Renderer.from_folder(folders[QWEN3]))
    with pytest.raises(UserError, match=r"needs patch, merge and temporal sizes \[16, 2, 2\].*\[14, 2, 2\]"):
        check_compatible(model, Renderer.from_folder(folders[QWEN2_5]))
    model.config.text_config.vocab_size -= 1
    with pytest.raises(UserError, match=f"the tokenizer has {TOKENIZER.get_vocab_size()}: use the files"):
        check_compatible(model, Renderer.from_folder(folders[QWEN3]))


def test_names_of_models_and_devices() -> None:
    assert resolve_model("./models/mine") == Path("models/mine")
    try:
        assert resolve_model("base").parts[-3:] == ("desk", "base_model", "weights")
    except UserError as error:
        assert "reinstall" in str(error)
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="torch finds no CUDA device here; use 'auto' or 'cpu'"):
        resolve_device("cuda")
