"""From a recipe to the parts that play and learn: model, renderer, engine, environments, learner."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from arpo.config import Config
from arpo.conversation import load_template
from arpo.engines.hf import HFEngine
from arpo.envs.resolve import open_pool
from arpo.learner.base import Learner
from arpo.learner.local import LocalLearner
from arpo.learner.sharded import ShardedLearner
from arpo.models.loading import check_fit, load_model, load_renderer
from arpo.models.trainable import base_of, choose_trained
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
    pool = open_pool(config)
    template = load_template(config.model.prompt)
    renderer = load_renderer(config.model)
    model = load_model(config.model, config.run.seed)
    check_fit(model, renderer)
    engine = HFEngine(model, renderer, slots=config.env.parallel)
    agent = Agent(engine=engine, renderer=renderer, template=template, coordinates=config.model.coordinates)
    scheduler = Scheduler(
        pool=pool,
        agent=agent,
        settings=config.rollout,
        seed=config.run.seed,
    )
    return Ensemble(model=model, renderer=renderer, scheduler=scheduler)


def open_learner(ensemble: Ensemble, config: Config) -> Learner:
    """The learner of the model that plays, in this process or, with optim.ranks, in others besides."""
    model = ensemble.model
    choose_trained(model, config.model, config.run.seed)
    if config.optim.ranks > 1:
        return ShardedLearner(model, ensemble.renderer, config)
    base = base_of(model) if config.compares_with_base else None
    return LocalLearner(model, ensemble.renderer, config, base)
