"""Learner ranks on the nodes of a Ray cluster.

    launcher = open_ranks(config)  # reserves the places of ranks 1, 2, …, and a GPU for rank 0
    learner = ShardedLearner(model, renderer, config, launcher)

Rank 0 is the process of the run. The others are processes of Ray actors (`rank_actor`).
torch.distributed has no authentication: the nodes of learner ranks belong on a network of their own.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

from arpo.cluster.nodes import (
    NAMESPACE,
    Node,
    Role,
    connect,
    free,
    has_gpus,
    living_nodes,
    options_in,
    rank_role,
    reserve,
)
from arpo.cluster.rank_actor import RankActor, RankListener, RankOrder
from arpo.config import ClusterConfig, Config, ModelConfig
from arpo.errors import UserError, printable
from arpo.learner.rank_processes import Rank, RankExit, write_all
from arpo.learner.ranks import RankLost
from arpo.processes.backoff import pause_after

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_START_SECONDS = 60.0  # for Ray to start the process of an actor, and for the actor to connect
_POLL_SECONDS = 1.0
RESULT_SECONDS = 3.0  # for Ray to tell how a rank has ended; less than EXIT_SECONDS of learner/ranks.py


def open_ranks(config: Config) -> RayRanks | None:
    """Reserve the places of a learner on the cluster of the recipe. None if rank 0 is the only rank.

    Call it before torch uses a GPU: rank 0 gets one by the environment variable CUDA_VISIBLE_DEVICES. Raises
    UserError if the cluster is too small.
    """
    ray = connect(config.cluster.ray)
    address = str(ray.util.get_node_ip_address())
    nodes = living_nodes()
    on_gpus = learns_on_gpus(config.cluster, config.model, nodes, address)
    if on_gpus and not has_own_gpu(os.environ):
        os.environ[VISIBLE_GPUS] = _reserve_gpu(config.cluster, address)
    if config.optim.ranks == 1:
        return None
    role = rank_role(config.optim.ranks - 1, on_gpus=on_gpus)
    run = f"{Path(config.run.dir).name}-{secrets.token_hex(3)}"
    return RayRanks(role, address, run, config.cluster.wait_seconds)


def learns_on_gpus(cluster: ClusterConfig, model: ModelConfig, nodes: Sequence[Node], address: str) -> bool:
    """Whether the ranks get GPUs. Raises UserError if the node of rank 0 has none, but others have."""
    if model.device == "cpu":
        return False
    if has_gpus([node for node in nodes if node.address == address]):
        return True
    if has_gpus(nodes) or model.device == "cuda":
        raise UserError(
            f"cluster.ray = {cluster.ray!r}: this node ({address}) has no GPU, and the process of the "
            "run is a rank of the learner: start it on a node with a GPU, or set model.device = cpu"
        )
    return False


def has_own_gpu(environ: Mapping[str, str]) -> bool:
    """Whether the user, or Ray for a job, has chosen the GPU of this process. Several are no choice."""
    return "," not in environ.get(VISIBLE_GPUS, ",")


def _reserve_gpu(cluster: ClusterConfig, address: str) -> str:
    """Reserve a GPU of this node until the run ends. Returns its value of CUDA_VISIBLE_DEVICES."""
    import ray

    role = Role(name="learner of the run on this node", count=1, each={"GPU": 1.0, f"node:{address}": 0.001})
    group = reserve(role, cluster.wait_seconds)
    task = ray.remote(_visible_gpus).options(**options_in(role, group, 0))
    return str(ray.get(task.remote(), timeout=_START_SECONDS))


def _visible_gpus() -> str:
    return os.environ.get(VISIBLE_GPUS, "")


class RayRanks:
    """A `RankLauncher`. It keeps the reserved places: Ray replaces those of a lost node by others."""

    def __init__(self, role: Role, address: str, run: str, wait_seconds: float) -> None:
        self.address = address
        self._role, self._run, self._wait_seconds = role, run, wait_seconds
        self._group = reserve(role, wait_seconds)
        self._free = weakref.finalize(self, free, self._group)
        self._free.atexit = False  # Ray frees the places of a process that has ended
        self._actors = 0  # made so far
        self._restarts = -1

    def close(self) -> None:
        """Free the places. Garbage collection does the same."""
        self._free()

    def start(self, numbers: Iterable[int], store: str) -> list[Rank]:
        """Raises `RankLost` if a place is missing, or if a rank does not connect."""
        import ray

        self._restarts += 1
        actors, nodes = self._make_actors(list(numbers))
        token = secrets.token_bytes(32)
        try:
            with closing(RankListener(self.address, token)) as listener:
                order = RankOrder(store=store, commands=listener.address, token=token, folder=os.getcwd())
                results = {number: actor.run.remote(order) for number, actor in actors.items()}
                connections = _accept_all(listener, results)
        except BaseException:
            for actor in actors.values():
                ray.kill(actor)
            raise
        return [
            RayRank(number, nodes[number], connections[number], actor, results[number])
            for number, actor in actors.items()
        ]

    def _make_actors(self, numbers: Sequence[int]) -> tuple[dict[int, Any], dict[int, str]]:
        """The actors and the addresses of their nodes. Ray may need seconds to notice a lost node."""
        import ray
        from ray.exceptions import RayError

        seconds = self._wait_seconds + _START_SECONDS
        deadline = time.monotonic() + seconds
        for failures in count(1):
            actors = {number: self._make_actor(number) for number in numbers}
            try:
                calls = [actor.node.remote() for actor in actors.values()]
                found = ray.get(calls, timeout=max(0.0, deadline - time.monotonic()))
                return actors, dict(zip(numbers, found, strict=True))
            except RayError as error:
                for actor in actors.values():
                    ray.kill(actor)
                if time.monotonic() > deadline:
                    reason = f"the Ray cluster did not start {len(actors)} learner ranks within {seconds:g} s"
                    raise RankLost(f"{reason}: {_first_line(error)}", "") from error
                time.sleep(pause_after(failures))
        raise AssertionError("the loop returns or raises")

    def _make_actor(self, number: int) -> Any:
        import ray

        self._actors += 1
        options = {
            **options_in(self._role, self._group, number - 1),
            "name": f"{self._run}/learner rank {number}, actor {self._actors}",
            "namespace": NAMESPACE,
            "max_concurrency": 3,  # `run` blocks one thread
        }
        return ray.remote(RankActor).options(**options).remote(number, self._restarts)


def _accept_all(listener: RankListener, results: Mapping[int, Any]) -> dict[int, socket.socket]:
    """The connections of all ranks. Raises `RankLost` if one ends before, or does not connect."""
    import ray

    connections: dict[int, socket.socket] = {}
    deadline = time.monotonic() + _START_SECONDS
    while missing := results.keys() - connections.keys():
        if (time.monotonic() > deadline) or ray.wait([results[one] for one in missing], timeout=0)[0]:
            for connection in connections.values():
                connection.close()
            first = min(missing)
            ending = _ending(results[first], "did not connect to rank 0", 0.0)
            raise RankLost(f"rank {first} of the learner {ending[0].reason}", "")
        connections |= listener.accept(_POLL_SECONDS)
    return connections


class RayRank:
    """A rank on a node. The end of its connection means that the rank has ended."""

    def __init__(self, number: int, node: str, connection: socket.socket, actor: Any, result: Any) -> None:
        self.number = number
        self.exit: RankExit | None = None
        self.exited = threading.Event()
        self.output: Sequence[str] = ()
        self._node, self._connection, self._actor, self._result = node, connection, actor, result
        threading.Thread(target=self._watch, daemon=True).start()

    def write(self, data: bytes, seconds: float) -> None:
        write_all(self._connection.fileno(), data, seconds)

    def stop(self, seconds: float) -> None:
        import ray

        if not self.exited.wait(seconds):
            with suppress(Exception):  # the node may be gone
                ray.get(self._actor.kill.remote(), timeout=seconds)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self.exited.wait(RESULT_SECONDS)
        self._connection.close()
        with suppress(Exception):  # this process may have left the cluster
            ray.kill(self._actor)

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._connection.fileno(), select.POLLIN)
        poller.poll()  # a rank sends nothing: it has ended, or the connection is broken
        self.exit, self.output = _ending(self._result, f"was lost on node {self._node}", RESULT_SECONDS)
        self.exited.set()


def _ending(result: Any, otherwise: str, seconds: float) -> tuple[RankExit, Sequence[str]]:
    """How a rank has ended, and its last output. `otherwise` is the reason if Ray does not know it."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    at, detail = time.monotonic(), ""
    try:
        code, lines = ray.get(result, timeout=seconds)
    except RayTaskError as error:
        detail = f": {_first_line(error.cause or error)}"
    except RayError:  # the actor or its node is gone
        pass
    else:
        return RankExit.of(code), lines
    return RankExit(reason=otherwise + detail, at=at, external=True), ()


def _first_line(error: BaseException) -> str:
    return printable(str(error)).strip().split("\n")[0]
