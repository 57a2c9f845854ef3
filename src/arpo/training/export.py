"""Exports the model of a run as a Hugging Face folder, which other tools load without this package.

The folder has the weights, the tokenizer, the chat template where transformers 5 reads it, the image settings
with the run's pixel limits, and a model card (`model_card`).
The adapters of a LoRA run are merged into the weights, or written separately in PEFT's layout.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from transformers import PROCESSOR_MAPPING

from arpo.config import Config, ModelConfig
from arpo.config.recipe import load_recorded_model
from arpo.errors import UserError
from arpo.learner.saved_state import WEIGHTS_FILE, iterate_tensors, read_counters, writing_tensors
from arpo.models.hub import parse_hub_model, pin_model
from arpo.models.loading import DTYPES, load_model, read_config, resolve_model
from arpo.models.lora import merge, peft_tensors, write_peft_config
from arpo.models.trainable import frozen_fingerprint, set_trainable
from arpo.prompts.rendering import CHAT_TEMPLATE, read_chat_template
from arpo.prompts.vision import write_pixel_limits
from arpo.storage.checkpoint import CHECKPOINTS, LEARNER, MANIFEST, Checkpoint, find_damage, latest, step_of
from arpo.storage.files import naming
from arpo.storage.published_weights import ADAPTER_FILE
from arpo.storage.run_folder import RECIPE, read_summary
from arpo.training.model_card import CARD, model_card

# Not copied from the base model: its weights, its model card, pickles and code.
NOT_COPIED = (".safetensors", ".md", ".bin", ".pt", ".pth", ".py")
RESTORE_OR_OTHER = "restore it, or export another checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model to export: the recipe with its base model, and the checkpoint with the trained weights.

    `checkpoint` is None for a model folder. `summary` is {} unless the checkpoint is the last one of a
    finished run.
    """

    config: Config
    checkpoint: Checkpoint | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)


