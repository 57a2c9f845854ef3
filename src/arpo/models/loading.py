"""From a name in a recipe to a model that is ready to sample and to train.

Safetensors only: nothing is unpickled and nothing is downloaded. What is not a complete Qwen2.5-VL folder is
refused with the place and the remedy.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import torch
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.utils import logging

from arpo.errors import UserError
from arpo.models import text_attention, vision_attention

MODEL_TYPE = "qwen2_5_vl"
logging.disable_progress_bar()  # a tiny model's is noise, and would cut through the live display
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def resolve_model(path: str) -> Path:
    """The folder that a recipe means: "base" is the model shipped with the package."""
    if path != "base":
        return Path(path).expanduser()
    folder = Path(str(resources.files("arpo.models"))) / "base"
    if not folder.is_dir():
        raise UserError(f"{folder}: the shipped base model is not there; make it with `arpo pretrain`")
    return folder


def resolve_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"model.device = {device!r}: torch finds no CUDA device here; use 'auto' or 'cpu'")
    return device


def load_model(folder: Path, dtype: str, device: str) -> Qwen2_5_VLForConditionalGeneration:
    """A model in evaluation mode with its vision attention grouped; `device` may be "auto"."""
    if dtype not in DTYPES:
        raise UserError(f"model.dtype = {dtype!r}: use one of {', '.join(DTYPES)}")
    _check_folder(folder)
    try:
        model, report = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            folder,
            dtype=DTYPES[dtype],
            attn_implementation="sdpa",
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # whatever the library says about a damaged folder is about this folder
        raise UserError(f"{folder}: the model cannot be loaded ({type(error).__name__}: {error})") from error
    if wrong := sorted({*report["missing_keys"], *report["unexpected_keys"]}):
        raise UserError(f"{folder}: weights do not fit config.json, {len(wrong)} of them, first {wrong[0]}")
    return prepare(model.to(resolve_device(device)))


def prepare(model: Qwen2_5_VLForConditionalGeneration) -> Qwen2_5_VLForConditionalGeneration:
    """Give a model, however it was made, the fast attention of both towers; evaluation mode."""
    text_attention.install(model)
    vision_attention.install(model)
    return model.eval()


def _check_folder(folder: Path) -> None:
    config = folder / "config.json"
    if not config.is_file():
        raise UserError(f"{config}: not found; model.path needs 'base' or a Hugging Face model folder")
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{config}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UserError(f"{config}: must be an object, not {type(found).__name__}")
    if (model_type := found.get("model_type")) != MODEL_TYPE:
        raise UserError(f"{config}: model_type is {model_type!r}; only {MODEL_TYPE!r} models are supported")
    if "sliding_attention" in (found.get("text_config", found).get("layer_types") or ()):
        raise UserError(f"{config}: sliding-window attention is not supported; use a model without it")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(path.name for suffix in ("bin", "pt", "pth") for path in folder.glob(f"*.{suffix}"))
        why = f"only pickled weights ({pickled[0]}), which are never opened" if pickled else "no weights"
        raise UserError(f"{folder}: {why}; save the model as safetensors")
