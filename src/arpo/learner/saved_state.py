"""A learner's folder: trained weights, moments and counters, in safetensors and JSON.

One process writes weights.safetensors and optimiser.safetensors. Several ranks write weights-RANK.safetensors
and optimiser-RANK.safetensors, each with the full tensors of some parameters; the counters include the number
of ranks. Tensors of more than 4 GiB together are split into several files, such as weights.part1.safetensors:
only the tensors of one file at a time are copied from the GPU. Reading merges all files into one set of full
tensors and checks it against the model before any change.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from arpo.errors import UserError
from arpo.models.trainable import frozen_fingerprint
from arpo.storage.files import parse_json
from arpo.storage.from_json import from_json

WEIGHTS_FILE, OPTIMISER_FILE, COUNTERS_FILE = "weights.safetensors", "optimiser.safetensors", "learner.json"
ADAM_KEYS = ("step", "exp_avg", "exp_avg_sq")
PART_BYTES = 4 * 2**30  # maximum of one file, except for a larger tensor
_PARTS = "parts"  # metadata of the first file: the number of files


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Contents of learner.json. `frozen` is a fingerprint; `ranks` is 0 if one process wrote the folder."""

    version: int
    steps: int
    skipped: int
    frozen: str = ""
    ranks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """Contents of a folder. Optimiser keys are PARAMETER/KEY; a parameter without steps has none."""

    weights: Mapping[str, Tensor]
    optimiser_state: Mapping[str, Tensor]
    version: int
    steps: int
    skipped: int

    @classmethod
    def read(cls, folder: Path, model: nn.Module) -> SavedState:
        """Read a folder. Raises `UserError` if it is damaged or does not match the model."""
        try:
            counters = read_counters(folder)
            saved = cls(
                weights=load_tensors(folder, WEIGHTS_FILE),
                optimiser_state=load_tensors(folder, OPTIMISER_FILE),
                version=counters.version,
                steps=counters.steps,
                skipped=counters.skipped,
            )
            if counters.frozen != frozen_fingerprint(model):
                raise ValueError("the frozen weights differ from those of the saved run")
            saved._check_shapes({name: p for name, p in model.named_parameters() if p.requires_grad})
        except (OSError, SafetensorError, ValueError) as error:
            raise UserError(
                f"{folder}: damaged, or not a checkpoint of this model: {error}: restore it, or remove the "
                "folder step-NUMBER to resume from the previous checkpoint"
            ) from error
        return saved

    @property
    def stepped(self) -> list[str]:
        """Names of the parameters with moments."""
        return [name for name in self.weights if f"{name}/step" in self.optimiser_state]

    def _check_shapes(self, parameters: Mapping[str, Tensor]) -> None:
        """Raise ValueError if a tensor is missing, unknown or of another shape."""
        wanted = {name: p.shape for name, p in parameters.items()}
        found = {
            name: tensor.shape for name, tensor in (*self.weights.items(), *self.optimiser_state.items())
        }
        for name in wanted.keys() & {key.rpartition("/")[0] for key in self.optimiser_state}:
            step, *moments = (f"{name}/{key}" for key in ADAM_KEYS)
            if step not in self.optimiser_state:
                raise ValueError(f"{step} is missing")
            wanted |= {step: self.optimiser_state[step].shape, **dict.fromkeys(moments, wanted[name])}
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                raise ValueError(
                    f"{name} is {found.get(name, 'missing')}, not {wanted.get(name, 'in the model')}"
                )


def load_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """Tensors of the file `name`, or of the files of all ranks together."""
    return dict(iterate_tensors(folder, name))


def iterate_tensors(folder: Path, name: str) -> Iterator[tuple[str, Tensor]]:
    """As `load_tensors`, with one tensor in memory at a time."""
    ranks = read_counters(folder).ranks if (folder / COUNTERS_FILE).is_file() else 0
    files = [rank_file(name, rank) for rank in range(ranks)] if ranks else [name]
    for part in [part for file in files for part in _parts(folder / file)]:
        with safe_open(part, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 (not a dict)
                yield key, tensors.get_tensor(key)


def save_tensors(tensors: dict[str, Tensor], path: Path, part_bytes: int = PART_BYTES) -> None:
    """Write safetensors files. Raises OSError, for example if the disk is full."""
    parts = _split(tensors, part_bytes)
    for number, part in enumerate(parts):
        with writing_tensors(file := _part_file(path, number)):
            save_file(part, file, metadata={_PARTS: str(len(parts))} if len(parts) > 1 else None)


def _split(tensors: dict[str, Tensor], part_bytes: int) -> list[dict[str, Tensor]]:
    """Parts of at most `part_bytes`, in the order of the names. At least one part."""
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if parts[-1] and size + tensor.nbytes > part_bytes:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    return parts


def _parts(path: Path) -> list[Path]:
    """The files of tensors saved as `path`."""
    with safe_open(path, framework="pt") as first:
        count = int((first.metadata() or {}).get(_PARTS, 1))
    return [_part_file(path, number) for number in range(count)]


def _part_file(path: Path, number: int) -> Path:
    """weights.safetensors, weights.part1.safetensors, weights.part2.safetensors, …"""
    return path.with_name(f"{path.stem}.part{number}{path.suffix}") if number else path


@contextmanager
def writing_tensors(path: Path) -> Iterator[None]:
    """Convert the safetensors library's I/O errors to OSError, with the path."""
    try:
        yield
    except SafetensorError as error:
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error
        raise


def rank_file(name: str, rank: int) -> str:
    """weights.safetensors -> weights-3.safetensors"""
    return f"{Path(name).stem}-{rank}{Path(name).suffix}"


def write_counters(folder: Path, model: nn.Module, **counters: int) -> None:
    """Write the counters and the fingerprint of frozen weights, which are not saved."""
    frozen = frozen_fingerprint(model)
    written = {**counters, "frozen": frozen} if frozen else counters
    (folder / COUNTERS_FILE).write_text(json.dumps(written) + "\n", encoding="utf-8")


def saved_version(folder: Path) -> int:
    """The version of the weights in a learner's folder."""
    return read_counters(folder).version


def read_counters(folder: Path) -> Counters:
    """Raises OSError or ValueError."""
    return from_json(parse_json((folder / COUNTERS_FILE).read_bytes()), Counters)
