"""Services on a real Ray cluster of four nodes: placement, addresses, token, restarts, status."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

import fake_vllm
from arpo.cli.entry_point import main
from arpo.cluster.services import Cluster, PlacedService, open_cluster
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.envs.remote import Hosts
from arpo.errors import EnvError, UserError
from arpo.tasks.lists import load_tasks
from processes import parents, wait_until
from ray_clusters import SECONDS, Nodes, command_line, places, processes_with, ray_nodes


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ray_nodes({"desktops": 1}, {"desktops": 1}, {"servers": 1}) as started:
        yield started


def config_of(nodes: Nodes, folder: Path, *words: str) -> Config:
    return load_config(
        "desk",
        [
            f"--cluster.ray={nodes.address}",
            "--cluster.host_nodes=desktops",
            "--cluster.replica_nodes=servers",
            f"--run.dir={folder / 'run'}",
            *words,
        ],
    )


def host_processes() -> set[int]:
    return processes_with("env-host")


def has_address(service: PlacedService) -> bool:
    return bool(service.url)


async def start_environments(source: Hosts, count: int) -> int:
    """Start environments at the same time, again after a fault. Returns how many have started."""
    [task] = load_tasks("desk:32")[:1]
    everyone_started = asyncio.Barrier(count)

    async def start() -> None:
        while True:
            try:
                async with source.lease() as env:
                    await env.start(task)
                    await everyone_started.wait()
                    return
            except EnvError:
                await asyncio.sleep(0.1)

    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(start() for _ in range(count)))
    return count


def opened(config: Config) -> Cluster:
    cluster = open_cluster(config)
    assert cluster is not None
    return cluster


def test_a_cluster_that_is_too_small_is_reported_with_its_resources(nodes: Nodes, tmp_path: Path) -> None:
    """Two nodes with desktops have four CPUs: room for four hosts."""
    config = config_of(nodes, tmp_path, "--cluster.hosts=5", "--env.parallel=5", "--cluster.wait_seconds=2")
    with pytest.raises(UserError) as caught:
        opened(config).open_hosts()
    assert "no place for 5 environment hosts within 2 s (cluster.wait_seconds)" in str(caught.value)
    assert "Needed: 5 x CPU 1, desktops." in str(caught.value)
    assert "Free in all: CPU 6, desktops 2." in str(caught.value)


def test_a_service_that_cannot_start_ends_the_command_with_its_reason(nodes: Nodes, tmp_path: Path) -> None:
    config = config_of(nodes, tmp_path, "--cluster.hosts=1", "--env.name=no_such_module:Env")
    with pytest.raises(
        UserError, match=r"environment host 0 did not start on the Ray cluster: .*no_such_module"
    ):
        opened(config).open_hosts()


def test_hosts_need_the_token_survive_a_kill_and_move_with_a_lost_node(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    config = config_of(nodes, tmp_path, "--cluster.hosts=2", "--env.parallel=5")
    cluster = opened(config)
    notes: list[str] = []
    cluster.notes.report = notes.append
    source = cluster.open_hosts()
    services = cluster.hosts
    assert services is not None
    addresses = [one.address() for one in services]
    assert len(set(addresses)) == 2 and len(set(places("desktops").values())) == 2
    for address in addresses:
        assert address.startswith("http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{address}/health", timeout=SECONDS)
        assert refused.value.code == 401

    assert asyncio.run(start_environments(source, 5)) == 5
    assert main(["cluster", "status", "--ray", nodes.address]) == 0
    shown = capsys.readouterr().out
    assert "environment host 0" in shown and "0 of 3 slots in use" in shown and "0 of 2 slots in use" in shown

    before = host_processes()
    os.kill(min(before), signal.SIGKILL)
    assert wait_until(lambda: sum(one.restarts for one in services) == 1, SECONDS)
    assert wait_until(lambda: len(host_processes()) == 2, SECONDS)

    lost = places("desktops")[0]
    nodes.remove(lost)
    first = next(iter(services))
    assert wait_until(lambda: any("starts again" in note for note in notes), SECONDS), notes
    assert wait_until(lambda: has_address(first) and first.address() != addresses[0], SECONDS)
    assert lost not in places("desktops").values()
    assert sum(one.restarts for one in services) == 2
    assert asyncio.run(start_environments(source, 5)) == 5
    nodes.add({"desktops": 1})

    written = [path.read_bytes() for path in nodes.logs.rglob("*") if path.is_file()]
    assert len(written) > 10 and all(cluster.token.encode() not in text for text in written)
    assert all(cluster.token.encode() not in command_line(process) for process in parents())
    source.close()
    assert wait_until(lambda: not host_processes(), SECONDS)


def test_servers_of_vllm_start_on_their_nodes_with_the_key(nodes: Nodes, tmp_path: Path) -> None:
    python = fake_vllm.install(tmp_path)
    config = config_of(
        nodes, tmp_path, "--engine.name=vllm", "--engine.replicas=2", f"--engine.python={python}"
    )
    servers = opened(config).servers
    assert servers is not None
    notes: list[str] = []

    async def scenario() -> None:
        async with servers.running(tmp_path / "logs", notes.append) as started:
            urls = {server.address() for server in started}
            assert len(urls) == 2
            for url in urls:
                for key, status in ((servers.key, 200), ("", 401)):
                    headers = {"Authorization": f"Bearer {key}"}
                    async with aiohttp.ClientSession(headers=headers) as session:
                        assert (await session.get(f"{url}/v1/models")).status == status

    asyncio.run(scenario())
    assert len(list((tmp_path / "logs").glob("server-*.log"))) == 2


def test_a_server_ends_with_all_its_processes(nodes: Nodes, tmp_path: Path) -> None:
    """The server starts a process of its own, as vLLM does. The end of the actor leaves neither of them."""
    python, fake = tmp_path / "python", fake_vllm.install(tmp_path)
    python.write_text(f'#!/bin/sh\n[ "$1" = -I ] || sleep 987654 &\nexec {fake} "$@"\n')
    python.chmod(0o755)
    engine = ("--engine.name=vllm", "--engine.replicas=1", f"--engine.python={python}")
    servers = opened(config_of(nodes, tmp_path, *engine)).servers
    assert servers is not None

    async def scenario() -> None:
        async with servers.running(tmp_path / "logs", lambda text: None):
            assert processes_with("987654")

    asyncio.run(scenario())
    assert wait_until(lambda: not processes_with("987654"), 30)


def test_a_full_disk_on_one_node_costs_its_host_until_it_has_space_again(
    nodes: Nodes, tmp_path: Path
) -> None:
    """No file of the actor can grow, so its host cannot start again. The other host plays on."""
    cluster = opened(config_of(nodes, tmp_path, "--cluster.hosts=2", "--env.parallel=4"))
    source = cluster.open_hosts()
    services = cluster.hosts
    assert services is not None
    host = min(host_processes())
    actor = parents()[host]
    resource.prlimit(actor, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    os.kill(host, signal.SIGKILL)
    assert wait_until(lambda: sum(one.restarts for one in services) == 1, SECONDS)
    assert asyncio.run(start_environments(source, 2)) == 2
    assert len(host_processes()) == 1
    resource.prlimit(actor, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert wait_until(lambda: len(host_processes()) == 2, SECONDS)
    assert asyncio.run(start_environments(source, 4)) == 4
    services.close()
