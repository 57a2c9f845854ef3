"""The process in which desktop-env runs: one nursery, and the workers that it forks, one for each episode.

    python -m arpo.envs.osworld.worker FD

A worker does what it is told over its connection (start, step, evaluate, close; or stop what a worker before
it left behind), one call at a time, all in its main thread. A fault goes back as its kind, place and message,
and the worker lives on; whoever ends the connection ends the worker. It dies with the nursery, and that with
the process that holds FD. Apart from `main`, nothing here loads desktop-env.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib.util
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.osworld.messages import receive, send
from arpo.errors import ArpoFault, EnvTimeout, UserError
from arpo.storage.codec import action_from_json
from arpo.types import Json, Task

if TYPE_CHECKING:
    from arpo.envs.osworld.desktop_episode import Desktop

PACKET = 2**16
PR_SET_PDEATHSIG = 1
FIRST_TO_GO = 800  # when memory runs out, an episode is the least that can be lost
CRASH_FILE = "crash.txt"  # in the worker's folder: where it stood when it crashed
MACHINE_FILE = "machine.json"  # there too, as long as a virtual machine runs that would outlive the worker


class Absent(ModuleType):
    """Stands for a package that is not installed, and says so when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"{self.__name__} is not installed here: pip install {self.__name__}")


def stand_in_for(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        sys.modules[package] = Absent(package)


class Stopped(BaseException):
    """The worker was asked to end in the middle of a call."""


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended workers leave nothing behind
    stand_in_for("easyocr")
    from arpo.envs.osworld.desktop_episode import Desktop

    gc.freeze()  # what was loaded is shared with all workers as long as nobody writes to it
    control.send(json.dumps({"ready": os.getpid()}).encode())
    while True:
        order, handles, _, _ = socket.recv_fds(control, PACKET, 1)
        if not order:
            return
        with socket.socket(fileno=handles[0]) as connection:
            _fork(control, connection, json.loads(order), Desktop)


def _fork(
    control: socket.socket, connection: socket.socket, order: Json, desktop: Callable[..., Desktop]
) -> None:
    nursery = os.getpid()
    try:
        child = os.fork()
    except OSError as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    if child:
        handle = os.pidfd_open(child)
        socket.send_fds(control, [json.dumps({"pid": child}).encode()], [handle])
        os.close(handle)
        return
    try:
        control.close()
        _live(connection, order, nursery, desktop)
    finally:
        os._exit(0)  # the nursery's own stack is no business of the worker's


def _live(connection: socket.socket, order: Json, nursery: int, desktop: Callable[..., Desktop]) -> None:
    folder = Path(order["folder"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _stop if order["gentle"] else signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM if order["gentle"] else signal.SIGKILL)
    if os.getppid() != nursery:
        return
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_GO))
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    with (folder / CRASH_FILE).open("w") as crash:
        faulthandler.enable(crash)
        temporary = folder / "tmp"
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
        os.chdir(temporary)
        _serve(connection, folder, desktop)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


def _serve(connection: socket.socket, folder: Path, desktop: Callable[..., Desktop]) -> None:
    """Answers one call after the other, until told to close or left alone."""
    held: Desktop | None = None
    try:
        while True:
            call, _ = receive(connection)
            try:
                if "config" in call:
                    held = desktop(
                        config=OSWorldConfig(**call["config"]),
                        env=EnvConfig(**call["env"]),
                        network=call["network"],
                        folder=folder,
                        home=Path(call["home"]),
                    )
                if held is None:
                    raise RuntimeError("nothing was started")
                answer, picture = _carried_out(held, call)
            except Exception as error:
                answer, picture = {"error": _described(error, call["call"])}, b""
            send(connection, answer, picture)
            if call["call"] == "close":
                return
    except (EOFError, OSError, Stopped):
        return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if held is not None:
            held.close()


def _carried_out(desktop: Desktop, call: Json) -> tuple[Json, bytes]:
    match call["call"]:
        case "start":
            return {}, desktop.start(_task(call["task"]))
        case "step":
            return {}, desktop.step(tuple(action_from_json(action) for action in call["actions"]))
        case "evaluate":
            return {"score": desktop.evaluate()}, b""
        case "close":
            desktop.close()
            return {}, b""
        case "stop":
            desktop.stop_left_behind(call["note"])
            return {}, b""
        case other:
            raise ValueError(f"there is no call {other!r}")


def _task(fields: Json) -> Task:
    lists = {key: tuple(fields[key]) for key in ("config", "related_apps")}
    return Task(**{**fields, **lists})


def _described(error: Exception, where: str) -> Json:
    """What the other side raises again. A user's mistake explains itself; of others the type is told too."""
    if isinstance(error, ArpoFault):
        late = isinstance(error, EnvTimeout)
        return {"late": late, "where": error.where, "message": error.message}
    message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return {"late": False, "where": where, "message": message}


if __name__ == "__main__":
    main()
