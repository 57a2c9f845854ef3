"""OSWorld environment. Each episode runs in its own worker process, which can be killed at any time.

This process never loads desktop-env and never blocks. After `close`, the worker and its files are gone. A
virtual machine outlives a crashed worker: `close` starts another worker to stop it.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib.util
import json
import shutil
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from arpo.actions import Action, action_to_json
from arpo.config import EnvConfig, OSWorldConfig
from arpo.config.recipe import find_program
from arpo.envs.osworld.fork_server import ForkServer, Worker, fork_server
from arpo.envs.osworld.limits import Limits
from arpo.envs.osworld.messages import (
    CRASH_FILE,
    MACHINE_FILE,
    InvalidMessage,
    encode_message,
    receive_async,
)
from arpo.envs.osworld.needs import LOCAL
from arpo.envs.osworld.runnable import allows_network, why_not_runnable
from arpo.envs.wire import task_to_json
from arpo.errors import EnvError, EnvTimeout, UserError
from arpo.types import Observation, Screenshot, StepResult, Task

PROVIDERS = (LOCAL, "docker", "vmware", "virtualbox", "aws", "azure", "aliyun", "volcengine")
PROVIDER_PROGRAMS = {"vmware": "vmrun", "virtualbox": "VBoxManage"}
DEFAULT_IMAGE = Path("docker_vm_data", "Ubuntu.qcow2")  # as in OSWorld's own runner
STOP_SECONDS = 30.0  # for a machine to stop; Docker gives a container ten seconds of it
IMAGE_SOURCE = "https://huggingface.co/datasets/xlangai/ubuntu_osworld (Ubuntu.qcow2.zip)"


class OSWorldEnv:
    """The constructor only checks the settings; `start` boots the desktop."""

    def __init__(self, config: OSWorldConfig, env: EnvConfig) -> None:
        self._config = replace(
            config, machine=_machine_path(config), cache=str(Path(config.cache).absolute())
        )
        self._settings = {"config": asdict(self._config), "env": asdict(env), "home": str(Path.cwd())}
        limits = Limits.of(config) if config.provider == LOCAL else None
        self._server = fork_server(_find_python(config.python), config.provider, limits)
        self.client = WorkerClient(self._server)
        self._used = False
        self._closing: asyncio.Task[None] | None = None

    async def start(self, task: Task) -> Observation:
        if self._used or self._closing is not None:
            raise EnvError("start", "the environment was already used: make a new one for each episode")
        self._used = True
        network = self._check_runnable(task)
        await self.client.start()
        sent = {"task": task_to_json(task), "network": network, **self._settings}
        _, screenshot = await self.client.call("start", **sent)
        return Observation(screenshot=Screenshot.of(screenshot))

    def _check_runnable(self, task: Task) -> bool:
        """Whether the task may use the network. Raises EnvError if the task cannot run here."""
        try:
            reason = why_not_runnable(task, self._config)
            network = allows_network(task, self._config.network)
        except UserError as error:
            raise EnvError("start", str(error)) from error
        if reason is not None:
            raise EnvError("start", f"task {task.id}: {reason}")
        return network

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        _, screenshot = await self.client.call("step", actions=[action_to_json(action) for action in actions])
        return StepResult(observation=Observation(screenshot=Screenshot.of(screenshot)))

    async def evaluate(self) -> float:
        answer, _ = await self.client.call("evaluate")
        return answer["score"]

    async def close(self) -> None:
        """Ends the worker and deletes its files. A second call waits for the first."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        worker = await self.client.stop()
        if worker is None:
            return
        machine_file = worker.folder / MACHINE_FILE
        try:
            if machine_file.exists():
                await self._stop_orphaned_machine(machine_file.read_text("utf-8"))
        finally:
            await asyncio.to_thread(shutil.rmtree, worker.folder, ignore_errors=True)

    async def _stop_orphaned_machine(self, machine: str) -> None:
        client = WorkerClient(self._server)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await client.start()
                await client.call("stop", note=json.loads(machine), network=False, **self._settings)
        except (TimeoutError, EnvError) as error:
            raise EnvError(
                "close",
                f"the worker died and its machine may still run ({machine}): {error}; stop it by hand",
            ) from error
        finally:
            if (worker := await client.stop()) is not None:
                shutil.rmtree(worker.folder, ignore_errors=True)


