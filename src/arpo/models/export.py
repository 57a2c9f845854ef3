"""From a run to a plain Hugging Face model directory, which any tool loads without this package."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from arpo.checkpoint import CHECKPOINTS, LEARNER, MANIFEST, Checkpoint, damage, latest
from arpo.errors import UserError
from arpo.learner.local import WEIGHTS
from arpo.models.loading import DTYPES, load_model, resolve_model
from arpo.recipe import load_config
from arpo.store import RECIPE

OTHERS = (".safetensors", ".md")  # weights, and the card that is about those weights


def export_model(source: Path, out: Path, dtype: str) -> Path:
    """Write to `out` the model of a run's newest whole checkpoint, of one checkpoint, or of a folder."""
    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}: use one of {', '.join(DTYPES)}")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UserError(f"{out}: is there already and not empty; name a new folder")
    base, checkpoint = _find(source)
    model = load_model(base, "float32", "cpu")
    if checkpoint is not None:
        _fill(model, checkpoint / LEARNER / WEIGHTS)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: the folder cannot be made: {error.strerror}") from error
    for path in base.iterdir():
        if path.is_file() and path.suffix not in OTHERS and not path.name.endswith(".index.json"):
            shutil.copy2(path, out / path.name)
    model.to(DTYPES[dtype]).save_pretrained(out)
    return out


def _find(source: Path) -> tuple[Path, Path | None]:
    """The folder of the model that training began with, and the checkpoint whose weights go into it."""
    if (source / RECIPE).is_file():
        found, damaged = latest(source / CHECKPOINTS)
        if found is None:
            raise UserError(
                f"{source}: this run has no whole checkpoint yet" + "".join(f"; {d}" for d in damaged)
            )
        return resolve_model(load_config(source / RECIPE).model.path), found.path
    if (source / MANIFEST).is_file():
        step = source.resolve().name.removeprefix("step-")
        if not step.isdigit():
            raise UserError(f"{source}: a checkpoint's folder is named step-NUMBER")
        if reason := damage(Checkpoint(step=int(step), path=source)):
            raise UserError(f"{source}: this checkpoint is damaged: {reason}")
        return resolve_model(load_config(source.resolve().parents[1] / RECIPE).model.path), source
    if (source / "config.json").is_file():
        return source, None
    raise UserError(f"{source}: neither a run folder, nor a checkpoint of one, nor a model folder")


@torch.no_grad()
def _fill(model: nn.Module, path: Path) -> None:
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    parameters = dict(model.named_parameters())
    for name, weight in weights.items():
        if name not in parameters or parameters[name].shape != weight.shape:
            raise UserError(f"{path}: {name} does not fit the model that the run's recipe names")
        parameters[name].copy_(weight)
