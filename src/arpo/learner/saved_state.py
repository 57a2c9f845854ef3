"""A learner's folder: what is trained, its moments, and counters, in safetensors and JSON.

One process writes weights.safetensors and optimiser.safetensors; several ranks write weights-RANK.safetensors
and so on, each the whole tensors of its share of the parameters, and the counters say how many there are. Who
reads does not care: it is one set of whole tensors, checked against the model before anything is changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from arpo.errors import UserError
from arpo.models.trainable import frozen_fingerprint

WEIGHTS, OPTIMISER, COUNTERS = "weights.safetensors", "optimiser.safetensors", "learner.json"
ADAM_SLOTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What was saved. Slots are named PARAMETER/SLOT; a parameter that was never stepped has none."""

    weights: Mapping[str, Tensor]
    slots: Mapping[str, Tensor]
    version: int
    steps: int
    skipped: int

    @classmethod
    def read(cls, folder: Path, model: nn.Module) -> Saved:
        """All of it, if it belongs to what is trained of this model and to what is not."""
        try:
            counters = _read_counters(folder)
            saved = cls(
                weights=load_tensors(folder, WEIGHTS),
                slots=load_tensors(folder, OPTIMISER),
                **{key: int(counters[key]) for key in ("version", "steps", "skipped")},
            )
            if counters.get("frozen", "") != frozen_fingerprint(model):
                raise ValueError("what is not trained has other weights than when it was saved")
            saved._check_shapes({name: p for name, p in model.named_parameters() if p.requires_grad})
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise UserError(f"{folder}: not a checkpoint of this model, or a damaged one: {error}") from error
        return saved

    @property
    def stepped(self) -> list[str]:
        """The parameters that have moments."""
        return [name for name in self.weights if f"{name}/step" in self.slots]

    def _check_shapes(self, parameters: Mapping[str, Tensor]) -> None:
        wanted = {name: p.shape for name, p in parameters.items()}
        found = {name: weight.shape for name, weight in self.weights.items()}
        for name in wanted.keys() & {slot.rpartition("/")[0] for slot in self.slots}:
            for slot in (f"{name}/{slot}" for slot in ADAM_SLOTS):
                wanted[slot] = self.slots[f"{name}/step"].shape if slot.endswith("/step") else wanted[name]
        found |= {name: slot.shape for name, slot in self.slots.items()}
        differing = sorted(
            name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
        )
        if differing:
            name = differing[0]
            raise ValueError(
                f"{name} is {found.get(name, 'missing')}, not {wanted.get(name, 'in the model')}"
            )


def load_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """Those of the file of this name, or, where several ranks wrote one each, of their files together."""
    ranks = int(_read_counters(folder).get("ranks", 0)) if (folder / COUNTERS).is_file() else 0
    files = [part_of(name, rank) for rank in range(ranks)] if ranks else [name]
    return {key: tensor for file in files for key, tensor in load_file(folder / file).items()}


def part_of(name: str, rank: int) -> str:
    """weights.safetensors -> weights-3.safetensors"""
    return f"{Path(name).stem}-{rank}{Path(name).suffix}"


def write_counters(folder: Path, model: nn.Module, **counters: int) -> None:
    """The counters, and how to know again what is not saved because it is not trained."""
    frozen = frozen_fingerprint(model)
    written = {**counters, "frozen": frozen} if frozen else counters
    (folder / COUNTERS).write_text(json.dumps(written) + "\n", encoding="utf-8")


def _read_counters(folder: Path) -> dict[str, Any]:
    counters = json.loads((folder / COUNTERS).read_text(encoding="utf-8"))
    if not isinstance(counters, dict):
        raise ValueError(f"{COUNTERS} is not an object")
    return counters
