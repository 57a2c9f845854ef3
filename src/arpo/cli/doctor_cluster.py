"""The part of `arpo doctor` for clusters: roles of nodes and GPUs, time of a batch, bottleneck, changes."""

from __future__ import annotations

from arpo.cluster.plan import Estimate, Load, driver_cores, estimate, improvements, load_of
from arpo.config import Config
from arpo.storage.published_weights import KEPT_VERSIONS

MACHINE_GIB, MACHINE_CORES = 4, 4  # of a virtual machine of OSWorld
LIGHT_GIB = "0.2 to 0.6"  # of a light desktop
SOURCE = (
    "the times are estimates: learner and engine as measured on one H200 with a 7B model, machines as in "
    "arpo/cluster/service_times.py, vLLM not measured on GPUs"
)


def describe_cluster(config: Config, nodes: int, gpus: int) -> list[str]:
    """Lines for the user. Raises BadSetting if the nodes have too few GPUs for the recipe."""
    load = load_of(config, nodes, gpus)
    lines = [f"plan for {nodes} x {gpus} GPUs:", *_roles(config, load, nodes, nodes * gpus)]
    if nodes > 1 and not config.cluster.ray:
        lines.append("    several nodes need Ray: --cluster.ray auto --cluster.hosts N")
    if config.env.name != "osworld" or config.train.method != "online":
        return [*lines, "no expected time: it is known for online training on OSWorld only"]
    if config.trains_a_copy:
        return [*lines, "no expected time: sampling and learning use one GPU at the same time"]
    return [*lines, *_times(load, estimate(load))]


def _roles(config: Config, load: Load, nodes: int, total: int) -> list[str]:
    placed = config.engine.replicas if load.servers else 0
    if load.shared:
        who = "vLLM servers take turns" if load.servers else "the engine takes turns"
        roles = [f"GPUs: {load.ranks} for the learner; {who} with it on {load.replicas} of them"]
        used = max(load.ranks, load.replicas)
    else:
        elsewhere = "" if placed else " elsewhere"
        roles = [f"GPUs: {load.replicas} for vLLM servers{elsewhere}, {load.ranks} for the learner"]
        used = load.ranks + placed
    if used < total:
        roles.append(f"GPUs without a role: {total - used}; raise engine.replicas or optim.ranks")
    if load.servers:
        memory = (KEPT_VERSIONS + 1) * load.times.weights_gib
        roles.append(f"new weights: {memory:.0f} GiB in {_weights_folder(config, nodes)}")
    return [f"    {role}" for role in [*roles, *_environments(config)]]


def _weights_folder(config: Config, nodes: int) -> str:
    if config.engine.weights:
        return config.engine.weights
    return "shared memory or the run folder" if nodes == 1 else "the run folder, which all nodes must share"


def _environments(config: Config) -> list[str]:
    count = config.env.parallel
    if config.env.name != "osworld":
        return [f"{count} environments"]
    if config.osworld.provider == "local":
        return [f"{count} light desktops of {LIGHT_GIB} GiB each, on hosts without GPUs"]
    memory, cores = count * MACHINE_GIB, count * MACHINE_CORES
    return [f"{count} virtual machines: {memory:,} GiB and up to {cores:,} cores, on hosts with KVM"]


def _times(load: Load, expected: Estimate) -> list[str]:
    rate = expected.per_hour(load)
    together = "at the same time" if load.max_staleness else "one after the other"
    parts = {"rollouts": expected.rollouts, "learning": expected.learning, "new weights": expected.weights}
    lines = [
        f"a batch of {load.episodes} episodes takes {expected.seconds / 60:.1f} minutes, {rate:,.0f} "
        f"episodes an hour. Its parts, {together}:",
        *(f"{name:>16} {seconds / 60:8.1f} minutes" for name, seconds in parts.items()),
        f"    the driver needs {driver_cores(load, rate):.1f} CPU cores for this",
        f"bottleneck: {expected.bottleneck}",
    ]
    if changes := improvements(load):
        lines.append("faster would be, one of:")
        lines += [f"    {words:<60} {better.seconds / 60:.1f} minutes" for words, _, better in changes]
    else:
        lines.append("no change of environments, GPUs or staleness saves more than 5%")
    return [*lines, SOURCE]
