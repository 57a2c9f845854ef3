"""Encodes screenshots in worker processes, so that rollouts and learning go on meanwhile.

A thread per process sends PNGs and receives encoded pictures; while it waits, other threads run. Processes
start when there is work for them.
"""

from __future__ import annotations

import math
import os
import queue
import subprocess
import threading
from concurrent.futures import Future

from arpo.errors import UserError
from arpo.png import read_size
from arpo.processes.child import Child, python_command
from arpo.processes.environment import clean_environment
from arpo.storage.encoder_process import BASE, CHANGE, MODULE, REPLY, REQUEST, WHOLE, Recent
from arpo.types import Screenshot

_ATTEMPTS = 2  # a picture may end so many processes
MAX_DECODED_PIXELS = 1 << 25  # in a process: 16 screens of 1920x1080, 133 MB
_AHEAD = 4  # pictures may wait for the process with their base while another is idle


class EncoderDied(UserError):
    """An encoder process died, for example because memory ran out."""


def default_processes() -> int:
    """A quarter of the cores, at least 1 and at most 8. A process encodes about 10 screenshots per second."""
    return min(8, max(1, (os.cpu_count() or 1) // 4))


class Encoders:
    """Encodes pictures, each once: whole screenshots, or changes from another screenshot, their base."""

    def __init__(self, processes: int | None = None) -> None:
        self._limit = processes or default_processes()
        self._lock = threading.Lock()  # the main thread starts pictures, another one takes them
        self._started: dict[str, dict[str, Future[bytes]]] = {}  # by names of screenshot and base
        self._holders: dict[str, _Worker] = {}  # the workers with a decoded screenshot, or soon with it
        self._workers: list[_Worker] = []

    def start(self, shot: Screenshot, base: Screenshot | None) -> None:
        """Begin to encode a picture, unless it is begun."""
        with self._lock:
            self._begin(shot, base)

    def _begin(self, shot: Screenshot, base: Screenshot | None) -> Future[bytes]:
        pictures = self._started.setdefault(shot.sha256, {})
        if _name(base) not in pictures:
            pictures[_name(base)] = future = Future[bytes]()
            worker = self._holders[shot.sha256] = self._choose(base)
            worker.put(shot, base, future)
        return pictures[_name(base)]

    def take(self, shot: Screenshot, base: Screenshot | None) -> bytes:
        """Wait for a picture. Encodes it if it was not begun. Forgets all pictures of the screenshot.

        Raises EncoderDied if its processes died.
        """
        with self._lock:
            future = self._begin(shot, base)
            self._forget(shot.sha256)
        return future.result()

    def forget(self, name: str) -> None:
        """Forget the pictures of a screenshot that will not be taken."""
        with self._lock:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._started.pop(name, None)
        self._holders.pop(name, None)

    def close(self) -> None:
        """End the processes. Pictures not begun are given up."""
        with self._lock:
            for worker in self._workers:
                worker.close()
            self._workers.clear()
            self._holders.clear()

    def _choose(self, base: Screenshot | None) -> _Worker:
        """The worker with the decoded base, or else the one with the least work, perhaps a new one."""
        least = min(self._workers, key=lambda worker: worker.waiting, default=None)
        holder = self._holders.get(base.sha256) if base else None
        if holder is not None and least is not None and holder.waiting <= least.waiting + _AHEAD:
            return holder
        if least is None or (least.waiting and len(self._workers) < self._limit):
            least = _Worker()
            self._workers.append(least)
        return least


def _name(base: Screenshot | None) -> str:
    return base.sha256 if base else ""


class _Worker:
    """A thread and its process, which starts with the first picture, and again if it has died."""

    def __init__(self) -> None:
        self._pictures: queue.SimpleQueue[tuple[Screenshot, Screenshot | None, Future[bytes]] | None]
        self._pictures = queue.SimpleQueue()
        self._busy = False
        self._closed = False
        self._child: Child | None = None
        self._decoded = Recent[bool](MAX_DECODED_PIXELS)  # by the process
        threading.Thread(target=self._work, name="arpo-encoder", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Number of unfinished pictures."""
        return self._pictures.qsize() + self._busy

    def put(self, shot: Screenshot, base: Screenshot | None, future: Future[bytes]) -> None:
        self._pictures.put((shot, base, future))

    def close(self) -> None:
        """End the thread and the process after the current picture."""
        self._closed = True
        self._pictures.put(None)

    def _work(self) -> None:
        while (picture := self._pictures.get()) is not None:
            self._busy = True
            self._finish(*picture)
            del picture  # while it waits for the next one, this one may be freed
            self._busy = False
        self.end()

    def _finish(self, shot: Screenshot, base: Screenshot | None, future: Future[bytes]) -> None:
        if self._closed:
            future.cancel()
            return
        try:
            future.set_result(self._encode(shot, base))
        except BaseException as error:  # the boundary of the thread: `take` raises it
            self.end()  # its pipes may have the rest of a reply
            future.set_exception(error)

    def _encode(self, shot: Screenshot, base: Screenshot | None) -> bytes:
        reasons = []
        for _ in range(_ATTEMPTS):
            try:
                return self._ask(shot, base)
            except (OSError, EOFError) as error:
                reasons.append(self.end() or str(error))
        raise EncoderDied(
            f"a process that encodes screenshots died ({reasons[-1]}): check the free memory, then run the "
            "same command again"
        )

    def end(self) -> str:
        """End the process, which has no data of its own. Returns how it ended, "" if there was none."""
        child, self._child, self._decoded = self._child, None, Recent(MAX_DECODED_PIXELS)
        if child is None:
            return ""
        child.end()
        return f"{child.exit_reason}; its last output: {child.last_output}"

    def _ask(self, shot: Screenshot, base: Screenshot | None) -> bytes:
        """Raises OSError or EOFError if the process dies."""
        self._child = self._child or _start_process()
        process = self._child.process
        if base is not None and not self._decoded.get(bytes.fromhex(base.sha256)):
            self._send(process, BASE, base, None)
        self._send(process, WHOLE if base is None else CHANGE, shot, base)
        (size,) = REPLY.unpack(_read(process, REPLY.size))
        return _read(process, size)

    def _send(
        self, process: subprocess.Popen[bytes], task: int, shot: Screenshot, base: Screenshot | None
    ) -> None:
        assert process.stdin is not None
        name, base_name = bytes.fromhex(shot.sha256), bytes.fromhex(base.sha256) if base else bytes(32)
        process.stdin.write(REQUEST.pack(task, name, base_name, len(shot.png)))
        process.stdin.write(shot.png)
        process.stdin.flush()
        self._decoded.put(name, math.prod(read_size(shot.png)), True)


def _start_process() -> Child:
    return Child(
        python_command(MODULE, str(MAX_DECODED_PIXELS)),
        env=clean_environment() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
    )


def _read(process: subprocess.Popen[bytes], size: int) -> bytes:
    assert process.stdout is not None
    content = process.stdout.read(size)
    if len(content) < size:
        raise EOFError
    return content
