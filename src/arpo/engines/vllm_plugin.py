"""Runs inside all processes of vLLM 0.32: corrects a fault that ends a server; prepares screenshots faster.

vLLM loads it as a plug-in; `serving/vllm_server.py` registers it.

The fault: the scheduler sends a screenshot to the workers only if the prefix cache does not cover it. If a
running request is then preempted, because the cache is full or was reset for new weights, the screenshot is
computed again. The workers do not have it, and the engine ends. The correction sends all screenshots.

The speed: one thread of a server prepares all screenshots, and one of 1920x1080 takes it 0.18 s. With 32
episodes, the GPU waits for it. Here, the threads that decompress screenshots also resize them, and pixels
stay bytes until the GPU normalizes them: 0.05 s remain, and a screenshot takes half the memory. The model
gets the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from arpo.prompts.vision import ImageSettings, target_size

LIMITS = "arpo_limits"  # the arguments of ImageSettings, in vLLM's settings of images


def register() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from vllm.multimodal.media.image import ImageMediaIO  # type: ignore[import-not-found]
    from vllm.v1.core.sched import output  # type: ignore[import-not-found]

    assert hasattr(output, "strip_covered_mm_data"), "another version of vLLM: check if this is still needed"
    output.strip_covered_mm_data = _keep_all
    ImageMediaIO._convert_image_mode = _resize_after(ImageMediaIO._convert_image_mode)
    Qwen2VLImageProcessorPil.patchify = _bytes_or(Qwen2VLImageProcessorPil.patchify)


def _keep_all(mm_features: Any, num_computed_tokens: int, uses_mrope: bool = False) -> Any:
    return mm_features


def _resize_after(convert: Callable[..., Image.Image]) -> Callable[..., Image.Image]:
    """vLLM's resizing then finds the size that it wants."""

    def converted(self: Any, image: Any) -> Image.Image:
        found = convert(self, image)
        limits = self.kwargs.get(LIMITS)
        size = target_size(*found.size, _settings(limits)) if limits else found.size
        return found if found.size == size else found.resize(size, Image.Resampling.BICUBIC)

    return converted


def _settings(limits: dict[str, Any]) -> ImageSettings:
    return ImageSettings(**limits | {"mean": tuple(limits["mean"]), "std": tuple(limits["std"])})


def _bytes_or(patchify: Callable[..., Any]) -> Callable[..., Any]:
    """Patches of pixels that are bytes remain bytes. `patchify` makes numbers of 32 bits of them."""

    def patches(
        self: Any, image: np.ndarray, patch_size: int, merge_size: int, temporal_patch_size: int
    ) -> tuple[np.ndarray, int, int]:
        if image.dtype != np.uint8:
            found: tuple[np.ndarray, int, int] = patchify(
                self, image, patch_size, merge_size, temporal_patch_size
            )
            return found
        channels, height, width = image.shape
        rows, columns = height // patch_size, width // patch_size
        shape = (rows // merge_size, merge_size, patch_size, columns // merge_size, merge_size, patch_size)
        # torch copies without Python's lock, and numpy with it
        tiles = torch.from_numpy(np.require(image, requirements="W")).reshape(channels, *shape)
        tiles = tiles.permute(1, 4, 2, 5, 0, 3, 6).unsqueeze(5)  # …, channel, time, y, x
        tiles = tiles.expand(*tiles.shape[:5], temporal_patch_size, *tiles.shape[6:])
        return tiles.reshape(rows * columns, -1).numpy(), rows, columns

    return patches