def export_model(source: Path, out: Path, dtype: str = "", *, merged: bool, title: str = "") -> Path:
    """Write a model to `out`.

    `source` is a run (its newest checkpoint), a checkpoint, a model folder or a hub model. `dtype` is by
    default the one of the run or folder. `title` is the model's name on its card, by default the name of the
    folder.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UserError(f"{out}: exists and is not empty. Name a new folder")
    found = find_source(source, dtype, merged=merged)
    config, checkpoint = found.config, found.checkpoint
    dtype = dtype or config.model.dtype
    model = load_model(config.model, config.run.seed)
    if checkpoint is not None:
        set_trainable(model, config.model, config.run.seed)
        fill_from_checkpoint(model, checkpoint.path / LEARNER)
    card = model_card(
        title or _title(out),
        config,
        step=checkpoint.step if checkpoint else None,
        summary=found.summary,
        dtype=dtype,
        adapters=not merged,
        processor=PROCESSOR_MAPPING[type(model.config)].__name__,
    )
    try:
        with writing_tensors(out), naming(out):
            out.mkdir(parents=True, exist_ok=True)
            if merged:
                _write_model(model, resolve_model(config.model.path), out, DTYPES[dtype])
                _write_processor(config.model if checkpoint is not None else None, out)
            else:
                _write_adapters(model, config.model, out, DTYPES[dtype])
            (out / CARD).write_text(card, encoding="utf-8")
            for path in out.glob("*.safetensors"):  # the library makes them readable for the user alone
                path.chmod((out / CARD).stat().st_mode)
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


def _write_processor(settings: ModelConfig | None, out: Path) -> None:
    """Put the chat template where transformers 5 reads it, and the pixel limits of the run (if any)."""
    if (template := read_chat_template(out)) is not None:
        (out / CHAT_TEMPLATE).write_text(template, encoding="utf-8")
    if settings is not None:
        write_pixel_limits(out, settings.min_pixels, settings.max_pixels)


def _write_adapters(model: Any, settings: ModelConfig, out: Path, dtype: torch.dtype) -> None:
    adapters = {name: tensor.to(dtype).contiguous() for name, tensor in peft_tensors(model).items()}
    save_file(adapters, out / ADAPTER_FILE, metadata={"format": "pt"})
    write_peft_config(out, settings, adapters)


def find_source(source: Path, dtype: str, *, merged: bool) -> Source:
    """Check the arguments of an export, and find the model to export."""
    if dtype and dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}: use one of {', '.join(DTYPES)}")
    found = _find(source)
    if not merged and (found.checkpoint is None or found.config.model.train != "lora"):
        raise UserError(f"{source}: has no adapters to write separately. Leave out --no-merge")
    return replace(found, config=replace(found.config, model=replace(found.config.model, device="cpu")))


def _find(source: Path) -> Source:
    if (source / RECIPE).is_file():
        newest, damaged = latest(source / CHECKPOINTS)
        if newest is None:
            raise UserError(
                f"{source}: this run has no intact checkpoint: "
                + "".join(f"{line}; " for line in damaged)
                + "train it first, or restore a checkpoint"
            )
        config = load_recorded_model(source / RECIPE)
        return Source(config=config, checkpoint=newest, summary=read_summary(source))
    if (source / MANIFEST).is_file():
        step = step_of(source.resolve())
        if step is None:
            raise UserError(f"{source}: the folder of a checkpoint must be named step-NUMBER: rename it")
        checkpoint = Checkpoint(step=step, path=source)
        if reason := find_damage(checkpoint):
            raise UserError(f"{source}: this checkpoint is damaged: {reason}: {RESTORE_OR_OTHER}")
        run = source.resolve().parents[1]
        newest, _ = latest(run / CHECKPOINTS)
        is_last = newest is not None and newest.step == step
        summary = read_summary(run) if is_last else {}
        return Source(config=load_recorded_model(run / RECIPE), checkpoint=checkpoint, summary=summary)
    if (source / "config.json").is_file():
        # Absolute: "base" alone would mean the shipped model.
        return Source(config=_of_model(replace(Config(), model=ModelConfig(path=str(source.resolve())))))
    if parse_hub_model(str(source)) is not None:
        return Source(config=_of_model(pin_model(replace(Config(), model=ModelConfig(path=str(source))))))
    raise UserError(
        f"{source}: is not a run folder, a checkpoint, a model folder or ORG/NAME of the hub: check the path"
    )


def _of_model(config: Config) -> Config:
    """The config with the dtype of the stored weights: bfloat16 or, for all others, float32."""
    described = read_config(resolve_model(config.model.path))
    stored = described.dtype or described.text_config.dtype  # Qwen3.5 has it for its parts alone
    dtype: Literal["float32", "bfloat16"] = "bfloat16" if stored == torch.bfloat16 else "float32"
    return replace(config, model=replace(config.model, dtype=dtype))


def _title(out: Path) -> str:
    """The name of the folder. Every run exports to a folder "model": with that of the run, "desk/model"."""
    folder = out.resolve()
    return f"{folder.parent.name}/model" if folder.name == "model" else folder.name


@torch.no_grad()
def fill_from_checkpoint(model: nn.Module, folder: Path) -> None:
    """Load the weights of a checkpoint. Frozen weights must equal those that it was trained with."""
    frozen, parameters = frozen_fingerprint(model), dict(model.named_parameters())
    try:
        if frozen and read_counters(folder).frozen != frozen:
            raise UserError(f"{folder}: was trained with other frozen weights than model.path has now")
        for name, weight in iterate_tensors(folder, WEIGHTS_FILE):
            if name not in parameters or parameters[name].shape != weight.shape:
                raise UserError(f"{folder}: {name} does not fit the model of the run's recipe")
            parameters[name].copy_(weight)
    except UserError:
        raise
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{folder}: damaged, {error}: {RESTORE_OR_OTHER}") from error
