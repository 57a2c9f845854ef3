"""GPU memory of a vLLM server, on a GPU of its own or shared with the learner.

On a shared GPU, server and learner take turns: the server sleeps while the learner learns, and keeps only
LIBRARIES and a copy of its weights in CPU memory. The learner keeps its weights and moments while the server
samples. These are estimates: vLLM measures its activations itself when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from arpo.config import Config, ModelConfig, RolloutConfig
from arpo.errors import UserError
from arpo.models.memory_plan import (
    BYTES,
    GIB,
    MemoryPlan,
    ModelInfo,
    plan_memory,
    read_model_info,
    sampling_bytes,
)

LIBRARIES = 2 * GIB  # CUDA, and the graphs of decoding steps
DEFAULT_SHARE = 0.9  # of the memory of a GPU of its own: at most vLLM's default
FRAGMENTS = 0.05  # of a shared GPU, kept by the learner beyond its plan; 7B on 140 GiB: 3.5 GiB measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """Bytes of one server by purpose. `episode`: keys and values of the longest one."""

    weights: int
    episode: int
    passes: int  # activations
    libraries: int = LIBRARIES

    @property
    def total(self) -> int:
        return self.weights + self.episode + self.passes + self.libraries


def server_memory(info: ModelInfo, model: ModelConfig, rollout: RolloutConfig) -> ServerMemory:
    dims, width = info.dims, BYTES[model.dtype]
    adapters = dims.adapter_parameters if model.train == "lora" else 0
    return ServerMemory(
        weights=width * (dims.vision_parameters + dims.language_parameters + 2 * adapters),
        episode=2 * width * dims.layers * dims.key_width * rollout.max_context_tokens,
        passes=sampling_bytes(dims, width),
    )


def free_for_server(learner: MemoryPlan | None, gpu_bytes: int) -> int:
    """Bytes for one server. `learner`: the plan of the learner on the same GPU, None if there is none."""
    if learner is None:
        return int(DEFAULT_SHARE * gpu_bytes)
    return int((1 - FRAGMENTS) * gpu_bytes) - learner.always


def fits(server: ServerMemory, learner: MemoryPlan | None, gpu_bytes: int) -> bool:
    awake = server.total <= free_for_server(learner, gpu_bytes)
    return awake and (learner is None or learner.total + server.libraries <= gpu_bytes)


def describe_server(info: ModelInfo, config: Config, gpu_bytes: int | None, *, shared: bool) -> list[str]:
    """Lines for the user: GiB by purpose, and whether the server fits."""
    server = server_memory(info, config.model, config.rollout)
    learner = plan_memory(info, config) if shared else None
    names = {
        "weights": server.weights,
        "longest episode": server.episode,
        "passes": server.passes,
        "libraries": server.libraries,
    }
    where = "on the GPU of the learner; it sleeps while the learner learns" if shared else "on its own GPU"
    lines = [f"each vLLM server, {where}:"]
    lines += [f"{name:>16} {size / GIB:8.1f} GiB" for name, size in names.items()]
    lines.append(f"{'total':>16} {server.total / GIB:8.1f} GiB")
    if gpu_bytes is None:
        return lines
    if not fits(server, learner, gpu_bytes):
        remedy = "give the servers GPUs of their own (engine.gpus), or lower" if shared else "lower"
        return [
            *lines,
            f"does not fit into a GPU of {gpu_bytes / GIB:.0f} GiB: {remedy} rollout.max_context_tokens",
        ]
    spare = free_for_server(learner, gpu_bytes) - server.total
    episodes = 1 + spare // server.episode
    lines.append(
        f"fits into a GPU of {gpu_bytes / GIB:.0f} GiB; its cache holds about {episodes} longest episodes"
    )
    return lines


def memory_share(config: Config) -> float:
    """The share of a GPU's memory for a server that shares it. Raises UserError if both do not fit."""
    import torch

    info, gpu_bytes = read_model_info(config.model), torch.cuda.get_device_properties(0).total_memory
    learner, server = plan_memory(info, config), server_memory(info, config.model, config.rollout)
    if not fits(server, learner, gpu_bytes):
        lines = describe_server(info, config, gpu_bytes, shared=True)
        raise UserError("\n".join(["GPU memory:", *lines]))
    return free_for_server(learner, gpu_bytes) / gpu_bytes
