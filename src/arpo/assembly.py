"""From a recipe to the parts that play: model, renderer, engine and environments, in this process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from arpo.config import Config
from arpo.conversation import load_template
from arpo.engines.hf import HFEngine
from arpo.envs.pool import EnvPool
from arpo.envs.resolve import resolve_env
from arpo.models.loading import load_model, resolve_model
from arpo.rendering import Renderer
from arpo.rollout import Agent
from arpo.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Who takes part in a run: the model in memory, and the scheduler through which it plays."""

    model: Any
    renderer: Renderer
    scheduler: Scheduler


def assemble(config: Config) -> Ensemble:
    """Load the model and open the engine and the environments that the recipe names."""
    torch.set_num_threads(config.run.threads or os.cpu_count() or 1)
    factory = resolve_env(config.env)
    template = load_template(config.model.prompt)
    folder = resolve_model(config.model.path)
    model = load_model(folder, config.model.dtype, config.model.device)
    renderer = Renderer.from_folder(folder, config.model.min_pixels, config.model.max_pixels)
    engine = HFEngine(model, renderer, slots=config.env.parallel)
    scheduler = Scheduler(
        pool=EnvPool(factory, config.env),
        agent=Agent(engine=engine, renderer=renderer, template=template),
        settings=config.rollout,
        seed=config.run.seed,
    )
    return Ensemble(model=model, renderer=renderer, scheduler=scheduler)
