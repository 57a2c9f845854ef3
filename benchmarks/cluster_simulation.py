"""A cluster that is not there: episodes per hour, use of each role, costs and bottlenecks of `arpo train`.

Trainer, scheduler, pool, vLLM engine with its router, and store are those of `arpo train`.
Environments, servers and learner only wait, as long as `simulation/service_times.py` says. The clock is
simulated: it jumps to the next event. No model is loaded.

    python benchmarks/cluster_simulation.py             # lock step against asynchronous training
    python benchmarks/cluster_simulation.py sweep       # more environments; other splits of the GPUs; batches
    python benchmarks/cluster_simulation.py validate    # against a run with the real clock; published figures
    python benchmarks/cluster_simulation.py driver      # CPU, memory and event-loop lag of the driver

Prints tables on stderr and one JSON line on stdout. `ratio` is the rate of asynchronous training divided by
the rate of lock step (validate: simulated divided by real; driver: CPU seconds per episode with the most
environments divided by those with an eighth of them). Examples: 16 GPUs, 128 environments, S = 1 and 2; every
tenth task takes four times as long:

    python benchmarks/cluster_simulation.py --gpus 16 --environments 128 --staleness 1 2
    python benchmarks/cluster_simulation.py --slow 4 --staleness 1
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from simulation.cluster import Cluster, Result, simulate

COLUMNS = (
    f"{'':<26}{'episodes/h':>11}{'envs':>7}{'engine':>8}{'learner':>9}{'requests':>10}{'groups':>8}"
    f"{'lost':>9}{'GPU-h':>8}{'env-h':>8}{'cost':>8}  bottleneck"
)
EXPLAINED = (
    "envs, engine, learner: share of time in use. "
    "requests: per replica. groups: finished, waiting for a batch. "
    "lost: share of environment time in episodes that a fault ended. GPU-h, env-h, cost: per 1,000 episodes"
)
LONGEST_LAG = 0.05  # seconds
VALIDATION_SPEED = 10.0  # of the run with the real clock
Table = Callable[[str, Cluster], Result]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS, default="compare")
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--environments", type=int, help="default: 256; driver: 1024; sweep: up to 1024")
    parser.add_argument("--groups", type=int, default=32, help="groups of 8 episodes per batch")
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batches", type=int, default=4, help="measured batches")
    parser.add_argument("--slow", type=float, default=1.0, help="factor of the duration of every tenth task")
    parser.add_argument("--speed", type=float, default=2.0, help="driver: of the real clock; 0: without it")
    parser.add_argument("--gpu-price", type=float, default=2.5, help="per GPU and hour")
    parser.add_argument("--env-price", type=float, default=0.2, help="per environment and hour")
    options = parser.parse_args()
    print(json.dumps({"benchmark": "cluster_simulation", **PARTS[options.part](options)}))


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Lock step with shared GPUs, then asynchronous training with one half of them for each role."""
    table = _table(options)
    half = options.gpus // 2
    cluster = _cluster(options, replicas=options.gpus, learner_gpus=options.gpus, shared=True)
    results = {"lock step": table("lock step, GPUs shared", cluster)}
    for staleness in options.staleness:
        split = replace(cluster, replicas=half, learner_gpus=half, shared=False, max_staleness=staleness)
        results[f"S = {staleness}"] = table(f"S = {staleness}, {half} + {half} GPUs", split)
    best = max(result.per_hour for name, result in results.items() if name != "lock step")
    return {
        "ratio": round(best / results["lock step"].per_hour, 2),
        **{name: _record(result, options) for name, result in results.items()},
    }


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    """The number of environments, the split of the GPUs, the size of a batch. Names the bottlenecks."""
    staleness, half = max(options.staleness), options.gpus // 2
    base = _cluster(options, replicas=half, learner_gpus=half, max_staleness=staleness)
    most = options.environments or 1024
    table = _table(options)
    by_envs = {
        count: table(f"{count} environments", replace(base, environments=count))
        for count in (most // 16, most // 8, most // 4, most // 2, most)
    }
    table = _table(options)
    by_split = {}
    for share in (1, 2, 3, 5, 6):
        replicas = options.gpus * share // 8
        split = replace(base, environments=most // 2, replicas=replicas, learner_gpus=options.gpus - replicas)
        by_split[replicas] = table(f"{replicas} replicas + {options.gpus - replicas}", split)
    table = _table(options)
    by_batch = {}
    for factor in (2, 4):
        large = replace(base, environments=most, groups=factor * options.groups, max_staleness=2)
        by_batch[large.groups] = table(f"{most} environments, {large.groups} groups", large)
    rates = [result.per_hour for result in by_envs.values()]
    return {
        "ratio": round(max(rates) / min(rates), 2),
        "bottlenecks_begin": begins(by_envs),
        "environments": {count: _record(result, options) for count, result in by_envs.items()},
        "replicas": {count: _record(result, options) for count, result in by_split.items()},
        "groups": {count: _record(result, options) for count, result in by_batch.items()},
    }


def begins(results: Mapping[int, Result]) -> dict[str, int]:
    """The smallest size at which each bottleneck appears: {"environments": 64, "learner cycle": 512}."""
    found: dict[str, int] = {}
    for size, result in sorted(results.items()):
        found.setdefault(result.bottleneck, size)
    return found


def validate(options: argparse.Namespace) -> dict[str, Any]:
    from simulation.cluster import run_real

    real_table, table = _table(options, lambda cluster: run_real(cluster, VALIDATION_SPEED)), _table(options)
    small = Cluster(environments=32, replicas=4, learner_gpus=4, groups=8, group_size=4, updates=1, batches=4)
    pairs = {}
    for staleness in (0, 2):
        cluster = replace(small, max_staleness=staleness)
        real = real_table(f"S = {staleness}, real clock", cluster)
        simulated = table(f"S = {staleness}, simulated", cluster)
        pairs[f"S = {staleness}"] = {
            "real": round(real.per_hour),
            "simulated": round(simulated.per_hour),
            "ratio": round(simulated.per_hour / real.per_hour, 3),
        }
    worst = max((pair["ratio"] for pair in pairs.values()), key=lambda ratio: abs(ratio - 1))
    return {"ratio": worst, **pairs, "published": _published(_table(options))}


def _published(table: Table) -> dict[str, Any]:
    """DART-GUI: 4 GPUs, 80 environments, coupled against decoupled. ARPO: 64 GPUs, 256 environments."""
    coupled = Cluster(
        environments=80,
        replicas=4,
        learner_gpus=4,
        shared=True,
        coupled=True,
        groups=10,
        updates=1,
        batches=3,
    )
    before = table("DART's setting, coupled", coupled)
    decoupled = replace(coupled, replicas=2, learner_gpus=2, shared=False, coupled=False, max_staleness=2)
    after = table("DART's setting, S = 2", decoupled)
    full = Cluster(environments=256, replicas=64, learner_gpus=64, shared=True, coupled=True, batches=3)
    arpo = table("ARPO's run, coupled", full)
    uncoupled = table("ARPO's run, lock step", replace(full, coupled=False))
    return {
        "dart": {
            "environment_use": round(after.environments / before.environments, 2),
            "engine_use": round(after.engine / before.engine, 2),
            "throughput": round(after.per_hour / before.per_hour, 2),
        },
        "arpo_minutes_per_batch": round(60 * 256 / arpo.per_hour, 1),
        "lock_step_minutes_per_batch": round(60 * 256 / uncoupled.per_hour, 1),
    }


def driver(options: argparse.Namespace) -> dict[str, Any]:
    """CPU and blocked time with the simulated clock, then the lag of timers with the real one."""
    from simulation.driver import measure_cost, measure_lag

    most = options.environments or 1024
    found: dict[str, Any] = {}
    for count in (most // 8, most):
        cost = measure_cost(_driver_cluster(count, options))
        found[f"{count} environments"] = {
            "cpu_per_episode": round(cost.cpu, 4),
            "blocked_ms": _percentiles(cost.blocks),
            "memory_gib": round(cost.memory, 2),
            "episodes": cost.result.all_episodes,
            "episodes_per_hour": round(cost.result.per_hour),
        }
        print(f"{count} environments: {found[f'{count} environments']}", file=sys.stderr, flush=True)
    if options.speed:
        lags = measure_lag(_driver_cluster(most, options), options.speed)
        late = sum(lag > LONGEST_LAG for lag in lags)
        found["lag_ms"] = {**_percentiles(lags), "timers": len(lags), "above_50_ms": late}
        print(f"{most} environments, real clock, lag in ms: {found['lag_ms']}", file=sys.stderr, flush=True)
    few, many = (found[f"{count} environments"]["cpu_per_episode"] for count in (most // 8, most))
    return {"ratio": round(many / few, 2), **found}


def _driver_cluster(environments: int, options: argparse.Namespace) -> Cluster:
    """One replica for 32 environments, and four batches of an episode for each fourth environment."""
    return Cluster(
        environments=environments,
        replicas=max(1, environments // 32),
        learner_gpus=max(1, environments // 32),
        groups=max(1, environments // 32),
        max_staleness=3,
        batches=options.batches,
        compact=False,
        replay=True,
    )


def _percentiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds. `seconds` are in ascending order."""
    places = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    last = len(seconds) - 1
    return {name: round(1000 * seconds[int(place * last)], 2) for name, place in places.items()}


PARTS = {"compare": compare, "sweep": sweep, "validate": validate, "driver": driver}


def _cluster(options: argparse.Namespace, **values: Any) -> Cluster:
    return Cluster(
        environments=options.environments or 256,
        groups=options.groups,
        batches=options.batches,
        slow=options.slow,
        **values,
    )


def _table(options: argparse.Namespace, run: Callable[[Cluster], Result] = simulate) -> Table:
    """A function that runs a cluster and prints its row."""
    print(f"{EXPLAINED}\n{COLUMNS}", file=sys.stderr, flush=True)

    def row(name: str, cluster: Cluster) -> Result:
        began = time.monotonic()
        result = run(cluster)
        shares = f"{result.environments:>7.0%}{result.engine:>8.0%}{result.learner:>9.0%}"
        queues = f"{result.queue:>10.1f}{result.waiting:>8.1f}{result.lost:>9.1%}"
        costs = f"{result.gpu_hours:>8.1f}{result.env_hours:>8.1f}{_cost(result, options):>8.0f}"
        took = f"({time.monotonic() - began:.0f} s)"
        print(
            f"{name:<26}{result.per_hour:>11,.0f}{shares}{queues}{costs}  {result.bottleneck} {took}",
            file=sys.stderr,
            flush=True,
        )
        return result

    return row


def _cost(result: Result, options: argparse.Namespace) -> float:
    return result.gpu_hours * options.gpu_price + result.env_hours * options.env_price


def _record(result: Result, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "episodes_per_hour": round(result.per_hour),
        "environments": round(result.environments, 3),
        "engine": round(result.engine, 3),
        "learner": round(result.learner, 3),
        "requests_per_replica": round(result.queue, 2),
        "waiting_groups": round(result.waiting, 2),
        "lost": round(result.lost, 4),
        "gpu_hours": round(result.gpu_hours, 2),
        "environment_hours": round(result.env_hours, 2),
        "cost": round(_cost(result, options), 2),
        "bottleneck": result.bottleneck,
    }


if __name__ == "__main__":
    main()
