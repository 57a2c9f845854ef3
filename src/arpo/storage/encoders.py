"""Encodes screenshots in worker processes, so that rollouts and learning go on meanwhile.

A thread per process sends PNGs and receives encoded pictures; while it waits, other threads run. Processes
start when there is work for them.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future

from arpo.errors import UserError, printable
from arpo.process_environment import clean_environment
from arpo.storage.encoder_process import BASE, CHANGE, MODULE, REPLY, REQUEST, WHOLE
from arpo.types import Screenshot

# A screenshot and the base of its change. Without a base, the whole picture is encoded.
Pair = tuple[Screenshot, Screenshot | None]
_Job = list[tuple[Pair, "Future[bytes]"]]
_ATTEMPTS = 2  # processes that may die of one picture


class EncoderDied(UserError):
    """A process that encodes screenshots died, for example because memory ran out."""


def default_processes() -> int:
    """A quarter of the cores, at least 1 and at most 8. A process encodes about 10 screenshots per second."""
    return min(8, max(1, (os.cpu_count() or 1) // 4))


class Encoders:
    """Encodes pictures, each once. The sha256 of a screenshot and of its base name a picture."""

    def __init__(self, processes: int | None = None) -> None:
        self._limit = processes or default_processes()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # the fields below: the main thread starts pictures, another takes them
        self._started: dict[tuple[str, str], Future[bytes]] = {}
        self._threads = 0
        self._unfinished = 0  # jobs
        self._closed = False

    def start(self, pairs: Iterable[Pair]) -> None:
        """Begin to encode these pictures, except those already begun. One process encodes them in order.

        It is fastest if each base is the screenshot of the pair before: that one is decoded already.
        """
        with self._lock:
            job: _Job = []
            for pair in pairs:
                if (key := _key(*pair)) not in self._started:
                    self._started[key] = Future()
                    job.append((pair, self._started[key]))
            if not job:
                return
            self._unfinished += 1
            if self._unfinished > self._threads < self._limit:
                self._threads += 1
                threading.Thread(target=self._work, name="arpo-encoder", daemon=True).start()
            self._jobs.put(job)

    def take(self, shot: Screenshot, base: Screenshot | None) -> bytes:
        """Wait for a picture, and forget it. Encodes it if it was not begun. Raises EncoderDied."""
        self.start([(shot, base)])
        with self._lock:
            future = self._started.pop(_key(shot, base))
        return future.result()

    def forget(self) -> None:
        """Forget the pictures that were not taken."""
        with self._lock:
            self._started.clear()

    def close(self) -> None:
        """End the processes. Pictures that were not begun are given up."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    def _work(self) -> None:
        """The thread of a process."""
        worker = _Worker()
        while (job := self._jobs.get()) is not None:
            for (shot, base), future in job:
                if self._closed:
                    future.cancel()
                    continue
                try:
                    future.set_result(worker.encode(shot, base))
                except EncoderDied as error:
                    future.set_exception(error)
            with self._lock:
                self._unfinished -= 1
        worker.end()


def _key(shot: Screenshot, base: Screenshot | None) -> tuple[str, str]:
    return shot.sha256, base.sha256 if base else ""


class _Worker:
    """A worker process. It starts with the first picture, and again if it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._decoded = ""  # name of the screenshot that the process has decoded last

    def encode(self, shot: Screenshot, base: Screenshot | None) -> bytes:
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
        """End the process. Returns the last line of its stderr or its exit code, "" if there was none."""
        process, self._process, self._decoded = self._process, None, ""
        if process is None:
            return ""
        process.kill()  # it holds nothing that this process does not have
        _, errors = process.communicate()
        *_, line = ("", *errors.decode("utf-8", "replace").splitlines())
        return printable(line[:500]) or f"exit code {process.returncode}"

    def _ask(self, shot: Screenshot, base: Screenshot | None) -> bytes:
        """Raises OSError or EOFError if the process dies."""
        process = self._process or self._start()
        assert process.stdin is not None
        if base is not None and base.sha256 != self._decoded:
            process.stdin.write(REQUEST.pack(BASE, len(base.png)) + base.png)
        process.stdin.write(REQUEST.pack(WHOLE if base is None else CHANGE, len(shot.png)))
        process.stdin.write(shot.png)
        process.stdin.flush()
        self._decoded = shot.sha256
        (size,) = REPLY.unpack(_read(process, REPLY.size))
        return _read(process, size)

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],  # -P: no modules of the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # no Ctrl-C: the run finishes what it has played
        )
        return self._process


def _read(process: subprocess.Popen[bytes], size: int) -> bytes:
    assert process.stdout is not None
    content = process.stdout.read(size)
    if len(content) < size:
        raise EOFError
    return content