def _machine_path(config: OSWorldConfig) -> str:
    """Path or name of the virtual machine. Raises UserError if the provider cannot work on this machine."""
    provider = config.provider
    if provider not in PROVIDERS:
        nearest = difflib.get_close_matches(provider, PROVIDERS, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise UserError(
            f"osworld.provider = {provider!r}: unknown provider; use one of {', '.join(PROVIDERS)}{hint}"
        )
    if provider in PROVIDER_PROGRAMS and shutil.which(PROVIDER_PROGRAMS[provider]) is None:
        raise UserError(f"osworld.provider = {provider!r}: {PROVIDER_PROGRAMS[provider]} is not on the PATH")
    if provider != "docker":
        return config.machine
    image = Path(config.machine or DEFAULT_IMAGE).absolute()
    if not image.is_file():
        raise UserError(
            f"osworld.machine: no disk image at {image}; provider 'docker' needs it: "
            f"unpack it from {IMAGE_SOURCE}"
        )
    return str(image)


def _find_python(python: str) -> str:
    """The current interpreter if it has desktop-env, else osworld.python."""
    if importlib.util.find_spec("desktop_env") is not None:
        return sys.executable
    found = find_program(python)
    if found is None:
        raise UserError(f"osworld.python = {python!r}: no such program; run `arpo osworld install`")
    return found


class WorkerClient:
    """Client of one worker process: starts it, sends one call at a time, ends it.

    A call that times out or is cancelled leaves the worker busy; `stop` then kills it. The process is gone
    when `stop` returns. The caller deletes the worker's folder.
    """

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._forking: asyncio.Future[Worker] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._busy = False

    @property
    def worker(self) -> Worker:
        assert self._forking is not None
        return self._forking.result()

    async def start(self) -> None:
        """Waits for a new worker. If this is cancelled, `stop` still ends the worker."""
        self._forking = asyncio.get_running_loop().run_in_executor(None, self._server.fork)
        worker = await asyncio.shield(self._forking)
        worker.connection.setblocking(False)
        self._streams = await asyncio.open_connection(sock=worker.connection)

    async def call(self, name: str, **arguments: Any) -> tuple[Any, bytes]:
        """The worker's answer and screenshot. Raises the worker's errors."""
        if self._streams is None:
            raise EnvError(name, "the environment is not running")
        if self._busy:
            raise EnvError(name, "an earlier call was cancelled before it was answered")
        self._busy = True
        reader, writer = self._streams
        try:
            writer.write(encode_message({"call": name, **arguments}))
            await writer.drain()
            answer, screenshot = await receive_async(reader)
        except (OSError, EOFError, InvalidMessage) as error:
            raise EnvError(name, f"the worker died{self._crash_reason()}") from error
        self._busy = False
        if fault := answer.get("error"):
            kind = EnvTimeout if fault["late"] else EnvError
            raise kind(fault["where"], fault["message"])
        return answer, screenshot

    async def stop(self) -> Worker | None:
        """Ends the worker and returns it; None if none was started.

        A busy worker is killed. If it holds a virtual machine, it gets SIGTERM and `STOP_SECONDS` first.
        """
        if self._forking is None:
            return None
        try:
            worker = await self._forking
        except Exception:  # `start` has raised it
            return None
        try:
            async with asyncio.timeout(STOP_SECONDS):
                if self._streams is not None and not self._busy:
                    await self.call("close")
                elif self._server.gentle:
                    worker.signal(signal.SIGTERM)
                    await _wait_for_exit(worker)
        except (TimeoutError, EnvError):
            pass  # if the machine still runs, its MACHINE_FILE still exists
        finally:
            worker.signal(signal.SIGKILL)
            if self._streams is not None:
                self._streams[1].close()
                self._streams = None
            worker.connection.close()
        await _wait_for_exit(worker)
        await asyncio.to_thread(worker.release)
        return worker

    def _crash_reason(self) -> str:
        crash = self.worker.folder / CRASH_FILE
        try:
            reason = crash.read_text("utf-8", "replace").partition("\n")[0]
        except OSError:
            return ""
        return f": {reason}" if reason else ""


async def _wait_for_exit(worker: Worker) -> None:
    """The kernel makes a pidfd readable when its process ends."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(worker.pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(worker.pidfd)
