"""Chooses the engine of a recipe: `engine.name`.

- `in_process`: the model of `model.path`, loaded into this process. It returns tokens, as training needs.
- `vllm`: vLLM servers of the model of `model.path`. They return tokens and load new weights.
- `openai`: OpenAI-compatible servers (`server.endpoints`). They return text, for evaluation and as teachers.
- `person`: a person on a page, as a teacher.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from arpo.config import Config, EngineConfig
from arpo.dialects.base import Dialect
from arpo.engines.base import Engine, ServedEngine
from arpo.errors import BadSetting, UserError
from arpo.prompts.rendering import ChatRenderer, PromptRenderer, Renderer

if TYPE_CHECKING:  # it loads torch
    from arpo.engines.cached_episodes import Passes

TEXT_ONLY = {"openai": "a chat server", "person": "a person"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedEngine:
    """An engine with the renderer for its prompts.

    `model` is the module that the engine samples from, or that a learner trains. It is None if the weights
    are not in this process. `served` is the engine if its model runs on servers that a player may start.
    """

    engine: Engine
    renderer: PromptRenderer
    model: Any
    served: ServedEngine | None = None


def open_engine(config: Config, *, learning: bool = False, teaching: Dialect | None = None) -> OpenedEngine:
    """Open the engine of `engine.name`. Loads a model in process; does not connect to a server yet.

    `learning`: a learner trains the model in this process, and loads its weights before the first request.
    `teaching`: the dialect of the model of model.path, if it will learn from the answers: those of a chat
    server and of a person get its tokens.
    """
    if config.engine.name == "openai":
        opened = _open_openai(config)
        return opened if teaching is None else _taught(config, lambda _: opened.engine)
    if config.engine.name == "person":
        from arpo.engines.person import PersonEngine

        if teaching is None or config.rollout.agent:
            raise UserError(
                'engine.name = "person": a person plays in `arpo collect` only, without an agent program'
            )
        return _taught(config, partial(PersonEngine, dialect=teaching))
    if config.engine.name == "vllm":
        return _open_vllm(config, learning)
    return _open_in_process(config)


def require_tokens(engine: EngineConfig) -> None:
    """Refuse an engine that returns text without tokens. Such episodes cannot be trained on."""
    if engine.name in TEXT_ONLY:
        raise UserError(
            f'engine.name = "{engine.name}": {TEXT_ONLY[engine.name]} returns text without tokens, and '
            'training needs the sampled tokens. Set engine.name = "in_process" or "vllm". To learn from it, '
            'record its episodes with `arpo collect`, then set train.method = "sft"'
        )


def model_id(config: Config) -> str:
    """The model that the engine serves: a server's model name, or model.path. Examples: "ui-tars", "base"."""
    return config.server.model if config.engine.name == "openai" else config.model.path


def _open_openai(config: Config) -> OpenedEngine:
    from arpo.engines.openai import OpenAIEngine

    return OpenedEngine(
        engine=OpenAIEngine(config.server, os.environ.get("OPENAI_API_KEY", "")),
        renderer=ChatRenderer(config.model.min_pixels, config.model.max_pixels),
        model=None,
    )


def _taught(config: Config, teacher: Callable[[Renderer], Engine]) -> OpenedEngine:
    """An engine that returns text, as a teacher of the model of model.path."""
    from arpo.engines.teacher import TeacherEngine
    from arpo.models.loading import load_renderer

    renderer = load_renderer(config.model)
    engine = TeacherEngine(teacher=teacher(renderer), student=renderer)
    return OpenedEngine(engine=engine, renderer=renderer, model=None)


def _open_vllm(config: Config, learning: bool) -> OpenedEngine:
    from arpo.engines.vllm import VllmEngine
    from arpo.engines.vllm_access import read_key
    from arpo.engines.vllm_client import MAX_TEMPERATURE
    from arpo.models.loading import load_renderer

    for section, temperature in (("rollout", config.rollout.temperature), ("eval", config.eval.temperature)):
        if temperature > MAX_TEMPERATURE:
            raise BadSetting(
                f"{section}.temperature", f"is {temperature:g}, vLLM accepts at most {MAX_TEMPERATURE:g}"
            )
    renderer = load_renderer(config.model)
    engine = VllmEngine(config, renderer, read_key(), learning=learning)
    model = _load_model(_of_learner(config), renderer) if learning else None
    return OpenedEngine(engine=engine, renderer=renderer, model=model, served=engine)


def _of_learner(config: Config) -> Config:
    """With several ranks, the full model of a learner only supplies the values of shards: it needs no GPU."""
    sharded = config.optim.ranks > 1
    return replace(config, model=replace(config.model, device="cpu")) if sharded else config


def _open_in_process(config: Config) -> OpenedEngine:
    from arpo.engines.in_process import InProcessEngine
    from arpo.models.loading import load_renderer
    from arpo.models.memory_advice import fit_memory

    renderer = load_renderer(config.model)
    fit_memory(config, learning=False)
    model = _load_model(config, renderer)
    passes = open_passes(model, renderer.pad_id, config)
    engine = InProcessEngine(model, renderer, passes, in_flight=config.trains_a_copy)
    return OpenedEngine(engine=engine, renderer=renderer, model=model)


def _load_model(config: Config, renderer: Renderer) -> Any:
    from arpo.models.cores import use_cores
    from arpo.models.loading import check_compatible, load_model

    use_cores(config.run.threads or os.cpu_count() or 1)
    model = load_model(config.model, config.run.seed)
    check_compatible(model, renderer)
    return model


def open_passes(model: Any, pad_id: int, config: Config) -> Passes:
    """A pool for 16-bit models on a GPU, otherwise slots: torch's kernel for a pool needs both."""
    from arpo.engines.pool_passes import PoolPasses
    from arpo.engines.slot_passes import SlotPasses

    episodes = config.engine_episodes
    if model.device.type == "cpu" or config.model.dtype == "float32":
        return SlotPasses(model, pad_id, episodes)
    return PoolPasses(
        model,
        pad_id,
        episodes=episodes,
        max_tokens=config.rollout.max_context_tokens,
        gigabytes=config.engine.cache_gigabytes,
        kept=config.trains_a_copy,
    )
