"""Opens everything that plays episodes for a recipe: engine, renderer, prompt template, environments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from arpo.config import Config
from arpo.engines.factory import open_engine
from arpo.engines.vllm import VllmEngine
from arpo.envs.factory import open_pool
from arpo.prompts.conversation import load_template
from arpo.prompts.rendering import PromptRenderer, Renderer
from arpo.reporting.display import Display
from arpo.rollout.episode import Agent
from arpo.rollout.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """The scheduler that plays episodes, and the model behind it.

    `model` is the module that the engine samples from, or that a learner trains. It is None if only servers
    have the weights.
    """

    scheduler: Scheduler
    renderer: PromptRenderer
    model: Any

    @property
    def token_renderer(self) -> Renderer:
        """The renderer of an engine that takes tokens, as training needs."""
        assert isinstance(self.renderer, Renderer), "the engine takes messages, not tokens"
        return self.renderer

    def stop_waiting(self) -> None:
        """End a pause in which no environment or no server works with `Outage`. Call it in the loop."""
        self.scheduler.pool.outage.stop()
        engine = self.scheduler.agent.engine
        if isinstance(engine, VllmEngine):
            engine.stop()

    @asynccontextmanager
    async def started(self, display: Display) -> AsyncIterator[Scheduler]:
        """The scheduler with a connected engine, which is closed at the end."""
        engine = self.scheduler.agent.engine
        self.scheduler.pool.outage.report = display.note
        if isinstance(engine, VllmEngine):
            engine.report = display.note
        try:
            for message in await engine.start():
                display.note(message)
            yield self.scheduler
        finally:
            await engine.close()


def open_player(config: Config, *, learning: bool = False) -> Player:
    """Open the environments and the engine of the recipe. Wrong settings raise UserError here.

    `learning`: a learner will train the player's model.
    """
    template = load_template(config.model.prompt)
    pool = open_pool(config)
    opened = open_engine(config, learning=learning)
    agent = Agent(
        engine=opened.engine,
        renderer=opened.renderer,
        template=template,
        coordinates=config.model.coordinates,
        positions=_positions(opened.model),
    )
    scheduler = Scheduler(pool=pool, agent=agent, settings=config.rollout, seed=config.run.seed)
    return Player(scheduler=scheduler, renderer=opened.renderer, model=opened.model)


def _positions(model: Any) -> int | None:
    """The context length of the model's config.json; None if the model is on a server."""
    if model is None:
        return None
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)
