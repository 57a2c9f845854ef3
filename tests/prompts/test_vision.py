"""Sizes, grids and patches: worked numbers, and equality with the transformers image processor."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from arpo.errors import UserError
from arpo.prompts.vision import ImageSettings, grid, image_tokens, patchify, patchify_pixels, target_size
from arpo.types import Screenshot

QWEN3_SETTINGS = ImageSettings(
    patch_size=16,
    merge_size=2,
    temporal_patch_size=2,
    min_pixels=65536,
    max_pixels=16777216,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)
SETTINGS = ImageSettings(
    patch_size=14,
    merge_size=2,
    temporal_patch_size=2,
    min_pixels=3136,
    max_pixels=2116800,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
)
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "image_mean": SETTINGS.mean,
    "image_std": SETTINGS.std,
}


def noise(width: int, height: int, *, palette: bool = False) -> Image.Image:
    pixels = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    return image.quantize(32) if palette else image


def screenshot(image: Image.Image) -> Screenshot:
    file = io.BytesIO()
    image.save(file, "PNG")
    return Screenshot.of(file.getvalue())


@pytest.mark.parametrize(
    ("width", "height", "expected", "shape", "tokens"),
    [
        (224, 168, (224, 168), (1, 12, 16), 48),
        (1920, 1080, (1932, 1092), (1, 78, 138), 2691),
        (3840, 2160, (1932, 1064), (1, 76, 138), 2622),  # too many pixels: shrunk
        (40, 20, (84, 56), (1, 4, 6), 6),  # too few: grown
    ],
)
def test_worked_sizes(
    width: int, height: int, expected: tuple[int, int], shape: tuple[int, int, int], tokens: int
) -> None:
    assert target_size(width, height, SETTINGS) == expected
    assert grid(width, height, SETTINGS) == shape
    assert image_tokens(shape, SETTINGS) == tokens


@pytest.mark.parametrize(
    ("width", "height", "expected", "shape", "tokens"),
    [
        (1920, 1080, (1920, 1088), (1, 68, 120), 2040),
        (224, 168, (320, 224), (1, 14, 20), 70),  # too few pixels: grown
        (80, 80, (256, 256), (1, 16, 16), 64),
    ],
)
def test_worked_sizes_of_qwen3(
    width: int, height: int, expected: tuple[int, int], shape: tuple[int, int, int], tokens: int
) -> None:
    assert target_size(width, height, QWEN3_SETTINGS) == expected
    assert grid(width, height, QWEN3_SETTINGS) == shape
    assert image_tokens(shape, QWEN3_SETTINGS) == tokens


@pytest.mark.parametrize("settings", [SETTINGS, QWEN3_SETTINGS], ids=["qwen2.5", "qwen3"])
@given(width=st.integers(28, 4000), height=st.integers(28, 4000))
def test_size_is_that_of_transformers(settings: ImageSettings, width: int, height: int) -> None:
    theirs = smart_resize(height, width, settings.side, settings.min_pixels, settings.max_pixels)
    assert target_size(width, height, settings) == theirs[::-1]


def test_a_ribbon_is_refused() -> None:
    with pytest.raises(ValueError, match="too narrow"):
        target_size(5000, 20, SETTINGS)


@pytest.mark.parametrize(
    ("width", "height", "palette"), [(224, 168, True), (224, 168, False), (300, 200, False), (50, 41, True)]
)
def test_patches_are_those_of_transformers(width: int, height: int, palette: bool) -> None:
    image = noise(width, height, palette=palette)
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": SETTINGS.min_pixels, "longest_edge": SETTINGS.max_pixels}
    )
    theirs = processor(images=[image], return_tensors="np")
    ours = patchify(screenshot(image), SETTINGS)
    assert ours.dtype == np.float32
    assert tuple(theirs["image_grid_thw"][0]) == grid(width, height, SETTINGS)
    np.testing.assert_allclose(ours, theirs["pixel_values"], atol=1e-6, rtol=0)


@pytest.mark.parametrize(("width", "height"), [(320, 224), (300, 333), (50, 41)])
def test_patches_of_qwen3_are_those_of_transformers(width: int, height: int) -> None:
    processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": 65536, "longest_edge": 16777216}, patch_size=16,
        image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5],
    )  # fmt: skip
    image = noise(width, height)
    theirs = processor(images=[image], return_tensors="np")
    ours = patchify(screenshot(image), QWEN3_SETTINGS)
    assert tuple(theirs["image_grid_thw"][0]) == grid(width, height, QWEN3_SETTINGS)
    assert ours.shape[1] == 3 * 2 * 16 * 16
    np.testing.assert_allclose(ours, theirs["pixel_values"], atol=1e-6, rtol=0)


def test_one_patch_by_hand() -> None:
    settings = ImageSettings(
        patch_size=1, merge_size=2, temporal_patch_size=2, min_pixels=1, max_pixels=100,
        mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0),
    )  # fmt: skip
    red = np.array([[0, 51, 102, 153], [204, 255, 0, 51]], dtype=np.uint8)
    pixels = np.stack([red, np.zeros_like(red), np.full_like(red, 255)], axis=-1)[None]
    patches = patchify_pixels(pixels, settings)[0]
    # Each patch: red twice, green twice, blue twice; the four patches of one token come first.
    np.testing.assert_allclose(patches[:, 0], [0.0, 0.2, 0.8, 1.0, 0.4, 0.6, 0.0, 0.2], atol=1e-6)
    np.testing.assert_allclose(patches[1], [0.2, 0.2, 0.0, 0.0, 1.0, 1.0], atol=1e-6)


def test_a_batch_of_frames_is_each_frame_and_a_tensor_gives_a_tensor() -> None:
    images = [noise(224, 168), noise(168, 224).transpose(Image.Transpose.ROTATE_90)]
    frames = np.stack([np.asarray(image) for image in images])
    single = np.stack([patchify(screenshot(image), SETTINGS) for image in images])
    as_array = patchify_pixels(frames, SETTINGS)
    as_tensor = patchify_pixels(torch.from_numpy(frames), SETTINGS)
    assert as_array.shape == (2, 192, 1176)
    assert isinstance(as_tensor, torch.Tensor)
    assert np.array_equal(as_array, single)
    assert np.array_equal(as_tensor.numpy(), single)


def test_frames_must_have_their_target_size() -> None:
    with pytest.raises(ValueError, match="30x28 is not a multiple of 28"):
        patchify_pixels(np.zeros((1, 28, 30, 3), dtype=np.uint8), SETTINGS)


def test_settings_come_from_the_model_folder(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    assert ImageSettings.from_folder(tmp_path, max_pixels=2116800) == SETTINGS
    assert ImageSettings.from_folder(tmp_path).max_pixels == 12845056


@pytest.mark.parametrize("names", [("shortest_edge", "longest_edge"), ("min_pixels", "max_pixels")])
@pytest.mark.parametrize("whole_processor", [False, True])
def test_settings_in_newer_forms(names: tuple[str, str], whole_processor: bool, tmp_path: Path) -> None:
    newer = {key: value for key, value in PREPROCESSOR.items() if not key.endswith("_pixels")}
    newer["size"] = dict(zip(names, (3136, 2116800), strict=True))
    if whole_processor:
        content = {"image_processor": newer, "processor_class": "Qwen3VLProcessor"}
        (tmp_path / "processor_config.json").write_text(json.dumps(content))
    else:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(newer))
    assert ImageSettings.from_folder(tmp_path) == SETTINGS


@pytest.mark.parametrize("content", [None, "{}", "not json", "[]", '{"size": 3}'])
def test_a_folder_without_settings_is_the_users_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(UserError, match=r"preprocessor_config\.json"):
        ImageSettings.from_folder(tmp_path)


def test_with_both_files_the_settings_are_those_that_transformers_reads(tmp_path: Path) -> None:
    older, newer = PREPROCESSOR | {"max_pixels": 50176}, PREPROCESSOR | {"max_pixels": 100352}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(older))
    (tmp_path / "processor_config.json").write_text('{"processor_class": "Qwen2_5_VLProcessor"}')
    assert ImageSettings.from_folder(tmp_path).max_pixels == 50176
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": newer}))
    assert ImageSettings.from_folder(tmp_path).max_pixels == 100352
    assert Qwen2VLImageProcessorPil.from_pretrained(tmp_path).size["longest_edge"] == 100352
