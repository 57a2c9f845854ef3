"""Advice for a recipe too large for a GPU: settings to make it fit, the least harmful first.

advise(info, config, 80 * GIB)  # [] if the recipe fits into 80 GiB
fit_memory(config, learning=True)  # before anything is loaded; raises UserError with the advice
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from shlex import quote
from typing import Any

import torch

from arpo.config import Config, OptimConfig
from arpo.config.recipe import value
from arpo.errors import BadSetting, UserError
from arpo.models.linear_attention import KERNELS
from arpo.models.loading import resolve_device
from arpo.models.memory_plan import (
    GIB,
    PROMPT_TOKENS,
    MemoryPlan,
    ModelInfo,
    plan_memory,
    read_model_info,
    screenshot_size,
    workload_of,
)

SHORT_ANSWER_TOKENS = 512  # enough for a thought and an action
MIN_LEGIBLE_PIXELS = 2**19  # below this, the text of a desktop is unreadable
RANK_COUNTS = (1, 2, 4, 8)  # number of GPUs in one machine
LORA_LEARNING_RATE = 1e-4  # adapters need a higher learning rate than weights
RESULT_CHANGING_KEYS = (
    "model.train",
    "model.max_pixels",
    "rollout.",
)  # prefixes; other settings cost only time

Change = dict[str, Any]  # values by dotted config key
Need = Callable[[ModelInfo, Config], int]  # bytes on the fullest GPU


def learner_need(info: ModelInfo, config: Config) -> int:
    return plan_memory(info, config).total


def sampling_need(info: ModelInfo, config: Config) -> int:
    return plan_memory(info, config, learning=False).total


def find_fitting_changes(info: ModelInfo, config: Config, gpu_bytes: int, need_of: Need) -> Change:
    """The least harmful changes to fit into `gpu_bytes`; if none fit, those with the least memory.

    Changes are applied in the order of `_candidate_changes` until the recipe fits; some help only together
    with later ones. Then they are reverted as far as possible, the most harmful first.
    """
    candidates = _candidate_changes(info, config)

    def need(changes: Iterable[Change]) -> int:
        return need_of(info, with_changes(config, _merge_changes(changes)))

    taken: list[Change] = []
    for steps in candidates:
        taken.append({})
        for change in steps:
            if gpu_bytes < need(taken) >= need([*taken[:-1], change]):
                taken[-1] = change
    limit = max(gpu_bytes, need(taken))
    for index in reversed(range(len(taken))):
        for change in ({}, *candidates[index]):
            fewer = [*taken[:index], change, *taken[index + 1 :]]
            if need(fewer) <= limit:
                taken = fewer
                break
    return {key: new for key, new in _merge_changes(taken).items() if new != value(config, key)}


def _candidate_changes(info: ModelInfo, config: Config) -> list[list[Change]]:
    """Lists of alternative changes, the least harmful list first and the smallest change of each first."""
    model, rollout, optim = config.model, config.rollout, config.optim
    lora: Change = {"model.train": "lora", "optim.ranks": 1, "optim.lr": max(optim.lr, LORA_LEARNING_RATE)}
    less_trained: list[Change] = [{"model.train": "language"}, lora]
    fewer_screens = range(rollout.max_images - 1, 0, -1)
    short = {"rollout.max_answer_tokens": min(SHORT_ANSWER_TOKENS, rollout.max_answer_tokens)}
    first_turn = PROMPT_TOKENS + screenshot_size(info, config.env, config.model)[1] + SHORT_ANSWER_TOKENS
    contexts = _halved("rollout.max_context_tokens", rollout.max_context_tokens, first_turn)
    return [
        [{"model.dtype": "bfloat16"}],
        [{"optim.moments": "bfloat16"}],
        _smaller_microbatches(config.optim),
        _halved("env.parallel", config.env.parallel, 1),
        [{"optim.ranks": ranks} for ranks in RANK_COUNTS] + _shared_gpus(config),
        _halved("rollout.max_answer_tokens", rollout.max_answer_tokens, SHORT_ANSWER_TOKENS),
        less_trained[("all", "language", "lora").index(model.train) :],
        [{"rollout.max_images": screens} for screens in fewer_screens],
        _halved("model.max_pixels", model.max_pixels, max(model.min_pixels, MIN_LEGIBLE_PIXELS)),
        [short | context for context in contexts],
    ]


def _shared_gpus(config: Config) -> list[Change]:
    """Learner and servers on the same GPUs, in turns; none if this run starts no servers."""
    if config.engine.name != "vllm" or not config.engine.replicas:
        return []
    lock_step: Change = {"engine.gpus": "", "train.max_staleness": 0}
    return [{"optim.ranks": n, "engine.replicas": n, **lock_step} for n in RANK_COUNTS]


def _halved(key: str, value: int, minimum: int) -> list[Change]:
    halves = []
    while (value := value // 2) >= minimum:
        halves.append({key: value})
    return halves


def _merge_changes(changes: Iterable[Change]) -> Change:
    return {key: value for change in changes for key, value in change.items()}


def with_changes(config: Config, change: Change) -> Config:
    sections: dict[str, Change] = {}
    for key, new in change.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = new
    changed = {section: replace(getattr(config, section), **new) for section, new in sections.items()}
    return replace(config, **changed)


def advise(
    info: ModelInfo, config: Config, gpu_bytes: int, *, learning: bool = True, need_of: Need | None = None
) -> list[str]:
    """Lines with changes to fit the recipe into `gpu_bytes`; none if it fits.

    `need_of` is by default the memory of the learner, or without `learning` that of sampling.
    """
    need_of = need_of or (learner_need if learning else sampling_need)
    if need_of(info, config) <= gpu_bytes:
        return []
    change = find_fitting_changes(info, config, gpu_bytes, need_of)
    fitted = with_changes(config, change)
    need = need_of(info, fitted)
    ranks = fitted.optim.ranks if learning else 1
    size = f"{need / GIB:.1f} GiB" + (f" on each of {ranks} GPUs" if ranks > 1 else "")
    verdict = "it needs" if need <= gpu_bytes else "a larger GPU is needed: the minimum is"
    settings = " ".join(f"--{key} {quote(str(value))}" for key, value in change.items())
    lines = [f"does not fit into a GPU of {gpu_bytes / GIB:.0f} GiB; {verdict} {size} with"]
    lines.append(f"    {settings or 'the current settings'}")
    if other := [key for key in change if key.startswith(RESULT_CHANGING_KEYS)]:
        lines.append(f"this changes {'training ' if learning else ''}results ({', '.join(other)})")
    if (linear := info.dims.linear) and not linear.kernels:
        kernels = replace(info, dims=replace(info.dims, linear=replace(linear, kernels=True)))
        need = need_of(kernels, config)
        lines.append(f"with {KERNELS} installed, the current settings need {need / GIB:.1f} GiB")
    return lines


def describe_parts(info: ModelInfo, config: Config, *, learning: bool = True) -> list[str]:
    """Lines for the user: GiB by purpose, and totals."""
    plan = plan_memory(info, config, learning=learning)
    ranks, tokens = config.optim.ranks if learning else 1, workload_of(info, config).sequence
    lines = [
        f"{name.replace('_', ' '):>16} {size / GIB:8.1f} GiB{'' if plan.concurrent else _phase(name)}"
        for name, size in plan.parts.items()
        if size
    ]
    lines.append(f"{'total':>16} {plan.total / GIB:8.1f} GiB, for sequences of {tokens:,} tokens")
    if ranks > 1 and config.samples_in_process:
        lines.append(
            f"these are for rank 0 of {ranks}, which also samples; each other rank needs "
            f"{plan.other_ranks / GIB:.1f} GiB on its own GPU"
        )
    elif ranks > 1:
        lines.append(f"these are for each of {ranks} ranks, on its own GPU")
    return lines


def describe_fit(info: ModelInfo, config: Config, gpu_bytes: int, need_of: Need = learner_need) -> list[str]:
    """Lines for the user: whether the recipe fits into such GPUs, and changes if it does not."""
    if advice := advise(info, config, gpu_bytes, need_of=need_of):
        return advice
    plan = plan_memory(info, config)
    lines = [f"fits into a GPU of {gpu_bytes / GIB:.0f} GiB"]
    if plan.pool:
        size = int(config.engine.cache_gigabytes * GIB) or gpu_bytes
        cached = min(plan.cached_episodes(gpu_bytes), size // plan.pool, config.env.parallel)
        waiting = "; others wait" if cached < config.env.parallel else ""
        lines.append(f"the cache holds at least {cached} of {config.env.parallel} parallel episodes{waiting}")
    return lines


def _phase(part: str) -> str:
    phases = {"gradients": "learning", "gathered": "learning", "activations": "learning"}
    phases |= {"sampling_weights": "sampling", "pool": "sampling, for one episode", "passes": "sampling"}
    return f" (only while {phases[part]})" if part in phases else ""


def fit_memory(config: Config, *, learning: bool, need_of: Need | None = None) -> Config:
    """The recipe with micro-batches for the free memory of the GPU. Nothing is loaded.

    Raises UserError with the plan and the settings to change (see `advise`) if the recipe does not fit.
    Without a GPU, the recipe stays as it is.
    """
    if resolve_device(config.model.device) == "cpu":
        return config
    info, free = read_model_info(config.model), torch.cuda.mem_get_info()[0]
    return fit_into(info, config, free, learning=learning, need_of=need_of)


def fit_into(
    info: ModelInfo, config: Config, gpu_bytes: int, *, learning: bool, need_of: Need | None = None
) -> Config:
    """The recipe for a GPU with this much free memory; see `fit_memory`."""
    for change in ({}, *_smaller_microbatches(config.optim)):
        fitted = with_changes(config, change)
        plan = plan_memory(info, fitted, learning=learning)
        if plan.total <= gpu_bytes:
            _check_cache_size(plan, config, gpu_bytes)
            return _with_cache_size(plan, fitted, gpu_bytes)
    parts = describe_parts(info, config, learning=learning)
    advice = advise(info, config, gpu_bytes, learning=learning, need_of=need_of)
    raise UserError("\n".join(["GPU memory:", *parts, *advice]))


def _with_cache_size(plan: MemoryPlan, config: Config, gpu_bytes: int) -> Config:
    """If engine and learner work at the same time, the pool must leave the learner its memory."""
    if not (plan.concurrent and plan.pool) or config.engine.cache_gigabytes:
        return config
    return with_changes(config, {"engine.cache_gigabytes": plan.free_for_pool(gpu_bytes) / GIB})


def _check_cache_size(plan: MemoryPlan, config: Config, gpu_bytes: int) -> None:
    """Refuse engine.cache_gigabytes below the longest episode, or above the memory left while sampling."""
    size = int(config.engine.cache_gigabytes * GIB)
    if not size or not plan.pool:
        return
    wanted, free = min(size, config.engine_episodes * plan.pool), plan.free_for_pool(gpu_bytes)
    if size < plan.pool or wanted > free:
        tokens = config.rollout.max_context_tokens
        low, high = math.ceil(100 * plan.pool / GIB) / 100, math.floor(100 * free / GIB) / 100
        raise BadSetting(
            "engine.cache_gigabytes",
            f"is {config.engine.cache_gigabytes:g}, must be between {low:g} (the longest "
            f"episode, rollout.max_context_tokens = {tokens}) and {high:g} (the free memory); or "
            "set 0: the free memory",
        )


def _smaller_microbatches(optim: OptimConfig) -> list[Change]:
    return _halved("optim.tokens_per_microbatch", optim.tokens_per_microbatch, PROMPT_TOKENS)
