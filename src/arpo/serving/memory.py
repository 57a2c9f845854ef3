"""GPU memory of a vLLM server, on a GPU of its own or shared with the learner.

On a shared GPU, server and learner take turns in lock step: the server sleeps while the learner learns, and
keeps only LIBRARIES and a copy of its weights in CPU memory. The learner keeps its weights and moments while
the server samples. With train.max_staleness, both work side by side, and each keeps its memory. These are
estimates: vLLM measures its activations itself when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from arpo.config import Config
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
from arpo.serving.placement import Placement

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


def server_memory(info: ModelInfo, config: Config) -> ServerMemory:
    """Bytes on each GPU of a server."""
    dims, width, gpus = info.dims, BYTES[config.model.dtype], config.engine.gpus_per_server
    adapters = dims.adapter_parameters if config.model.train == "lora" else 0
    weights = width * (dims.vision_parameters + dims.language_parameters + 2 * adapters)
    episode = 2 * width * dims.layers * dims.key_width * config.rollout.max_context_tokens
    return ServerMemory(weights=weights // gpus, episode=episode // gpus, passes=sampling_bytes(dims, width))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """A GPU with `gpu_bytes` for some servers, and for a learner if there is its plan."""

    gpu_bytes: int
    servers: int = 1
    learner: MemoryPlan | None = None
    in_turns: bool = True  # the servers sleep while the learner learns

    @property
    def per_server(self) -> int:
        """Bytes for each server."""
        if self.learner is None:
            return int(DEFAULT_SHARE * self.gpu_bytes) // self.servers
        kept = self.learner.always if self.in_turns else self.learner.total
        return (int((1 - FRAGMENTS) * self.gpu_bytes) - kept) // self.servers

    def holds(self, server: ServerMemory) -> bool:
        if server.total > self.per_server:
            return False
        asleep = self.servers * server.libraries
        return self.learner is None or not self.in_turns or self.learner.total + asleep <= self.gpu_bytes


def shared_gpu(info: ModelInfo, config: Config, placement: Placement, gpu_bytes: int) -> SharedGpu:
    return SharedGpu(
        gpu_bytes=gpu_bytes,
        servers=placement.servers_per_gpu,
        learner=plan_memory(info, config) if placement.shared else None,
        in_turns=takes_turns(config),
    )


def takes_turns(config: Config) -> bool:
    """Whether servers sleep while the learner learns on their GPU."""
    return config.train.max_staleness == 0


def describe_server(
    info: ModelInfo, config: Config, placement: Placement, gpu_bytes: int | None
) -> tuple[list[str], bool]:
    """Lines for the user: GiB by purpose; and whether the servers fit. `gpu_bytes`: None if unknown."""
    server = server_memory(info, config)
    names = {
        "weights": server.weights,
        "longest episode": server.episode,
        "passes": server.passes,
        "libraries": server.libraries,
    }
    where = "on its own GPU"
    if placement.shared:
        meanwhile = "sleeps" if takes_turns(config) else "samples"
        where = f"on the GPU of the learner; it {meanwhile} while the learner learns"
    lines = [f"each vLLM server, {where}:"]
    lines += [f"{name:>16} {size / GIB:8.1f} GiB" for name, size in names.items()]
    lines.append(f"{'total':>16} {server.total / GIB:8.1f} GiB")
    if gpu_bytes is None:
        return lines, True
    gpu = shared_gpu(info, config, placement, gpu_bytes)
    if not gpu.holds(server):
        own = "give the servers GPUs of their own (engine.gpus), or " if placement.shared else ""
        problem = f"does not fit into a GPU of {gpu_bytes / GIB:.0f} GiB"
        return [*lines, f"{problem}: {own}lower rollout.max_context_tokens"], False
    episodes = 1 + (gpu.per_server - server.total) // server.episode
    fits = f"fits into a GPU of {gpu_bytes / GIB:.0f} GiB; its cache holds about {episodes} longest episodes"
    return [*lines, fits], True


def memory_share(config: Config, placement: Placement) -> float:
    """The share of a GPU's memory for each server; 0: vLLM's default. Raises UserError if all do not fit."""
    import torch

    if not placement.shared and placement.servers_per_gpu == 1:
        return 0.0
    info, gpu_bytes = read_model_info(config.model), torch.cuda.get_device_properties(0).total_memory
    lines, fits = describe_server(info, config, placement, gpu_bytes)
    if not fits:
        raise UserError("\n".join(["GPU memory:", *lines]))
    return shared_gpu(info, config, placement, gpu_bytes).per_server / gpu_bytes
