"""The part of `arpo doctor` for vLLM servers: the installation, and GPU memory for those of a recipe."""

from __future__ import annotations

from arpo.config import Config
from arpo.serving.placement import parse_gpus, place_on_gpus
from arpo.serving.vllm_server import find_vllm


def vllm() -> str:
    """Interpreter and kind of vLLM. Raises UserError if it is not installed."""
    python, on_cpu = find_vllm(Config())
    return f"{python}, built for {'CPUs' if on_cpu else 'GPUs'}"


def share_gpu(config: Config, gpus: int | None) -> bool:
    """Whether servers share a GPU with the learner. `gpus`: None plans for a machine with enough of them."""
    enough = config.optim.ranks + config.engine.replicas
    count = max(enough, *parse_gpus(config.engine.gpus), 0) + 1 if gpus is None else gpus
    return place_on_gpus(config, config.engine.replicas, count, learning=True, environ={}).shared


def plan_servers(config: Config, gpus: int | None, gpu_bytes: int | None) -> tuple[list[str], bool]:
    """Lines about the memory of the servers of the recipe, and whether they fit."""
    if config.engine.name != "vllm":
        return [], True
    if not config.engine.replicas:
        return [f"the vLLM servers run elsewhere: {config.engine.endpoints} (engine.endpoints)"], True
    from arpo.models.memory_plan import plan_memory, read_model_info
    from arpo.serving.memory import describe_server, fits, server_memory

    info, shared = read_model_info(config), share_gpu(config, gpus)
    lines = describe_server(info, config, gpu_bytes, shared=shared)
    learner = plan_memory(info, config) if shared else None
    return lines, gpu_bytes is None or fits(server_memory(info, config), learner, gpu_bytes)
