"""The ranks of a learner: processes that work on the same thing at once, and how they are told what it is.

Rank 0 is the process of the run. It starts the others, each with our hand on its stdin, and writes orders to
them: JSON, and after it the screenshots as they are. All else passes through torch.distributed, on loopback
alone. A rank ends when its stdin does, so with rank 0, however that ends. A rank that ends by itself, or does
not come when the others wait for it, ends the run with an error that names it and shows what it said last.
Every wait is bounded by optim.rank_seconds.
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
LINES_KEPT = 20
_NOTICE = 30.0  # seconds in which the main thread should itself stumble over a rank that is gone
_COME_UP = 300.0  # seconds in which a rank has loaded its libraries
_LOOK_AGAIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """The micro-batches of each update that are this rank's; a rank that has none left has empty ones."""

    updates: Sequence[Sequence[Microbatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Find the log-probabilities of this rank's samples: among all `count` of them, those from `first` on."""

    updates: Sequence[Sequence[Microbatch]]  # one
    base: bool
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Take over from rank 0 the weights, the counters, and the moments of the parameters that have any."""

    version: int
    steps: int
    skipped: int
    taken: Mapping[str, float]  # steps of each parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    pass


Order = Train | Judge | Save | Load | End
ORDERS: Mapping[str, type[Order]] = {kind.__name__: kind for kind in get_args(Order)}


def write_order(order: Order) -> Iterator[bytes]:
    """Eight bytes that say how long the JSON is, the JSON, and the screenshots whose sizes it lists."""
    shots: dict[str, bytes] = {}
    value: dict[str, Any] = {entry.name: getattr(order, entry.name) for entry in fields(order)}
    if isinstance(order, Train | Judge):
        samples = [sample for update in order.updates for microbatch in update for sample in microbatch]
        shots = {shot.sha256: shot.png for sample in samples for shot in sample.images}
        value["updates"] = [
            [[sample_to_json(sample) for sample in microbatch] for microbatch in update]
            for update in order.updates
        ]
    sizes = {name: len(png) for name, png in shots.items()}
    head = json.dumps({"do": type(order).__name__, "with": value, "screenshots": sizes}).encode()
    yield len(head).to_bytes(8)
    yield head
    yield from shots.values()


def read_order(stream: IO[bytes]) -> Order | None:
    """The next order, or None at the end of the stream."""
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
    return ORDERS[head["do"]](**value)


def device_of(rank: int, config: Config) -> torch.device:
    kind = resolve_device(config.model.device)
    if kind == "cpu":
        return torch.device("cpu")
    if (found := torch.cuda.device_count()) < config.optim.ranks:
        raise UserError(
            f"optim.ranks = {config.optim.ranks}: torch finds {found} GPUs here, each rank needs one"
        )
    return torch.device("cuda", rank)


def join(rank: int, config: Config, store: dist.Store) -> None:
    """Wait for all ranks, and be one of them from here on."""
    device = device_of(rank, config)
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


class Ranks:
    """All ranks but this one, number 0; a process can have one such set at a time."""

    def __init__(self, config: Config, program: str) -> None:
        """Start them, each running `program`, a module whose main calls `serve`, and join them."""
        device_of(0, config)
        self._seconds = config.optim.rank_seconds
        self._busy = threading.Event()
        self._others: list[_Rank] = []
        self.close = weakref.finalize(self, _end, self._others)
        try:
            self._start(config, program)
        except BaseException:
            self.close()
            raise

    def _start(self, config: Config, program: str) -> None:
        listener = socket.create_server((LOOPBACK, 0))  # the store's own would listen on every interface
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
                command = [sys.executable, "-m", program, str(recipe), str(number), str(port)]
                self._others.append(_Rank(number, command, self._busy))
            end = time.monotonic() + _COME_UP
            while not all(store.check([_ready(rank.number)]) for rank in self._others):
                self._refuse_lost(0.0)
                if time.monotonic() > end:
                    raise UserError(
                        f"a rank of the learner has not come up within {_COME_UP:g} s{self._said()}"
                    )
                time.sleep(_LOOK_AGAIN)
        with self.together():
            join(0, config, store)

    def tell(self, orders: Sequence[Order]) -> None:
        """Give each of the other ranks its order."""
        for rank, order in zip(self._others, orders, strict=True):
            for part in write_order(order):
                rank.write(part, self._seconds)

    def tell_all(self, order: Order) -> None:
        self.tell([order] * len(self._others))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what all ranks do at once: whatever goes wrong here because a rank is lost, that is said."""
        self._busy.set()
        try:
            self._refuse_lost(0.0)
            yield
        except Exception as error:
            self._refuse_lost(5.0, error)
            if re.search(r"timed out|timeout", str(error), re.IGNORECASE):
                raise UserError(
                    f"the ranks of the learner have waited for each other for {self._seconds:g} s "
                    "(optim.rank_seconds) in vain; the same command goes on from the last checkpoint"
                    f"{self._said()}"
                ) from error
            raise
        finally:
            self._busy.clear()
        self._refuse_lost(0.0)

    def _refuse_lost(self, patience: float, cause: Exception | None = None) -> None:
        """Raise what became of the rank that ended first, looking for one for so long."""
        end = time.monotonic() + patience
        while True:
            if lost := [rank for rank in self._others if not rank.is_alive]:
                first = min(lost, key=lambda rank: (not rank.was_killed, rank.silent_since()))
                raise UserError(first.obituary) from cause
            if time.monotonic() >= end:
                return
            time.sleep(_LOOK_AGAIN)

    def _said(self) -> str:
        return "".join(f"\nrank {rank.number} said last:{rank.said}" for rank in self._others)


class _Rank:
    """One other rank, and the end of what it says."""

    def __init__(self, number: int, command: Sequence[str], busy: threading.Event) -> None:
        self.number = number
        self._busy = busy
        self._tail: deque[str] = deque(maxlen=LINES_KEPT)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for rank 0, which stops between two batches
        )
        self.expected = False  # whether it may end
        self._silence = threading.Event()  # it will never say more
        self._silent_since = math.inf
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def was_killed(self) -> bool:
        """By whoever ran out of memory or patience: no rank ends so because it has lost another."""
        return self._process.poll() == -signal.SIGKILL

    def silent_since(self) -> float:
        """When it ended, if it did: those that it leaves waiting fail after it."""
        self._silence.wait(1.0)
        return self._silent_since

    @property
    def said(self) -> str:
        """The end of its stderr, a line each."""
        return "".join(f"\n    {line}" for line in self._tail) or " nothing"

    @property
    def obituary(self) -> str:
        code = self._process.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return (
            f"rank {self.number} of the learner {how}; the same command goes on from the last checkpoint; "
            f"it said last:{self.said}"
        )

    def write(self, data: bytes, seconds: float) -> None:
        """All of it; a rank that is stopped or stuck takes nothing, and is not waited for for ever."""
        assert self._process.stdin is not None
        pipe, rest = self._process.stdin.fileno(), memoryview(data)
        os.set_blocking(pipe, False)
        room = select.poll()
        room.register(pipe, select.POLLOUT)
        while rest:
            if not room.poll(seconds * 1000):
                raise TimeoutError(f"rank {self.number} timed out: it takes no orders")
            rest = rest[os.write(pipe, rest) :]

    def end(self, seconds: float) -> None:
        """It was told to; if it does not, it is killed."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _listen(self) -> None:
        """Keep what it says. If it ends while rank 0 is held in a call that never returns, end rank 0."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if text := line.decode("utf-8", "replace").rstrip()[:500]:
                self._tail.append(text)
        self._process.stderr.close()
        self._silent_since = time.monotonic()
        self._silence.set()
        self._process.wait()
        end = time.monotonic() + _NOTICE
        while self._busy.is_set() and not self.expected:
            if time.monotonic() > end:
                print(f"arpo: error: {self.obituary}", file=sys.stderr, flush=True)
                os._exit(2)
            time.sleep(_LOOK_AGAIN)


def _end(others: Sequence[_Rank]) -> None:
    """Leave the group, together with those that still can; nobody is waited for long."""
    for rank in others:
        rank.expected = True
        with suppress(OSError):
            for part in write_order(End()):
                rank.write(part, 1.0)
    if dist.is_initialized():
        leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
        leaving.start()
        leaving.join(_NOTICE)
    for rank in others:
        rank.end(5.0)


def serve(config: Config, rank: int, port: int, work: Callable[[Iterator[Order]], None]) -> NoReturn:
    """Be rank `rank`: join the others, and carry out `work`, which is given the orders one by one."""
    try:
        orders = SimpleQueue[Order]()
        threading.Thread(target=_receive, args=(sys.stdin.buffer, orders), daemon=True).start()
        seconds = timedelta(seconds=config.optim.rank_seconds)
        store = dist.TCPStore(LOOPBACK, port, is_master=False, timeout=seconds)
        store.set(_ready(rank), "")
        join(rank, config, store)
        work(iter(orders.get, End()))
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # not by way of libraries that would wait for the other ranks
    os._exit(0)


def _receive(stream: IO[bytes], orders: SimpleQueue[Order]) -> None:
    """In a thread of its own, so that the end of rank 0 ends this process whatever it is at."""
    try:
        while (order := read_order(stream)) is not None:
            orders.put(order)
    finally:
        os._exit(0)


def _ready(rank: int) -> str:
    return f"ready/{rank}"
