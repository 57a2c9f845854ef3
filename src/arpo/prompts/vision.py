"""Image preprocessing: resizes screenshots to the model's size and cuts them into patches.

Values and order equal those of the Qwen-VL image processor (a test compares them). It handles single images
without torchvision. Patches are not cached: those of one 1920x1080 screenshot take 51 MB.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from arpo.errors import UserError
from arpo.png import rgb
from arpo.types import MAX_ASPECT_RATIO, Screenshot

Grid = tuple[int, int, int]  # (1, rows of patches, columns of patches)

CONFIG_NAME = "preprocessor_config.json"
NEWER_NAME, NEWER_KEY = "processor_config.json", "image_processor"  # the whole processor in one file


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """The image settings of a model. Only the pixel limits may be changed by a recipe."""

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def from_folder(
        cls, folder: Path | str, min_pixels: int | None = None, max_pixels: int | None = None
    ) -> ImageSettings:
        """Read them from a model folder. `min_pixels` and `max_pixels` override its limits."""
        path = config_path(folder)
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            found: dict[str, Any] = read[NEWER_KEY] if path.name == NEWER_NAME else read
            limits = (found.get("size") or {}) | found  # the keys differ between transformers versions
            return cls(
                patch_size=found["patch_size"],
                merge_size=found["merge_size"],
                temporal_patch_size=found["temporal_patch_size"],
                min_pixels=min_pixels or limits.get("min_pixels") or limits["shortest_edge"],
                max_pixels=max_pixels or limits.get("max_pixels") or limits["longest_edge"],
                mean=tuple(found["image_mean"]),
                std=tuple(found["image_std"]),
            )
        except FileNotFoundError:
            raise UserError(f"{path}: not found. A model folder needs its image settings") from None
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{path}: not the image settings of a Qwen-VL model ({error!r})") from error

    @property
    def side(self) -> int:
        """Side length (pixels) of the square that becomes one image token."""
        return self.patch_size * self.merge_size


def config_path(folder: Path | str) -> Path:
    """The file with the image settings, chosen as transformers 5 does: the newer file if it has some."""
    newer = Path(folder) / NEWER_NAME
    try:
        has_settings = NEWER_KEY in json.loads(newer.read_text(encoding="utf-8"))
    except (FileNotFoundError, TypeError, ValueError):
        has_settings = False
    return newer if has_settings else Path(folder) / CONFIG_NAME


def write_pixel_limits(folder: Path, min_pixels: int, max_pixels: int) -> None:
    """Change the pixel limits in the image settings of a model folder."""
    path = config_path(folder)
    read = json.loads(path.read_text(encoding="utf-8"))
    settings = read[NEWER_KEY] if path.name == NEWER_NAME else read
    # Versions of transformers read one pair or the other.
    settings["size"] = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
    settings |= {"min_pixels": min_pixels, "max_pixels": max_pixels}
    path.write_text(json.dumps(read, indent=2) + "\n", encoding="utf-8")


@lru_cache(maxsize=256)
def target_size(width: int, height: int, settings: ImageSettings) -> tuple[int, int]:
    """(width, height) for the model: multiples of `side` within the pixel limits, at nearly the same ratio.

    >>> target_size(1920, 1080, settings)
    (1932, 1092)
    """
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise UserError(
            f"an image of {width}x{height} is too narrow: one side is over {MAX_ASPECT_RATIO} times the other"
        )
    side = settings.side
    fit_w, fit_h = round(width / side) * side, round(height / side) * side
    if fit_w * fit_h > settings.max_pixels:
        shrink = math.sqrt(width * height / settings.max_pixels)
        fit_w = max(side, math.floor(width / shrink / side) * side)
        fit_h = max(side, math.floor(height / shrink / side) * side)
    elif fit_w * fit_h < settings.min_pixels:
        grow = math.sqrt(settings.min_pixels / (width * height))
        fit_w = math.ceil(width * grow / side) * side
        fit_h = math.ceil(height * grow / side) * side
    return fit_w, fit_h


def grid(width: int, height: int, settings: ImageSettings) -> Grid:
    fit_w, fit_h = target_size(width, height, settings)
    return 1, fit_h // settings.patch_size, fit_w // settings.patch_size


def image_tokens(grid: Grid, settings: ImageSettings) -> int:
    """Number of image tokens of a grid."""
    return math.prod(grid) // settings.merge_size**2


def patchify(screenshot: Screenshot, settings: ImageSettings) -> NDArray[np.float32]:
    """Patches of one screenshot: [rows * columns, channels * temporal * patch * patch]."""
    return patchify_pixels(pixels(screenshot, settings)[None], settings)[0]


def pixels(screenshot: Screenshot, settings: ImageSettings) -> NDArray[np.uint8]:
    """The screenshot, resized for the model: [height, width, 3]."""
    image = rgb(screenshot)
    size = target_size(*image.size, settings)
    return np.array(image if image.size == size else image.resize(size, Image.Resampling.BICUBIC))


@overload
def patchify_pixels(pixels: NDArray[np.uint8], settings: ImageSettings) -> NDArray[np.float32]: ...


@overload
def patchify_pixels(pixels: torch.Tensor, settings: ImageSettings) -> torch.Tensor: ...


def patchify_pixels(
    pixels: NDArray[np.uint8] | torch.Tensor, settings: ImageSettings
) -> NDArray[np.float32] | torch.Tensor:
    """Patches of resized images: uint8 [N, H, W, 3] → float32 [N, patches, features].

    An array gives an array. A tensor gives a tensor on the same device. The patches of one image token are
    adjacent. A patch holds its channels in turn, each repeated along time.
    """
    if isinstance(pixels, np.ndarray):
        return patchify_pixels(torch.from_numpy(np.require(pixels, requirements="W")), settings).numpy()
    count, height, width, channels = pixels.shape
    side, patch, merge = settings.side, settings.patch_size, settings.merge_size
    if height % side or width % side:
        raise ValueError(f"{width}x{height} is not a multiple of {side} pixels per image token")
    tiles = pixels.reshape(count, height // side, merge, patch, width // side, merge, patch, channels)
    tiles = tiles.permute(0, 1, 4, 2, 5, 7, 3, 6)  # n, token row, token column, row, column, channel, y, x
    tiles = tiles.reshape(count, -1, channels, 1, patch * patch).float()
    mean, std = (
        torch.tensor(values, device=pixels.device).view(-1, 1, 1) for values in (settings.mean, settings.std)
    )
    values = torch.addcmul(-mean / std, tiles, 1 / (255 * std))
    return values.expand(-1, -1, -1, settings.temporal_patch_size, -1).flatten(2)
