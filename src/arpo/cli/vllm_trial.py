"""A real request to a vLLM server, for `arpo doctor`: it finds what no check of packages finds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.engines.factory import open_engine
from arpo.envs.desk.env import DeskEnv
from arpo.errors import UserError
from arpo.prompts.conversation import Conversation
from arpo.prompts.rendering import Renderer
from arpo.rollout.player import open_template
from arpo.serving.servers import open_servers
from arpo.serving.vllm_server import cache_folder
from arpo.tasks.lists import load_tasks
from arpo.types import Prompt, Sampling

TOKENS = 10
EPISODE = "doctor"


def trial_config(*settings: str) -> Config:
    """One server with Desk's model in the type of large models, and a small cache of keys."""
    own = (
        "--engine.name=vllm",
        "--engine.replicas=1",
        "--engine.cache_gigabytes=1",
        "--model.dtype=bfloat16",
    )
    return load_config("desk", [*own, *settings])


def request_tokens(config: Config, note: Callable[[str], None] = lambda text: None) -> str:
    """Start a server, ask it for at most TOKENS tokens about a screenshot of Desk, and end it.

    Returns the times in words.

    Raises UserError if it does not start at its first attempt, or if it answers with other tokens.
    """
    servers = open_servers(config, learning=False)
    assert servers is not None
    opened = open_engine(config)
    assert opened.served is not None and isinstance(opened.renderer, Renderer)
    served, renderer = opened.served, opened.renderer

    async def ask() -> str:
        prompt = await _prompt(config, renderer)
        began = time.monotonic()
        async with replace(servers, watch=replace(servers.watch, attempts=1)).running(None, note) as started:
            served.use_servers([server.address for server in started], servers.key)
            try:
                await opened.engine.start()
                ready = time.monotonic()
                answer = await opened.engine.generate(
                    prompt, Sampling(temperature=1.0, max_tokens=TOKENS, seed=0)
                )
                ended = time.monotonic()
            finally:
                await opened.engine.close()
        if not 1 <= len(answer.token_ids) <= TOKENS:
            raise UserError(f"a request for {TOKENS} tokens was answered with {len(answer.token_ids)}")
        times = (
            f"{len(answer.token_ids)} tokens in {ended - ready:.1f} s, after a start of {ready - began:.0f} s"
        )
        return f"{times}; compile caches: {cache_folder()}"

    return asyncio.run(ask())


async def _prompt(config: Config, renderer: Renderer) -> Prompt:
    task = load_tasks(config.tasks.train)[0]
    observation = await DeskEnv().start(task)
    template = open_template(config)
    messages = (
        Conversation(template=template, instruction=task.instruction, max_images=1)
        .look(observation.screenshot)
        .messages()
    )
    rendered = renderer.render(messages)
    return Prompt(episode_id=EPISODE, token_ids=rendered.token_ids, images=rendered.images, messages=messages)
