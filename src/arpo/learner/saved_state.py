"""A learner's folder: trained weights, moments and counters, in safetensors and JSON.

One process writes weights.safetensors and optimiser.safetensors. Several ranks write weights-RANK.safetensors
and optimiser-RANK.safetensors, each with the full tensors of some parameters; the counters include the number
of ranks. Reading merges all files into one set of full tensors and checks it against the model before any
change.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import FileIO
from itertools import accumulate
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from arpo.errors import UserError
from arpo.models.trainable import frozen_fingerprint
from arpo.storage.files import naming, parse_json, write_all
from arpo.storage.from_json import from_json

WEIGHTS_FILE, OPTIMISER_FILE, COUNTERS_FILE = "weights.safetensors", "optimiser.safetensors", "learner.json"
ADAM_KEYS = ("step", "exp_avg", "exp_avg_sq")
_PARTS = "parts"  # metadata of the first file: the number of files
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}  # names in safetensors files
_LENGTH_BYTES = _ALIGNMENT = 8  # the length of the header, and of its multiples
_CHUNK_BYTES = 16 * 2**20
_WRITERS = 4  # threads


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


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file. Raises OSError, for example if the disk is full.

    Unlike the library's `save_file`, several threads copy and write chunks: no tensor is copied as a whole,
    and copying from the GPU does not wait for the disk.
    """
    # The format has no gaps: the wider types come first, so that every tensor is aligned.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    ends = list(accumulate((tensor.nbytes for _, tensor in ordered), initial=0))
    header = {
        name: {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        for (name, tensor), begin, end in zip(ordered, ends, ends[1:], strict=False)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    start = _LENGTH_BYTES + len(text)
    chunks = (
        (chunk, start + begin + number * _CHUNK_BYTES)
        for (_, tensor), begin in zip(ordered, ends, strict=False)
        for number, chunk in enumerate(_bytes(tensor).split(_CHUNK_BYTES))
    )
    path.unlink(missing_ok=True)  # loaded tensors may be views of the old file
    with naming(path), path.open("xb", buffering=0) as file:
        write_all(file, len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        with ThreadPoolExecutor(_WRITERS) as pool:
            for _ in pool.map(partial(_write_chunk, file), chunks):
                pass


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _write_chunk(file: FileIO, chunk: tuple[Tensor, int]) -> None:
    data, offset = chunk[0].cpu().numpy().data, chunk[1]
    while data:
        written = os.pwrite(file.fileno(), data, offset)
        data, offset = data[written:], offset + written


def _parts(path: Path) -> list[Path]:
    """`path`, and weights.part1.safetensors, … beside it: 0.1.0 split large files."""
    with safe_open(path, framework="pt") as first:
        count = int((first.metadata() or {}).get(_PARTS, 1))
    return [path, *(path.with_name(f"{path.stem}.part{n}{path.suffix}") for n in range(1, count))]


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
