"""Load the model of a recipe, ready to sample and to train.

A model is a folder, "base", or a name on the Hugging Face hub (`hub`). Only safetensors are read: nothing is
unpickled, and no code of a model folder runs. Anything but a complete model of a supported family is a
`UserError` with path and remedy, if possible before gigabytes are downloaded or read.
"""

from __future__ import annotations

import copy
import json
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.utils import logging

from arpo.config import ModelConfig
from arpo.errors import BadSetting, UserError
from arpo.models import attention, float32_head, fused_ops, hub, linear_attention, vision_attention
from arpo.models.families import FAMILIES, VisionLanguageModel, full_layers
from arpo.prompts.rendering import Renderer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODEL_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
MIN_COMPILED_WIDTH = 512  # hidden size; below it, compilation (half a minute) costs more than it saves
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
MODEL_NAMES = "'base', a Hugging Face model folder, or ORG/NAME of the hub"
logging.disable_progress_bar()  # it would disturb the live display
logging.set_verbosity_error()  # we raise an error instead of its warnings


def resolve_model(path: str, *, weights: bool = False) -> Path:
    """The folder of `model.path`. Downloads a hub model; its weights only if `weights` is true."""
    if path == "base":
        folder = Path(str(resources.files("arpo"))) / "envs" / "desk" / "base_model" / "weights"
        if not folder.is_dir():
            raise UserError(f"{folder}: the shipped base model is missing; reinstall the package")
        return folder
    if (model := hub.parse_hub_model(path)) is None:
        return Path(path).expanduser()
    return hub.download(model, (*hub.DESCRIPTION, *hub.WEIGHTS) if weights else hub.DESCRIPTION)


def resolve_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"model.device = {device!r}: torch finds no CUDA device here; use 'auto' or 'cpu'")
    return device


def load_renderer(settings: ModelConfig) -> Renderer:
    """The renderer of the recipe's model. It is cheap and already rejects a folder without a model."""
    folder = resolve_model(settings.path)
    read_config(folder)
    return Renderer.from_folder(folder, settings.min_pixels, settings.max_pixels)


def load_model(settings: ModelConfig, seed: int) -> VisionLanguageModel:
    """The prepared model of the recipe. `seed` decides random weights, differently on CPU and GPU."""
    if settings.dtype not in DTYPES:
        raise UserError(f"model.dtype = {settings.dtype!r}: use one of {', '.join(DTYPES)}")
    dtype, device = DTYPES[settings.dtype], torch.device(resolve_device(settings.device))
    config = read_config(resolve_model(settings.path))
    if settings.weights == "random":
        return _with_head(prepare(_random_model(config, dtype, device, seed)), settings)
    folder = resolve_model(settings.path, weights=True)
    check_weights(folder)
    return _with_head(prepare(_stored_model(folder, config, dtype).to(device)), settings)


def meta_model(settings: ModelConfig) -> VisionLanguageModel:
    """The prepared model of the recipe on the device "meta": modules and shapes without memory."""
    config, dtype = read_config(resolve_model(settings.path)), DTYPES[settings.dtype]
    model = prepare(_random_model(config, dtype, torch.device("meta"), seed=0))
    if resolve_device(settings.device) != "cpu":
        _fuse(model)
    return _with_head(model, settings)


def prepare(model: VisionLanguageModel) -> VisionLanguageModel:
    """Install fast attention, bounds of packed sequences and, on a GPU, fused norms and gates."""
    attention.install(model)
    linear_attention.install(model)
    vision_attention.install(model)
    if model.device.type == "cuda":
        _fuse(model)
    return model.eval()


def _with_head(model: VisionLanguageModel, settings: ModelConfig) -> VisionLanguageModel:
    if settings.float32_head:
        float32_head.install(model)
    return model


def _fuse(model: VisionLanguageModel) -> None:
    if model.config.text_config.hidden_size >= MIN_COMPILED_WIDTH:
        fused_ops.install(model, compiled=True)


