"""From a recipe to the parts that play and learn: model, renderer, engine, environments, learner."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from arpo.algorithms.curriculum import Curriculum
from arpo.config import Config
from arpo.engines.in_process import HFEngine
from arpo.envs.factory import open_pool
from arpo.envs.task_files import load_counts
from arpo.errors import UserError
from arpo.learner.base import Learner
from arpo.learner.local import LocalLearner
from arpo.learner.sharded import ShardedLearner
from arpo.models.loading import check_fit, load_model, load_renderer
from arpo.models.trainable import base_of, choose_trained
from arpo.prompts.conversation import load_template
from arpo.prompts.rendering import Renderer
from arpo.rollout.episode import Agent
from arpo.rollout.scheduler import Scheduler


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


def curriculum_of(config: Config) -> Curriculum:
    """The recipe's, with the counts of tasks.train; refused where that source has none."""
    kind, source = config.train.curriculum, config.tasks.train
    counts = load_counts(source, config.tasks.examples) if kind != "none" else {}
    if kind != "none" and not counts:
        raise UserError(
            f"train.curriculum = {kind!r}: {source} has no screening counts: make a list that has, with "
            f"`arpo screen --tasks {source} --out kept.json`, and name it as tasks.train"
        )
    return Curriculum(kind=kind, passes=config.train.epochs, counts=counts)
