"""The group of ranks of a sharded learner, seen from rank 0, and the main function of the others.

Rank 0 is the process of the run. A launcher (`rank_processes`) starts the others, which read commands
(`rank_commands`) from rank 0. All other data passes through torch.distributed: on loopback, or between the
nodes of a cluster. If a rank exits or does not respond, `RankLost` has its number and its last output.
`RANK_SECONDS` bounds every wait.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import IO, NoReturn

import torch
import torch.distributed as dist

from arpo.config import Config
from arpo.config.recipe import load_config, to_toml
from arpo.errors import UserError
from arpo.learner.rank_commands import Command, StartCommand, StopCommand, encode_command, read_command
from arpo.learner.rank_processes import LocalRanks, Rank, RankLauncher
from arpo.models.loading import resolve_device

RANK_SECONDS = 600.0  # of waiting for another rank
_DETECTION_SECONDS = 30.0  # the main thread should notice a lost rank within this time
EXIT_SECONDS = 5.0  # after an error of rank 0, for the exit of the rank that caused it
_STARTUP_SECONDS = 300.0  # for a rank to load its libraries
_POLL_SECONDS = 0.05
_SIOCGIFADDR = 0x8915  # ioctl of Linux: IPv4 address of a network interface


class RankLost(UserError):
    """A rank exited, or the ranks waited too long for each other. `reason` has one line."""

    def __init__(self, reason: str, output: str) -> None:
        super().__init__(f"{reason}. Run the same command again to resume from the last checkpoint.{output}")
        self.reason = reason


def rank_device(rank: int, config: Config) -> torch.device:
    kind = resolve_device(config.model.device)
    if kind == "cpu":
        return torch.device("cpu")
    if config.cluster.ray:  # each process sees only its own GPU
        return torch.device("cuda", 0)
    if (found := torch.cuda.device_count()) < config.optim.ranks:
        raise UserError(f"optim.ranks = {config.optim.ranks}: each rank needs a GPU, torch finds {found}")
    return torch.device("cuda", rank)


def interface_of(address: str) -> str | None:
    """Name of the network interface with this IPv4 address, for example "lo". None if there is none."""
    names = [name for _, name in socket.if_nameindex()]
    if address.startswith("127."):
        return next((name for name in names if name.startswith("lo")), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in names:
            with suppress(OSError):  # an interface without an address
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


def use_interface(address: str) -> None:
    """Let torch.distributed communicate over the interface of this address, unless the user chose one."""
    if interface := interface_of(address):
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)


def join_group(rank: int, config: Config, store: dist.Store) -> None:
    """Wait for all ranks and join their process group."""
    device = rank_device(rank, config)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=config.optim.ranks,
        timeout=timedelta(seconds=RANK_SECONDS),
        device_id=device if device.type == "cuda" else None,
    )


class RankGroup:
    """The other ranks, seen from rank 0. A process has at most one group at a time."""

    def __init__(self, config: Config, launcher: RankLauncher | None = None) -> None:
        """Start the ranks and join them. The default launcher starts them on this machine."""
        rank_device(0, config)
        self._in_collective = threading.Event()
        self._closing = threading.Event()  # an exit is then no error
        self._others: list[Rank] = []
        self.close = weakref.finalize(self, _shut_down, self._others, self._closing)
        try:
            self._start(config, launcher or LocalRanks())
        except BaseException:
            self.close()
            raise

    def _start(self, config: Config, launcher: RankLauncher) -> None:
        use_interface(launcher.address)
        listener = socket.create_server(
            (launcher.address, 0)
        )  # TCPStore's own listener would accept connections on every interface
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            launcher.address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=RANK_SECONDS),
            master_listen_fd=listener.detach(),
        )
        self._others += launcher.start(range(1, config.optim.ranks), f"{launcher.address}:{port}")
        for rank in self._others:
            watched = (rank, self._in_collective, self._closing)
            threading.Thread(target=_end_if_stuck, args=watched, daemon=True).start()
        with self.collective():
            self.send_all(StartCommand(recipe=to_toml(config)))
            self._wait_for_libraries(store)
            join_group(0, config, store)

    def _wait_for_libraries(self, store: dist.Store) -> None:
        deadline = time.monotonic() + _STARTUP_SECONDS
        while not all(store.check([_ready_key(rank.number)]) for rank in self._others):
            self._raise_if_lost(0.0)
            if time.monotonic() > deadline:
                reason = f"a rank of the learner did not start within {_STARTUP_SECONDS:g} s"
                raise RankLost(reason, self._outputs())
            time.sleep(_POLL_SECONDS)

    def send(self, commands: Sequence[Command]) -> None:
        """Send each of the other ranks its command."""
        for rank, command in zip(self._others, commands, strict=True):
            for part in encode_command(command):
                rank.write(part, RANK_SECONDS)

    def send_all(self, command: Command) -> None:
        self.send([command] * len(self._others))

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Context for work of all ranks. If a rank exits meanwhile, raises `RankLost` with its number."""
        began = time.monotonic()
        self._in_collective.set()
        try:
            self._raise_if_lost(0.0)
            yield
        except RankLost:
            raise
        except Exception as error:
            self._raise_if_lost(EXIT_SECONDS, error)
            if isinstance(error, TimeoutError) or self._waited(error, time.monotonic() - began):
                reason = f"the ranks of the learner timed out: they waited {RANK_SECONDS:g} s for each other"
                raise RankLost(reason, self._outputs()) from error
            raise
        finally:
            self._in_collective.clear()
        self._raise_if_lost(0.0)

    def _waited(self, error: Exception, seconds: float) -> bool:
        """Whether an error is a timeout of torch.distributed: Gloo raises a RuntimeError for it."""
        own = isinstance(error, dist.DistError) or type(error) is RuntimeError
        return own and seconds >= RANK_SECONDS

    def _raise_if_lost(self, seconds: float, cause: Exception | None = None) -> None:
        """Raise `RankLost` about the first rank to exit, if one exits within `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            ended = [(one, rank) for rank in self._others if (one := rank.exit) is not None]
            if ended:
                _, rank = min(ended, key=lambda pair: (not pair[0].external, pair[0].at))
                raise _lost(rank) from cause
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL_SECONDS)

    def _outputs(self) -> str:
        return "".join(f"\nlast output of rank {rank.number}:{_indented(rank)}" for rank in self._others)


def _lost(rank: Rank) -> RankLost:
    assert rank.exit is not None
    reason = f"rank {rank.number} of the learner {rank.exit.reason}"
    return RankLost(reason, f" Its last output:{_indented(rank)}")


def _indented(rank: Rank) -> str:
    return "".join(f"\n    {line}" for line in tuple(rank.output)) or " none"


def _end_if_stuck(rank: Rank, in_collective: threading.Event, closing: threading.Event) -> None:
    """If a rank exits and rank 0 stays in a collective call, abort the call, or else exit rank 0."""
    rank.exited.wait()
    aborting = time.monotonic() + _DETECTION_SECONDS / 2
    deadline = time.monotonic() + _DETECTION_SECONDS
    while in_collective.is_set() and not closing.is_set():
        if time.monotonic() > aborting and dist.is_initialized():
            aborting = deadline
            with suppress(RuntimeError, ValueError):
                dist.group.WORLD.abort()  # type: ignore[union-attr]
        if time.monotonic() > deadline:
            print(f"arpo: error: {_lost(rank)}", file=sys.stderr, flush=True)
            os._exit(2)
        time.sleep(_POLL_SECONDS)


def _shut_down(others: Sequence[Rank], closing: threading.Event) -> None:
    """Leave the process group together with all responsive ranks, with short timeouts."""
    closing.set()
    for rank in others:
        with suppress(OSError):
            for part in encode_command(StopCommand()):
                rank.write(part, 1.0)
    if dist.is_initialized():
        leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
        leaving.start()
        leaving.join(_DETECTION_SECONDS)
    for rank in others:
        rank.stop(5.0)


def serve_rank(rank: int, store: str, run: Callable[[Config, Iterator[Command]], None]) -> NoReturn:
    """Be rank `rank`: join the others at the store and call `run` with recipe and commands. Never returns."""
    try:
        stream = sys.stdin.buffer
        config = _read_recipe(stream)
        commands = SimpleQueue[Command]()
        threading.Thread(target=_read_commands, args=(stream, commands), daemon=True).start()
        host, _, port = store.rpartition(":")
        use_interface(host)
        seconds = timedelta(seconds=RANK_SECONDS)
        meeting = dist.TCPStore(host, int(port), is_master=False, timeout=seconds)
        meeting.set(_ready_key(rank), "")
        join_group(rank, config, meeting)
        run(config, iter(commands.get, StopCommand()))
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a normal exit would wait for the other ranks
    os._exit(0)


def _read_recipe(stream: IO[bytes]) -> Config:
    command = read_command(stream)
    if not isinstance(command, StartCommand):
        os._exit(0)  # rank 0 has ended
    with TemporaryDirectory(prefix="arpo-rank-") as folder:
        recipe = Path(folder) / "recipe.toml"
        recipe.write_text(command.recipe, "utf-8")
        return load_config(recipe)


def _read_commands(stream: IO[bytes], commands: SimpleQueue[Command]) -> None:
    """Runs in a thread: the end of rank 0 ends this process at any time."""
    try:
        while (command := read_command(stream)) is not None:
            commands.put(command)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _ready_key(rank: int) -> str:
    return f"ready/{rank}"
