"""Real Ray clusters of several nodes on this machine, on loopback only, and commands that use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import parents, wait_until

# Ray reads these when it is imported. The second one keeps it on loopback: the name is Ray's.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
SUPPORT = str(Path(__file__).parent)
SECONDS = 240.0  # for anything on a busy machine
_STARTED: list[subprocess.Popen[bytes]] = []  # drivers, which a failed test leaves
_COMMON: dict[str, Any] = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}


class Nodes:
    """A cluster with a head node without resources, and nodes that a test can remove and add."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, **_COMMON}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self._nodes: dict[str, Any] = {}

    def add(self, resources: Mapping[str, float], cpus: float = 2, gpus: float = 0) -> str:
        """Add a node; returns its id."""
        node = self._cluster.add_node(
            wait=True, num_cpus=cpus, num_gpus=gpus, resources=dict(resources), **_COMMON
        )
        self._nodes[node.node_id] = node
        return str(node.node_id)

    def remove(self, node_id: str) -> None:
        """End a node at once, as a power failure does."""
        self._cluster.remove_node(self._nodes.pop(node_id), allow_graceful=False)

    @property
    def logs(self) -> Path:
        """Folder of all logs of Ray."""
        import ray

        return Path(ray.nodes()[0]["RayletSocketName"]).parents[1] / "logs"

    def close(self) -> None:
        self._cluster.shutdown()


@contextmanager
def ray_nodes(*resources: Mapping[str, float]) -> Iterator[Nodes]:
    """A cluster with one node for each of `resources`. This process is connected to it."""
    import ray

    saved = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="arpo-ray-home-") as home:
        os.environ["HOME"] = home  # Ray writes a token there
        os.environ["PYTHONPATH"] = SUPPORT  # environments of tests
        nodes = Nodes()
        try:
            for each in resources:
                nodes.add(each)
            ray.init(address=nodes.address, namespace="arpo", log_to_driver=False, logging_level="ERROR")
            yield nodes
        finally:
            for process in _STARTED:
                process.kill()
                process.wait()
            ray.shutdown()
            nodes.close()
            os.environ.clear()
            os.environ.update(saved)


def places(resource: str) -> dict[int, str]:
    """{number of a service: id of its node} of the role on nodes with this custom resource."""
    from ray.util import placement_group_table

    for group in placement_group_table().values():
        if group["state"] != "REMOVED" and resource in group["bundles"][0]:
            return dict(group["bundles_to_node_id"])
    return {}


def command_line(process: int) -> bytes:
    """Words with a zero byte after each; empty if the process has ended."""
    return _read(process, "cmdline")


def processes_with(word: str) -> set[int]:
    """Processes of this cluster with this word in their command line."""
    home = f"HOME={os.environ['HOME']}".encode()
    found = {one for one in parents() if word.encode() in command_line(one).split(b"\0")}
    return {one for one in found if home in _read(one, "environ").split(b"\0")}


def _read(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""


class TrainCommand:
    """A running `arpo train`."""

    def __init__(self, run: Path, *words: str) -> None:
        self.run = run
        run.mkdir(parents=True, exist_ok=True)
        self._log = run.with_suffix(".log")
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "arpo", "train", *words, "--run.dir", str(run)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        _STARTED.append(self.process)

    @property
    def output(self) -> str:
        return self._log.read_text("utf-8")

    def metrics(self) -> list[dict[str, Any]]:
        path = self.run / "metrics.jsonl"
        lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a moment of the run. Fails if the command ends before."""
        assert wait_until(lambda: self.process.poll() is not None or condition(), SECONDS), self.output
        assert condition(), self.output

    def until_batch(self, batch: int) -> None:
        self.until(lambda: any(line["step"] >= batch for line in self.metrics()))

    def end(self) -> None:
        assert self.process.wait(2 * SECONDS) == 0, self.output
