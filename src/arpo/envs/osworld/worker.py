"""Program of the fork server and of its workers, one per episode.

    python -m arpo.envs.osworld.worker FD

FD is the control socket. A worker answers calls (start, step, evaluate, close; or stop, for the machine of a
crashed worker) one at a time, in its main thread. An error is sent back as JSON and the worker continues. A
worker ends when its connection closes or the fork server ends. The fork server ends when FD closes.
Only `main` loads desktop-env.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import json
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from arpo.actions import action_from_json
from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.osworld.messages import CRASH_FILE, MAX_PACKET_BYTES, receive, send
from arpo.envs.osworld.sandbox import guest_files
from arpo.envs.osworld.sandbox_layout import readable_by_guest
from arpo.errors import ArpoFault, EnvTimeout, UserError
from arpo.processes.child import end_with_parent
from arpo.types import Json, Task

if TYPE_CHECKING:
    from arpo.envs.osworld.desktop_episode import DesktopEpisode

OOM_SCORE_ADJ = 800  # when memory runs out, the kernel kills workers first: only one episode is lost


class MissingPackage(ModuleType):
    """Placeholder for a package that is not installed. Using it raises ImportError."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"{self.__name__} is not installed: pip install {self.__name__}")


def add_placeholder(package: str) -> None:
    """Makes `import package` succeed even if the package is not installed."""
    if importlib.util.find_spec(package) is None:
        sys.modules[package] = MissingPackage(package)


class StopRequested(BaseException):
    """The worker received SIGTERM during a call."""


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended workers leave no zombies
    add_placeholder("easyocr")
    from arpo.envs.osworld.desktop_episode import DesktopEpisode

    gc.freeze()  # keeps the garbage collector from copying memory pages shared with the workers
    control.send(json.dumps({"ready": os.getpid()}).encode())
    while True:
        request, handles, _, _ = socket.recv_fds(control, MAX_PACKET_BYTES, 1)
        if not request:
            return
        with socket.socket(fileno=handles[0]) as connection:
            _fork(control, connection, json.loads(request), DesktopEpisode)


def _fork(
    control: socket.socket,
    connection: socket.socket,
    request: Json,
    make_episode: Callable[..., DesktopEpisode],
) -> None:
    server_pid = os.getpid()
    if not request["gentle"]:
        with suppress(UserError, OSError):  # the worker reports it
            readable_by_guest(guest_files())  # once, for all workers
    try:
        child = os.fork()
    except OSError as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    if child:
        pidfd = os.pidfd_open(child)
        socket.send_fds(control, [json.dumps({"pid": child}).encode()], [pidfd])
        os.close(pidfd)
        return
    try:
        control.close()
        _run_worker(connection, request, server_pid, make_episode)
    finally:
        os._exit(0)  # the worker must not return into the fork server's loop


def _run_worker(
    connection: socket.socket, request: Json, server_pid: int, make_episode: Callable[..., DesktopEpisode]
) -> None:
    folder = Path(request["folder"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _on_sigterm if request["gentle"] else signal.SIG_DFL)
    end_with_parent(signal.SIGTERM if request["gentle"] else signal.SIGKILL)
    if os.getppid() != server_pid:
        return
    for name, value in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE_ADJ))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    with (folder / CRASH_FILE).open("w") as crash:
        faulthandler.enable(crash)
        temporary = folder / "tmp"
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
        os.chdir(temporary)
        _serve(connection, folder, make_episode)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise StopRequested


def _serve(connection: socket.socket, folder: Path, make_episode: Callable[..., DesktopEpisode]) -> None:
    """Answers calls until `close`, SIGTERM or the end of the connection. Then stops the machine."""
    episode: DesktopEpisode | None = None
    try:
        while True:
            call, _ = receive(connection)
            try:
                if "config" in call:
                    episode = make_episode(
                        config=OSWorldConfig(**call["config"]),
                        env=EnvConfig(**call["env"]),
                        network=call["network"],
                        folder=folder,
                        home=Path(call["home"]),
                    )
                if episode is None:
                    raise RuntimeError("no episode was started")
                answer, screenshot = _dispatch(episode, call)
            except Exception as error:
                answer, screenshot = {"error": _error_to_json(error, call["call"])}, b""
            send(connection, answer, screenshot)
            if call["call"] == "close":
                return
    except (EOFError, OSError, StopRequested):
        return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if episode is not None:
            episode.close()


def _dispatch(episode: DesktopEpisode, call: Json) -> tuple[Json, bytes]:
    match call["call"]:
        case "start":
            return {}, episode.start(_task_from_json(call["task"]))
        case "step":
            return {}, episode.step(tuple(action_from_json(action) for action in call["actions"]))
        case "evaluate":
            return {"score": episode.evaluate()}, b""
        case "close":
            episode.close()
            return {}, b""
        case "stop":
            episode.stop_orphaned_machine(call["note"])
            return {}, b""
        case other:
            raise ValueError(f"unknown call {other!r}")


def _task_from_json(fields: Json) -> Task:
    lists = {key: tuple(fields[key]) for key in ("config", "related_apps")}
    return Task(**{**fields, **lists})


def _error_to_json(error: Exception, where: str) -> Json:
    """The message includes the type of unexpected errors; a UserError explains itself."""
    if isinstance(error, ArpoFault):
        late = isinstance(error, EnvTimeout)
        return {"late": late, "where": error.where, "message": error.message}
    message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return {"late": False, "where": where, "message": message}


if __name__ == "__main__":
    main()
