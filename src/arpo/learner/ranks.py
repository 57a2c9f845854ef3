"""Processes (ranks) of a sharded learner, and their commands from rank 0.

Rank 0 is the process of the run. It starts the others with a pipe to their stdin and writes commands: JSON,
followed by the screenshots as raw bytes. All other data passes through torch.distributed, on loopback only. A
rank exits when its stdin closes, and so with rank 0 in any case. If a rank exits or does not respond,
the run ends with an error: the number and the last output of the rank. `optim.rank_seconds` bounds every
wait.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import IO, Any, NoReturn, get_args

import torch
import torch.distributed as dist

from arpo.algorithms.microbatches import Microbatch
from arpo.config import Config
from arpo.errors import UserError
from arpo.models.loading import resolve_device
from arpo.recipe import to_toml
from arpo.storage.codec import sample_from_json, sample_to_json
from arpo.types import Screenshot

LOOPBACK = "127.0.0.1"
OUTPUT_LINES_KEPT = 20
_DETECTION_SECONDS = 30.0  # the main thread should notice a lost rank within this time
_STARTUP_SECONDS = 300.0  # for a rank to load its libraries
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCommand:
    """This rank's micro-batches of each update; empty micro-batches pad ranks with fewer."""

    updates: Sequence[Sequence[Microbatch]]
    lr_scales: Sequence[float]  # as in Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsCommand:
    """Compute the log-probabilities of this rank's samples: number `first` and following of `count`."""

    updates: Sequence[Sequence[Microbatch]]  # exactly one
    base: bool
    temperature: float | None  # None: rollout.temperature
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCommand:
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCommand:
    folder: str


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


Command = TrainCommand | LogprobsCommand | SaveCommand | PublishCommand | LoadCommand | StopCommand
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


def rank_device(rank: int, config: Config) -> torch.device:
    kind = resolve_device(config.model.device)
    if kind == "cpu":
        return torch.device("cpu")
    if (found := torch.cuda.device_count()) < config.optim.ranks:
        raise UserError(f"optim.ranks = {config.optim.ranks}: each rank needs a GPU, torch finds {found}")
    return torch.device("cuda", rank)


def join_group(rank: int, config: Config, store: dist.Store) -> None:
    """Wait for all ranks and join their process group."""
    device = rank_device(rank, config)
    interface = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=config.optim.ranks,
        timeout=timedelta(seconds=config.optim.rank_seconds),
        device_id=device if device.type == "cuda" else None,
    )


