"""The tiny model's folder loads with plain transformers."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from arpo.prompts.vision import ImageSettings, patchify_pixels
from tools.pretrain.tiny import IMAGE_SETTINGS, new_tiny_model, save_model_folder, tiny_config
from tools.pretrain.tokenizer import ACTION_PHRASES, build_tokenizer, special_ids

TOKENIZER = build_tokenizer(ACTION_PHRASES, ["Click", "Save"], 225)


def new_model(seed: int) -> Qwen2_5_VLForConditionalGeneration:
    config = tiny_config(
        TOKENIZER.get_vocab_size(),
        special_ids(TOKENIZER),
        hidden=64,
        layers=2,
        vision_hidden=64,
        vision_layers=2,
    )
    return new_tiny_model(config, seed)


@pytest.fixture(scope="module")
def model() -> Qwen2_5_VLForConditionalGeneration:
    return new_model(0).eval()


@pytest.fixture(scope="module")
def folder(model: Qwen2_5_VLForConditionalGeneration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_model_folder(model, TOKENIZER, path, dtype=torch.float16, settings=IMAGE_SETTINGS)
    return path


def test_plain_transformers_loads_the_rounded_weights(
    model: Qwen2_5_VLForConditionalGeneration, folder: Path
) -> None:
    loaded = AutoModelForImageTextToText.from_pretrained(folder)
    assert loaded.dtype == torch.float16
    assert loaded.lm_head.weight.data_ptr() == loaded.get_input_embeddings().weight.data_ptr()
    theirs = loaded.state_dict()
    assert all(torch.equal(theirs[name], weight.half()) for name, weight in model.state_dict().items())
    assert loaded.generation_config.eos_token_id == special_ids(TOKENIZER)["<|im_end|>"]


def test_tied_weights_are_stored_once(model: Qwen2_5_VLForConditionalGeneration, folder: Path) -> None:
    parameters = sum(weight.numel() for weight in model.parameters())
    assert 0 < (folder / "model.safetensors").stat().st_size - 2 * parameters < 16_000


def test_saving_leaves_the_model_alone(model: Qwen2_5_VLForConditionalGeneration, folder: Path) -> None:
    assert model.dtype == torch.float32
    assert model.config.image_token_id == special_ids(TOKENIZER)["<|image_pad|>"]


def test_loaded_model_computes_the_same_logits(
    model: Qwen2_5_VLForConditionalGeneration, folder: Path, tmp_path: Path
) -> None:
    save_model_folder(model, TOKENIZER, tmp_path, dtype=torch.float32, settings=IMAGE_SETTINGS)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    assert loaded.dtype == torch.float32
    image = np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)
    processed = Qwen2VLImageProcessorPil.from_pretrained(folder)(
        images=[Image.fromarray(image)], return_tensors="pt"
    )
    ours = torch.from_numpy(patchify_pixels(image[None], IMAGE_SETTINGS)[0])
    torch.testing.assert_close(ours, processed["pixel_values"], atol=1e-6, rtol=0)
    ids = special_ids(TOKENIZER)
    tokens = [ids["<|vision_start|>"], *[ids["<|image_pad|>"]] * 6, ids["<|vision_end|>"], 300]
    inputs = {
        "input_ids": torch.tensor([tokens]),
        "mm_token_type_ids": torch.tensor([[0, *[1] * 6, 0, 0]]),
        "image_grid_thw": processed["image_grid_thw"],
    }
    with torch.no_grad():
        expected = model(pixel_values=ours, **inputs).logits
        torch.testing.assert_close(loaded(pixel_values=ours, **inputs).logits, expected)
        darker = model(pixel_values=ours - 1, **inputs).logits
    assert not torch.allclose(darker[0, -1], expected[0, -1], atol=1e-3)


def test_tokenizer_loads_and_cuts_as_ours_does(folder: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(folder)
    text = "Thought: Click Save\nAction: click(start_box='(105,63)')<|im_end|>"
    assert loaded(text).input_ids == TOKENIZER.encode(text).ids
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|endoftext|>")
    messages = [{"role": "user", "content": [{"type": "text", "text": "At: "}, {"type": "image"}]}]
    rendered = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|im_start|>user\nAt: <|vision_start|><|image_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n"
    )


def test_image_settings_are_in_the_folder(folder: Path) -> None:
    assert ImageSettings.from_folder(folder) == IMAGE_SETTINGS


def test_the_default_size_in_half_precision_fits_the_repository() -> None:
    model = new_tiny_model(tiny_config(TOKENIZER.get_vocab_size(), special_ids(TOKENIZER)), 0)
    assert 2_000_000 < sum(weight.numel() for weight in model.parameters()) < 4_000_000


def test_first_weights_are_scaled_by_their_fan_in(model: Qwen2_5_VLForConditionalGeneration) -> None:
    layer = model.model.language_model.layers[0]
    assert layer.mlp.down_proj.weight.std().item() == pytest.approx(1 / math.sqrt(192), rel=0.05)
    assert model.model.visual.patch_embed.proj.weight.std().item() == pytest.approx(
        1 / math.sqrt(1176), rel=0.05
    )
    assert model.get_input_embeddings().weight.std().item() == pytest.approx(0.06, rel=0.05)
    assert layer.self_attn.q_proj.bias.abs().max().item() == 0
    assert layer.input_layernorm.weight.eq(1).all()


def test_the_seed_alone_decides_the_weights(model: Qwen2_5_VLForConditionalGeneration) -> None:
    before = torch.random.get_rng_state()
    same, other = new_model(0), new_model(1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    assert not torch.equal(same.get_input_embeddings().weight, other.get_input_embeddings().weight)
