"""GPU memory of a vLLM server, on a GPU of its own or shared with the learner.

On a shared GPU, server and learner take turns in lock step: the server sleeps while the learner learns, and
keeps only LIBRARIES; with LoRA also its weights, in CPU memory. The learner keeps its weights and moments
while the server samples. With train.max_staleness, both work side by side, and each keeps its memory.
These are estimates: vLLM measures its activations itself when it starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from arpo.config import Config
from arpo.errors import BadSetting, UserError
from arpo.models.memory_advice import advise
from arpo.models.memory_plan import (
    BYTES,
    GIB,
    MemoryPlan,
    ModelInfo,
    episode_state_bytes,
    key_value_bytes,
    plan_memory,
    read_model_info,
    sampling_bytes,
)
from arpo.serving.placement import Placement, parse_gpus, place_on_gpus

NOWHERE = 1 << 62  # more bytes than any GPU has
LIBRARIES = 2 * GIB  # CUDA, and the graphs of decoding steps
DEFAULT_SHARE = 0.9  # of the memory of a GPU of its own: at most vLLM's default
FRAGMENTS = 0.05  # of a shared GPU, kept by the learner beyond its plan; 7B on 140 GiB: 3.5 GiB measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """Bytes of one server by purpose. `episode`: keys and values of the longest one, and its state."""

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
    keys = key_value_bytes(dims, width) * config.rollout.max_context_tokens
    episode = keys + episode_state_bytes(dims, width)
    return ServerMemory(weights=weights // gpus, episode=episode // gpus, passes=sampling_bytes(dims, width))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpu:
    """A GPU for some servers, and for a learner if there is its plan."""

    servers: int = 1
    learner: MemoryPlan | None = None
    in_turns: bool = True  # the servers sleep while the learner learns

    @property
    def _kept(self) -> int:
        """Bytes that the learner keeps while the servers sample."""
        if self.learner is None:
            return 0
        return self.learner.always if self.in_turns else self.learner.total

    @property
    def _usable(self) -> float:
        return DEFAULT_SHARE if self.learner is None else 1 - FRAGMENTS

    def per_server(self, gpu_bytes: int) -> int:
        """Bytes for each server."""
        return (int(self._usable * gpu_bytes) - self._kept) // self.servers

    def need(self, server: ServerMemory) -> int:
        """Bytes of the smallest GPU that holds all."""
        awake = math.ceil((self.servers * server.total + self._kept) / self._usable)
        if self.learner is None or not self.in_turns:
            return awake
        return max(awake, self.learner.total + self.servers * server.libraries)


def shared_gpu(info: ModelInfo, config: Config, placement: Placement) -> SharedGpu:
    return SharedGpu(
        servers=placement.servers_per_gpu,
        learner=plan_memory(info, config) if placement.shared else None,
        in_turns=takes_turns(config),
    )


def starts_servers(config: Config) -> bool:
    return config.engine.name == "vllm" and config.engine.replicas > 0


def place_run(config: Config, gpus: int | None) -> Placement:
    """The GPUs of the servers. `gpus`: None plans for a machine with enough of them.

    Raises BadSetting if learner and servers have no place on so many GPUs.
    """
    enough = config.optim.ranks + config.engine.replicas * config.engine.gpus_per_server
    count = max(enough, *parse_gpus(config.engine.gpus), 0) + 1 if gpus is None else gpus
    if config.optim.ranks > count:
        raise BadSetting("optim.ranks", f"is {config.optim.ranks}, must be at most {count}, one per GPU")
    if not starts_servers(config):
        return Placement(gpus=())
    return place_on_gpus(config, config.engine.replicas, count, learning=True, environ={})


def run_need(info: ModelInfo, config: Config, gpus: int | None) -> int:
    """Bytes on the fullest GPU of learner and servers; NOWHERE if they have no place on `gpus` GPUs."""
    try:
        placement = place_run(config, gpus)
    except BadSetting:
        return NOWHERE
    learner = plan_memory(info, config).total
    if not starts_servers(config):
        return learner
    return max(learner, shared_gpu(info, config, placement).need(server_memory(info, config)))


def takes_turns(config: Config) -> bool:
    """Whether servers sleep while the learner learns on their GPU."""
    return config.train.max_staleness == 0


def describe_server(
    info: ModelInfo, config: Config, placement: Placement, gpu_bytes: int | None
) -> list[str]:
    """Lines for the user: GiB by purpose, and the size of the cache if the servers fit into `gpu_bytes`."""
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
    gpu = shared_gpu(info, config, placement)
    if gpu_bytes is None or gpu.need(server) > gpu_bytes:
        return lines
    episodes = 1 + (gpu.per_server(gpu_bytes) - server.total) // server.episode
    return [*lines, f"its cache holds about {episodes} longest episodes"]


def memory_share(config: Config, placement: Placement) -> float:
    """The share of a GPU's memory for each server; 0: vLLM's default. Raises UserError if all do not fit."""
    import torch

    if not placement.shared and placement.servers_per_gpu == 1:
        return 0.0
    info, gpu_bytes = read_model_info(config.model), torch.cuda.get_device_properties(0).total_memory
    gpu = shared_gpu(info, config, placement)
    if gpu.need(server_memory(info, config)) > gpu_bytes:
        lines = describe_server(info, config, placement, gpu_bytes)
        advice = advise(info, config, gpu_bytes, need_of=partial(run_need, gpus=torch.cuda.device_count()))
        raise UserError("\n".join(["GPU memory:", *lines, *advice]))
    return gpu.per_server(gpu_bytes) / gpu_bytes
