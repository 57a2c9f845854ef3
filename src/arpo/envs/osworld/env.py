"""OSWorld as an environment: each episode in a worker process of its own, which can always be killed.

What runs here never loads desktop-env and never blocks. After `close` the worker and its files are gone,
whatever state it was in. A virtual machine outlives a worker that crashes; it is stopped by another one.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib.util
import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

from arpo.actions import Action
from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.osworld.fork_server import nursery
from arpo.envs.osworld.needs import LOCAL, REMEDY, allows_network, missing
from arpo.envs.osworld.worker import MACHINE_FILE
from arpo.envs.osworld.worker_client import STOP_SECONDS, Session
from arpo.errors import EnvError, UserError
from arpo.storage.codec import action_to_json
from arpo.types import Observation, Screenshot, StepResult, Task

PROVIDERS = (LOCAL, "docker", "vmware", "virtualbox", "aws", "azure", "aliyun", "volcengine")
PROGRAMS = {"vmware": "vmrun", "virtualbox": "VBoxManage"}
IMAGE = Path("docker_vm_data", "Ubuntu.qcow2")  # where OSWorld's own runner keeps it
IMAGE_FROM = "https://huggingface.co/datasets/xlangai/ubuntu_osworld (Ubuntu.qcow2.zip)"


class OSWorldEnv:
    """Making one checks the settings and touches nothing."""

    def __init__(self, config: OSWorldConfig, env: EnvConfig) -> None:
        self._config = replace(config, machine=_machine(config), cache=str(Path(config.cache).absolute()))
        self._settings = {"config": asdict(self._config), "env": asdict(env), "home": str(Path.cwd())}
        self._nursery = nursery(_interpreter(config.python), gentle=config.provider != LOCAL)
        self.session = Session(self._nursery)
        self._used = False
        self._ending: asyncio.Task[None] | None = None

    async def start(self, task: Task) -> Observation:
        if self._used or self._ending is not None:
            raise EnvError("start", "an environment is good for one episode, and this one was used")
        self._used = True
        network = self._checked(task)
        await self.session.begin()
        _, picture = await self.session.ask("start", task=asdict(task), network=network, **self._settings)
        return Observation(screenshot=Screenshot.of(picture))

    def _checked(self, task: Task) -> bool:
        """Whether the task is allowed the network. What it lacks is told before anything boots."""
        try:
            lacking = missing(task, self._config)
            network = allows_network(task, self._config.network)
        except UserError as error:
            raise EnvError("start", str(error)) from error
        if lacking is not None:
            raise EnvError("start", f"task {task.id}: {lacking}; {REMEDY}")
        return network

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        _, picture = await self.session.ask("step", actions=[action_to_json(action) for action in actions])
        return StepResult(observation=Observation(screenshot=Screenshot.of(picture)))

    async def evaluate(self) -> float:
        answer, _ = await self.session.ask("evaluate")
        return answer["score"]

    async def close(self) -> None:
        """When it returns, the worker and its files are gone; a second call waits for the first."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        worker = await self.session.end()
        if worker is None:
            return
        note = worker.folder / MACHINE_FILE
        try:
            if note.exists():
                await self._stop_left_behind(note.read_text("utf-8"))
        finally:
            await asyncio.to_thread(shutil.rmtree, worker.folder, ignore_errors=True)

    async def _stop_left_behind(self, note: str) -> None:
        session = Session(self._nursery)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await session.begin()
                await session.ask("stop", note=json.loads(note), network=False, **self._settings)
        except (TimeoutError, EnvError) as error:
            raise EnvError(
                "close", f"its worker died and the machine may still run ({note}): {error}"
            ) from error
        finally:
            if (worker := await session.end()) is not None:
                shutil.rmtree(worker.folder, ignore_errors=True)


def _machine(config: OSWorldConfig) -> str:
    """The provider's machine, after a look whether the provider can work at all."""
    provider = config.provider
    if provider not in PROVIDERS:
        nearest = difflib.get_close_matches(provider, PROVIDERS, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise UserError(f"osworld.provider = {provider!r}: there are {', '.join(PROVIDERS)}{hint}")
    if provider in PROGRAMS and shutil.which(PROGRAMS[provider]) is None:
        raise UserError(f"osworld.provider = {provider!r}: {PROGRAMS[provider]} is not on the PATH")
    if provider != "docker":
        return config.machine
    image = Path(config.machine or IMAGE).absolute()
    if not image.is_file():
        raise UserError(
            f"osworld.machine: provider 'docker' needs OSWorld's disk image, and there is no {image}; "
            f"it is unpacked from {IMAGE_FROM}"
        )
    return str(image)


def _interpreter(python: str) -> str:
    """The one that runs us, if it has desktop-env; else the one that the recipe names."""
    if importlib.util.find_spec("desktop_env") is not None:
        return sys.executable
    found = shutil.which(python)
    if found is None:
        raise UserError(f"osworld.python = {python!r}: no such program; `make osworld` makes .venv-osworld")
    return str(Path(found).absolute())
