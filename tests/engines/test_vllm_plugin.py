"""The plug-in for vLLM gives the model the same pixels as transformers. tests/vllm runs it in servers."""

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from arpo.engines.vllm_plugin import LIMITS, _bytes_or, _resize_after
from arpo.prompts.vision import ImageSettings

LIMIT = {"min_pixels": 3136, "max_pixels": 60_000}


def picture(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


def process(image: Image.Image, **options: bool) -> torch.Tensor:
    values: torch.Tensor = Qwen2VLImageProcessorPil(**LIMIT)(images=[image], return_tensors="pt", **options)[
        "pixel_values"
    ]
    return values


@pytest.mark.parametrize("patch_size", [14, 16])
def test_pixels_stay_bytes_and_are_the_same(monkeypatch, patch_size):
    raw = {"do_rescale": False, "do_normalize": False, "patch_size": patch_size}
    image = picture(300, 170)
    expected, normalized = process(image, **raw), process(image)
    monkeypatch.setattr(Qwen2VLImageProcessorPil, "patchify", _bytes_or(Qwen2VLImageProcessorPil.patchify))
    found = process(image, **raw)
    assert (expected.dtype, found.dtype) == (torch.float32, torch.uint8)
    assert torch.equal(found.float(), expected)
    assert torch.equal(process(image), normalized), "normalized pixels are cut as before"


@pytest.mark.parametrize("size", [(300, 170), (90, 400), (30, 20), (280, 140)])
def test_screenshots_are_resized_as_by_transformers(size):
    settings = ImageSettings(
        patch_size=14, merge_size=2, temporal_patch_size=2, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), **LIMIT
    )
    as_json = asdict(settings) | {"mean": [0.5] * 3, "std": [0.5] * 3}
    convert = _resize_after(lambda reader, image: image.convert("RGB"))
    image = picture(*size)
    resized = convert(SimpleNamespace(kwargs={LIMITS: as_json}), image)
    assert torch.equal(process(resized), process(image))
    assert resized.size[0] % 28 == 0 == resized.size[1] % 28
    assert convert(SimpleNamespace(kwargs={}), image).size == size, "for other users of the reader"
