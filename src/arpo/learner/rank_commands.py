"""Commands of rank 0 for the other ranks, and their encoding: JSON, followed by screenshots as raw bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import IO, Any, get_args

from arpo.algorithms.microbatches import Microbatch
from arpo.storage.codec import sample_from_json, sample_to_json
from arpo.types import Screenshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCommand:
    """The first command: the recipe as TOML."""

    recipe: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCommand:
    """This rank's micro-batches of each update; empty micro-batches pad ranks with fewer."""

    updates: Sequence[Sequence[Microbatch]]
    lr_scales: Sequence[float]  # as in Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsCommand:
    """Compute the log-probabilities of this rank's samples: tokens `first` and following of `count`."""

    updates: Sequence[Sequence[Microbatch]]  # exactly one
    base: bool
    temperature: float | None  # None: rollout.temperature
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCommand:
    """Write a part of a checkpoint if this rank sees the file `marker` in the folder."""

    folder: str
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCommand:
    """As `SaveCommand`, for the weights of engines."""

    folder: str
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCommand:
    """Receive weights and moments from rank 0, and set the counters."""

    version: int
    steps: int
    skipped: int
    parameter_steps: Mapping[str, float]  # optimiser steps by parameter name


@dataclass(frozen=True, slots=True, kw_only=True)
class StopCommand:
    pass


Command = (
    StartCommand | TrainCommand | LogprobsCommand | SaveCommand | PublishCommand | LoadCommand | StopCommand
)
COMMANDS: Mapping[str, type[Command]] = {kind.__name__: kind for kind in get_args(Command)}


def encode_command(command: Command) -> Iterator[bytes]:
    """Length of the JSON as eight bytes, the JSON, and the screenshots; the JSON lists their sizes."""
    shots: dict[str, bytes] = {}
    value: dict[str, Any] = {entry.name: getattr(command, entry.name) for entry in fields(command)}
    if isinstance(command, TrainCommand | LogprobsCommand):
        samples = [sample for update in command.updates for microbatch in update for sample in microbatch]
        shots = {shot.sha256: shot.png for sample in samples for shot in sample.images}
        value["updates"] = [
            [[sample_to_json(sample) for sample in microbatch] for microbatch in update]
            for update in command.updates
        ]
    sizes = {name: len(png) for name, png in shots.items()}
    head = json.dumps({"do": type(command).__name__, "with": value, "screenshots": sizes}).encode()
    yield len(head).to_bytes(8)
    yield head
    yield from shots.values()


def read_command(stream: IO[bytes]) -> Command | None:
    """The next command, or None at the end of the stream."""
    if len(length := stream.read(8)) < 8:
        return None
    head = json.loads(stream.read(int.from_bytes(length)))
    shots = {name: Screenshot(stream.read(size), name) for name, size in head["screenshots"].items()}
    value = head["with"]
    if "updates" in value:
        value["updates"] = [
            [tuple(sample_from_json(sample, shots) for sample in microbatch) for microbatch in update]
            for update in value["updates"]
        ]
    return COMMANDS[head["do"]](**value)
