"""Opens everything for playing the episodes of a recipe: engine, renderer, prompt template, environments."""

from __future__ import annotations

import asyncio
import gc
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from arpo.cluster.services import Cluster, ClusterServers, open_cluster
from arpo.config import Config
from arpo.dialects.base import Dialect
from arpo.dialects.registry import AUTO, BASE, choose_dialect
from arpo.engines.base import ServedEngine
from arpo.engines.factory import model_id, open_engine
from arpo.envs.factory import open_pool
from arpo.envs.pool import EnvPool
from arpo.envs.remote import add_timeout_slack
from arpo.errors import BadSetting, closed_on_error
from arpo.prompts.rendering import PromptRenderer, Renderer
from arpo.prompts.templates import PromptTemplate, load_template
from arpo.reporting.display import Display
from arpo.rollout.agent import Agent, AgentProgram
from arpo.rollout.copies import Copies
from arpo.rollout.scheduler import Scheduler
from arpo.serving.servers import OwnServers, Server, open_servers

SERVER_LOGS, AGENT_LOGS = "servers", "agent-logs"  # folders in the run folder


class _Addressed(Protocol):
    """A server that may move."""

    def address(self) -> str: ...


_Running = AbstractAsyncContextManager[Sequence[_Addressed]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """The scheduler of episodes, and the model behind it.

    `model` is the module that the engine samples from, or that a learner trains. It is None if only servers
    have the weights. `served` is the engine if it uses servers. `servers` are those that the player starts
    and ends itself, with logs in `server_logs`. `cluster` is the Ray cluster of the recipe. `choice` tells
    the user which dialect was chosen; "" if the recipe names it.
    """

    scheduler: Scheduler
    renderer: PromptRenderer
    model: Any
    choice: str = ""
    served: ServedEngine | None = None
    servers: OwnServers | ClusterServers | None = None
    server_logs: Path | None = None
    cluster: Cluster | None = None
    _restartable: list[Server] = field(default_factory=list, init=False)  # started, not those of a cluster

    @property
    def token_renderer(self) -> Renderer:
        """The renderer of an engine that takes tokens, as training needs."""
        assert isinstance(self.renderer, Renderer), "the engine takes messages, not tokens"
        return self.renderer

    def close(self) -> None:
        """End the environment hosts that the player has started. Call it after the last episode."""
        self.scheduler.pool.close()

    def stop_waiting(self) -> None:
        """End a pause in which no environment or no server works with `Outage`. Call it in the loop."""
        self.scheduler.pool.outage.stop()
        if self.served is not None:
            self.served.stop()

    @asynccontextmanager
    async def started(self, display: Display) -> AsyncIterator[Scheduler]:
        """The scheduler with a connected engine, which is closed at the end, and with its servers."""
        engine = self.scheduler.agent.engine
        self.scheduler.pool.outage.report = display.note
        if self.scheduler.copies is not None:
            self.scheduler.copies.report = display.note
        if self.cluster is not None:
            self.cluster.notes.report = display.note
        async with AsyncExitStack() as opened:
            if self.served is not None:
                self.served.report = display.note
                if self.servers is not None:
                    running: _Running = self.servers.running(self.server_logs, display.note)
                    started = await opened.enter_async_context(running)
                    self._restartable[:] = [server for server in started if isinstance(server, Server)]
                    self.served.use_servers([server.address for server in started], self.servers.key)
            opened.push_async_callback(engine.close)
            if self.choice:
                display.mention(self.choice)
            for message in await engine.start():
                display.note(message)
            yield self.scheduler

    @asynccontextmanager
    async def free_gpu(self) -> AsyncIterator[None]:
        """Servers on the GPU of the learner sleep during the block. No episode is played in it.

        A server that cannot sleep or wake holds memory that it cannot use: it restarts.
        """
        if self.served is None or self.servers is None or not self.servers.share_gpu:
            yield
            return
        await self._restart(await self.served.sleep())
        try:
            yield
        finally:
            release_gpu_memory()
            await self._restart(await self.served.wake())

    async def _restart(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            await asyncio.to_thread(self._restartable[number].restart)


def open_player(config: Config, *, learning: bool = False, teaching: bool = False) -> Player:
    """Open the environments and the engine of the recipe. Wrong settings raise UserError here.

    `learning`: a learner will train the player's model. `teaching`: the model of model.path will learn from
    the episodes, so a chat server gets its prompt, and answers in its dialect. The caller closes the player.
    """
    if learning:
        from arpo.models.loading import check_trainable  # here: it loads torch

        check_trainable(config.model)
    student = replace(config, engine=replace(config.engine, name="in_process")) if teaching else config
    dialect = open_dialect(student)
    template = open_template(student)
    program = _open_program(config, with_folder=learning or teaching)
    cluster = open_cluster(config)
    pool = _open_pool(config, cluster)
    with closed_on_error(pool):
        servers = open_servers(config, learning=learning) if cluster is None else cluster.servers
        if isinstance(servers, OwnServers) and servers.share_gpu:
            return_memory_in_parts()
        opened = open_engine(config, learning=learning, teaching=dialect if teaching else None)
    agent = Agent(
        engine=opened.engine,
        renderer=opened.renderer,
        template=template,
        dialect=dialect,
        positions=_positions(opened.model),
        program=program,
        student=opened.renderer if teaching and isinstance(opened.renderer, Renderer) else None,
    )
    scheduler = Scheduler(
        pool=pool,
        agent=agent,
        settings=config.rollout,
        seed=config.run.seed,
        copies=_copies(config, pool, opened.model),
    )
    return Player(
        scheduler=scheduler,
        renderer=opened.renderer,
        model=opened.model,
        choice=_describe_choice(config, dialect),
        served=opened.served,
        servers=servers,
        server_logs=Path(config.run.dir) / SERVER_LOGS if learning else None,
        cluster=cluster,
    )


def open_dialect(config: Config) -> Dialect:
    """The dialect of the recipe's model. Reads its config.json, if the model is not on a server."""
    if config.engine.name == "openai" or config.model.dialect != AUTO or config.model.path == BASE:
        return choose_dialect(config.model.dialect, model_id(config), None)
    from arpo.models.loading import read_config, resolve_model

    model_type = read_config(resolve_model(config.model.path)).model_type
    return choose_dialect(AUTO, config.model.path, model_type)


def prompt_of(config: Config) -> str:
    """The prompt of the recipe, as in model.prompt. "auto" becomes the one of the dialect."""
    if config.model.prompt != AUTO:
        return config.model.prompt
    dialect = open_dialect(config)
    if not dialect.prompt:
        raise BadSetting(
            "model.prompt",
            f"is auto, but no package is known with the prompt of the dialect {dialect.name}: save it in a "
            "file with {instruction}, its system text in another one, and set model.prompt to "
            "'task.txt,system=system.txt'",
        )
    return dialect.prompt


def open_template(config: Config) -> PromptTemplate:
    return load_template(prompt_of(config), open_dialect(config).layout)


def _describe_choice(config: Config, dialect: Dialect) -> str:
    if config.model.dialect != AUTO or config.model.path == BASE:
        return ""
    return f"the model answers in the dialect {dialect.name} (model.dialect = auto)"


def return_memory_in_parts() -> None:
    """Let `release_gpu_memory` return each free part. Call it before the model is loaded.

    Otherwise torch keeps a block of memory as long as a small part is in use: after an update of a 7B model,
    17 GiB more than all its tensors. Does nothing without a GPU.
    """
    import torch

    if torch.cuda.is_available():
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def release_gpu_memory() -> None:
    """Give memory that torch keeps for later tensors back to the GPU, where another process needs it."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def _open_program(config: Config, *, with_folder: bool) -> AgentProgram | None:
    """The agent program of the recipe. Without a run folder, its output goes to a temporary one."""
    if not config.rollout.agent:
        return None
    try:
        command = tuple(shlex.split(config.rollout.agent))
    except ValueError as error:
        raise BadSetting("rollout.agent", f"is {config.rollout.agent!r}, not a command: {error}") from error
    if not command or shutil.which(command[0]) is None:
        raise BadSetting(
            "rollout.agent",
            f"is {config.rollout.agent!r}, but there is no such program: begin with a program or its path, "
            f"for example {sys.executable}",
        )
    logs = Path(config.run.dir) / AGENT_LOGS if with_folder else Path(tempfile.mkdtemp(prefix="arpo-agent-"))
    return AgentProgram(
        command=command,
        logs=logs,
        start_seconds=config.env.start_seconds,
        call_seconds=config.env.step_seconds,
    )


def _open_pool(config: Config, cluster: Cluster | None) -> EnvPool:
    if cluster is None or not config.cluster.hosts:
        return open_pool(config)
    return EnvPool(cluster.open_hosts(), add_timeout_slack(config.env))


def _copies(config: Config, pool: EnvPool, model: Any) -> Copies | None:
    """None if a core is not the limit, or if other threads work during rollouts: a copy would lack them."""
    if not config.samples_in_process or config.rollout.agent or model is None or model.device.type != "cpu":
        return None
    from arpo.models.cores import is_small

    if not is_small(model):
        return None
    alone = not config.train.max_staleness and config.optim.ranks == 1 and sys.platform == "linux"
    return Copies(model) if alone and pool.local and config.env.name == "desk" else None


def _positions(model: Any) -> int | None:
    """The context length of the model's config.json; None if the model is on a server."""
    if model is None:
        return None
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)
