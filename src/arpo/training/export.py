"""Exports the model of a run as a Hugging Face folder, which other tools load without this package.

The adapters of a LoRA run are merged into the weights, or written separately in PEFT's layout:
adapter_model.safetensors has base_model.model.LAYER.lora_A.weight [r, in] and .lora_B.weight [out, r], and
adapter_config.json has r and lora_alpha. The weight of the layer becomes W + lora_alpha / r · B A.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from arpo.config import Config, ModelConfig
from arpo.errors import UserError
from arpo.learner.saved_state import COUNTERS_FILE, WEIGHTS_FILE, load_tensors, writing_tensors
from arpo.models.loading import DTYPES, load_model, resolve_model
from arpo.models.lora import adapter_weights, merge
from arpo.models.trainable import frozen_fingerprint, set_trainable
from arpo.recipe import load_config
from arpo.storage.checkpoint import CHECKPOINTS, LEARNER, MANIFEST, Checkpoint, find_damage, latest, step_of
from arpo.storage.files import naming
from arpo.storage.run_folder import RECIPE

# Not copied from the base model: its weights, its model card, pickles and code.
NOT_COPIED = (".safetensors", ".md", ".bin", ".pt", ".pth", ".py")
RESTORE_OR_OTHER = "restore it, or export another checkpoint"
ADAPTERS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"


def export_model(source: Path, out: Path, dtype: str, *, merged: bool) -> Path:
    """Write a model to `out`. `source` is a run (its newest checkpoint), a checkpoint, or a model folder."""
    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}: use one of {', '.join(DTYPES)}")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UserError(f"{out}: exists and is not empty. Name a new folder")
    config, checkpoint = _find(source)
    if not merged and (checkpoint is None or config.model.train != "lora"):
        raise UserError(f"{source}: has no adapters to write separately. Leave out --no-merge")
    model = load_model(config.model, config.run.seed)
    if checkpoint is not None:
        set_trainable(model, config.model, config.run.seed)
        _fill(model, checkpoint / LEARNER)
    try:
        with writing_tensors(out), naming(out):
            out.mkdir(parents=True, exist_ok=True)
            if merged:
                _write_model(model, resolve_model(config.model.path), out, DTYPES[dtype])
            else:
                _write_adapters(model, config.model, out, DTYPES[dtype])
    except OSError:
        shutil.rmtree(out, ignore_errors=True)  # a part of a model would be in the way of the next attempt
        raise
    return out


def _write_model(model: Any, base: Path, out: Path, dtype: torch.dtype) -> None:
    for path in base.iterdir():
        if path.is_file() and path.suffix not in NOT_COPIED and not path.name.endswith(".index.json"):
            shutil.copy2(path, out / path.name)
    merge(model, dtype)
    model.save_pretrained(out)


def _write_adapters(model: Any, settings: ModelConfig, out: Path, dtype: torch.dtype) -> None:
    adapters = adapter_weights(model)
    weights = {
        f"base_model.model.{name}.lora_{which}.weight": matrix.to(dtype).contiguous()
        for name, pair in adapters.items()
        for which, matrix in zip("AB", pair, strict=True)
    }
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(resolve_model(settings.path)),
        "r": settings.lora_rank,
        "lora_alpha": settings.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(adapters),
    }
    save_file(weights, out / ADAPTERS, metadata={"format": "pt"})
    (out / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _find(source: Path) -> tuple[Config, Path | None]:
    """(recipe of the base model, checkpoint with the trained weights or None)."""
    if (source / RECIPE).is_file():
        found, damaged = latest(source / CHECKPOINTS)
        if found is None:
            raise UserError(
                f"{source}: this run has no intact checkpoint: "
                + "".join(f"{line}; " for line in damaged)
                + "train it first, or restore a checkpoint"
            )
        return _on_cpu(load_config(source / RECIPE)), found.path
    if (source / MANIFEST).is_file():
        step = step_of(source.resolve())
        if step is None:
            raise UserError(f"{source}: the folder of a checkpoint must be named step-NUMBER: rename it")
        if reason := find_damage(Checkpoint(step=step, path=source)):
            raise UserError(f"{source}: this checkpoint is damaged: {reason}: {RESTORE_OR_OTHER}")
        return _on_cpu(load_config(source.resolve().parents[1] / RECIPE)), source
    if (source / "config.json").is_file():
        folder = str(source.resolve())  # absolute: "base" alone would mean the shipped model
        return _on_cpu(replace(Config(), model=ModelConfig(path=folder))), None
    raise UserError(f"{source}: is not a run folder, a checkpoint or a model folder")


def _on_cpu(config: Config) -> Config:
    return replace(config, model=replace(config.model, device="cpu"))


@torch.no_grad()
def _fill(model: nn.Module, folder: Path) -> None:
    """Load the weights of a checkpoint. Frozen weights must equal those that it was trained with."""
    frozen = frozen_fingerprint(model)
    try:
        weights = load_tensors(folder, WEIGHTS_FILE)
        saved = json.loads((folder / COUNTERS_FILE).read_text(encoding="utf-8"))["frozen"] if frozen else ""
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{folder}: damaged, {error}: {RESTORE_OR_OTHER}") from error
    if saved != frozen:
        raise UserError(f"{folder}: was trained with other frozen weights than model.path has now")
    parameters = dict(model.named_parameters())
    for name, weight in weights.items():
        if name not in parameters or parameters[name].shape != weight.shape:
            raise UserError(f"{folder}: {name} does not fit the model of the run's recipe")
        parameters[name].copy_(weight)