class RankGroup:
    """The other ranks, seen from rank 0. A process has at most one group at a time."""

    def __init__(self, config: Config, module: str) -> None:
        """Start the ranks and join them. Each runs `module`, which must call `serve_rank`."""
        rank_device(0, config)
        self._seconds = config.optim.rank_seconds
        self._in_collective = threading.Event()
        self._others: list[_RankProcess] = []
        self.close = weakref.finalize(self, _shut_down, self._others)
        try:
            self._start(config, module)
        except BaseException:
            self.close()
            raise

    def _start(self, config: Config, module: str) -> None:
        listener = socket.create_server(
            (LOOPBACK, 0)
        )  # TCPStore's own listener would accept connections on every interface
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=self._seconds),
            master_listen_fd=listener.detach(),
        )
        with TemporaryDirectory(prefix="arpo-ranks-") as folder:
            recipe = Path(folder) / "recipe.toml"
            recipe.write_text(to_toml(config), "utf-8")
            for number in range(1, config.optim.ranks):
                command = [sys.executable, "-m", module, str(recipe), str(number), str(port)]
                self._others.append(_RankProcess(number, command, self._in_collective))
            deadline = time.monotonic() + _STARTUP_SECONDS
            while not all(store.check([_ready_key(rank.number)]) for rank in self._others):
                self._raise_if_lost(0.0)
                if time.monotonic() > deadline:
                    raise UserError(
                        f"a rank did not start within {_STARTUP_SECONDS:g} s{self._last_output()}"
                    )
                time.sleep(_POLL_SECONDS)
        with self.collective():
            join_group(0, config, store)

    def send(self, commands: Sequence[Command]) -> None:
        """Send each of the other ranks its command."""
        for rank, command in zip(self._others, commands, strict=True):
            for part in encode_command(command):
                rank.write(part, self._seconds)

    def send_all(self, command: Command) -> None:
        self.send([command] * len(self._others))

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Context for work of all ranks. If a rank exits meanwhile, raises `UserError` naming it."""
        self._in_collective.set()
        try:
            self._raise_if_lost(0.0)
            yield
        except Exception as error:
            self._raise_if_lost(5.0, error)
            if re.search(r"timed out|timeout", str(error), re.IGNORECASE):
                raise UserError(
                    f"the ranks of the learner timed out: they waited {self._seconds:g} s for each other "
                    "(optim.rank_seconds). Run the same command again to resume from the last checkpoint."
                    f"{self._last_output()}"
                ) from error
            raise
        finally:
            self._in_collective.clear()
        self._raise_if_lost(0.0)

    def _raise_if_lost(self, seconds: float, cause: Exception | None = None) -> None:
        """Raise `UserError` about the first rank to exit, if one exits within `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            if ended := [rank for rank in self._others if not rank.is_alive]:
                first = min(ended, key=lambda rank: (not rank.was_killed, rank.ended_at()))
                raise UserError(first.exit_message) from cause
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL_SECONDS)

    def _last_output(self) -> str:
        return "".join(f"\nlast output of rank {rank.number}:{rank.last_output}" for rank in self._others)


class _RankProcess:
    """One other rank, with its last lines of stderr."""

    def __init__(self, number: int, command: Sequence[str], in_collective: threading.Event) -> None:
        self.number = number
        self._in_collective = in_collective
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES_KEPT)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches only rank 0, which stops between two batches
        )
        self.may_end = False  # an exit is then no error
        self._output_closed = threading.Event()  # stderr has ended
        self._ended_at = math.inf
        threading.Thread(target=self._read_output, daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def was_killed(self) -> bool:
        """True after SIGKILL: the cause is external, since a rank without its peers exits with code 1."""
        return self._process.poll() == -signal.SIGKILL

    def ended_at(self) -> float:
        """Exit time, or infinity: the first rank to exit makes the others fail later."""
        self._output_closed.wait(1.0)
        return self._ended_at

    @property
    def last_output(self) -> str:
        """The last lines of stderr."""
        return "".join(f"\n    {line}" for line in self._lines) or " none"

    @property
    def exit_message(self) -> str:
        code = self._process.returncode
        reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return (
            f"rank {self.number} of the learner {reason}. Run the same command again to resume from the last "
            f"checkpoint. Its last output:{self.last_output}"
        )

    def write(self, data: bytes, seconds: float) -> None:
        """Write all data. Raises `TimeoutError` if the rank accepts none for `seconds`."""
        assert self._process.stdin is not None
        descriptor, remaining = self._process.stdin.fileno(), memoryview(data)
        os.set_blocking(descriptor, False)
        poller = select.poll()
        poller.register(descriptor, select.POLLOUT)
        while remaining:
            if not poller.poll(seconds * 1000):
                raise TimeoutError(f"rank {self.number} timed out: it reads no commands")
            remaining = remaining[os.write(descriptor, remaining) :]

    def stop(self, seconds: float) -> None:
        """Wait for the exit after a `StopCommand`; kill the process after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _read_output(self) -> None:
        """Keep the last lines. If the rank exits while rank 0 is stuck in a collective call, exit rank 0."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if text := line.decode("utf-8", "replace").rstrip()[:500]:
                self._lines.append(text)
        self._process.stderr.close()
        self._ended_at = time.monotonic()
        self._output_closed.set()
        self._process.wait()
        deadline = time.monotonic() + _DETECTION_SECONDS
        while self._in_collective.is_set() and not self.may_end:
            if time.monotonic() > deadline:
                print(f"arpo: error: {self.exit_message}", file=sys.stderr, flush=True)
                os._exit(2)
            time.sleep(_POLL_SECONDS)


def _shut_down(others: Sequence[_RankProcess]) -> None:
    """Leave the process group together with all responsive ranks, with short timeouts."""
    for rank in others:
        rank.may_end = True
        with suppress(OSError):
            for part in encode_command(StopCommand()):
                rank.write(part, 1.0)
    if dist.is_initialized():
        leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
        leaving.start()
        leaving.join(_DETECTION_SECONDS)
    for rank in others:
        rank.stop(5.0)


def serve_rank(config: Config, rank: int, port: int, run: Callable[[Iterator[Command]], None]) -> NoReturn:
    """Be rank `rank`: join the others and call `run` with an iterator over the commands. Never returns."""
    try:
        commands = SimpleQueue[Command]()
        threading.Thread(target=_read_commands, args=(sys.stdin.buffer, commands), daemon=True).start()
        seconds = timedelta(seconds=config.optim.rank_seconds)
        store = dist.TCPStore(LOOPBACK, port, is_master=False, timeout=seconds)
        store.set(_ready_key(rank), "")
        join_group(rank, config, store)
        run(iter(commands.get, StopCommand()))
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a normal exit would wait for the other ranks
    os._exit(0)


def _read_commands(stream: IO[bytes], commands: SimpleQueue[Command]) -> None:
    """Runs in a thread: the end of rank 0 ends this process at any time."""
    try:
        while (command := read_command(stream)) is not None:
            commands.put(command)
    finally:
        os._exit(0)


def _ready_key(rank: int) -> str:
    return f"ready/{rank}"