def read_config(folder: Path) -> Any:
    """The transformers configuration of a supported model."""
    path = folder / "config.json"
    if not folder.is_dir():
        reason = "is not a folder" if folder.exists() else "not found"
        raise UserError(f"{folder}: {reason}; model.path needs {MODEL_NAMES}")
    if not path.is_file():
        raise UserError(f"{path}: not found; model.path needs {MODEL_NAMES}")
    found = _read_json_object(path)
    if (model_type := found.get("model_type")) not in FAMILIES:
        kind = "a mixture of experts" if "moe" in str(model_type) else "another kind of model"
        raise UserError(f"{path}: model_type is {model_type!r}, {kind}; supported are {', '.join(FAMILIES)}")
    if "quantization_config" in found:
        raise UserError(f"{path}: quantised weights cannot be trained; use the original, unquantised model")
    try:
        config = copy.deepcopy(_parse_config(folder, json.dumps(found)))
    except Exception as error:  # any error of the library means an invalid configuration
        raise UserError(f"{path}: not a configuration of {model_type} ({_single_line(error)})") from error
    if "sliding_attention" in (getattr(config.text_config, "layer_types", None) or ()):
        raise UserError(f"{path}: sliding-window attention is not supported; use a model without it")
    if not full_layers(config.text_config):
        raise UserError(f"{path}: no layer has full attention, which ARPO needs; use another model")
    return config


def check_trainable(settings: ModelConfig) -> None:
    """Raise `UserError` if ARPO does not train these weights of the model."""
    folder = resolve_model(settings.path)
    if settings.train != "lora" and hasattr(read_config(folder).text_config, "num_experts"):
        raise BadSetting(
            "model.train",
            f"is {settings.train!r}, and {folder} is a mixture of experts: only adapters train; use 'lora'",
        )


@lru_cache(maxsize=8)
def _parse_config(folder: Path, content: str) -> Any:
    """The library checks each field slowly, and the start of a run reads the same file three times.

    `content` is that of config.json.
    """
    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def check_weights(folder: Path) -> None:
    """Raise `UserError` if a file of weights is missing or damaged."""
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{path}: incomplete or damaged safetensors file ({_single_line(error)}); download it again"
            ) from error


def check_compatible(model: VisionLanguageModel, renderer: Renderer) -> None:
    """Raise `UserError` if tokenizer or image settings belong to another model."""
    tower, settings = model.config.vision_config, renderer.settings
    expected = [tower.patch_size, tower.spatial_merge_size, tower.temporal_patch_size]
    found = [settings.patch_size, settings.merge_size, settings.temporal_patch_size]
    if found != expected:
        raise UserError(
            f"the model needs patch, merge and temporal sizes {expected}, the image settings have {found}: "
            "use the files of one model folder"
        )
    if renderer.vocab_size > (rows := model.config.text_config.vocab_size):
        raise UserError(
            f"the model has {rows} tokens, the tokenizer has {renderer.vocab_size}: "
            "use the files of one model folder"
        )


def _weight_files(folder: Path) -> list[Path]:
    if (folder / MODEL_FILE).is_file():
        return [folder / MODEL_FILE]
    index = folder / INDEX_FILE
    if index.is_file():
        shards = _read_json_object(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise UserError(f"{index}: has no weight_map; download it again")
        files = sorted({folder / str(name) for name in shards.values()})
        if missing := [path for path in files if not path.is_file()]:
            raise UserError(
                f"{index}: {len(missing)} of {len(files)} listed files are missing, "
                f"first {missing[0].name}; download them"
            )
        return files
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    why = f"only pickled weights ({pickled[0]}), which ARPO never opens" if pickled else "no weights"
    raise UserError(f"{folder}: {why}; a model needs {MODEL_FILE}, or {INDEX_FILE} and its files")


def _stored_model(folder: Path, config: Any, dtype: torch.dtype) -> Any:
    try:
        model, report = AutoModelForImageTextToText.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # the report lists them, and we raise
            output_loading_info=True,
        )
    except Exception as error:  # any error of the library means a damaged folder
        reason = f"{type(error).__name__}: {_single_line(error)}"
        raise UserError(f"{folder}: the model cannot be loaded ({reason})") from error
    mismatched = {name: (list(found), list(expected)) for name, found, expected in report["mismatched_keys"]}
    wrong = sorted({*mismatched, *report["missing_keys"], *report["unexpected_keys"]})
    if wrong:
        shapes = " is {}, not {}".format(*mismatched[wrong[0]]) if wrong[0] in mismatched else ""
        raise UserError(f"{folder}: {len(wrong)} weights do not match config.json, first {wrong[0]}{shapes}")
    return model


def _random_model(config: Any, dtype: torch.dtype, device: torch.device, seed: int) -> Any:
    """Initialise on the target device in the final precision; the global random state does not change."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        return AutoModelForImageTextToText.from_config(
            config, dtype=dtype, attn_implementation="sdpa", trust_remote_code=False
        )


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: must be an object, not {type(found).__name__}")
    return found


def _single_line(error: Exception) -> str:
    return " ".join(str(error).split())
