"""Servers of a run with engine.replicas, started by the player; with a scripted server."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

import fake_vllm
from arpo.config import Config
from arpo.errors import UserError
from arpo.serving.own_servers import OwnServers, open_served, open_servers
from processes import descendants, wait_until


def config(tmp_path, behaviour="", replicas=2, **changes):
    python = fake_vllm.install(tmp_path, behaviour)
    engine = replace(Config().engine, name="vllm", replicas=replicas, python=python, **changes)
    return replace(Config(), engine=engine)


def own_servers(settings: Config, *, learning: bool = True) -> OwnServers:
    servers = open_servers(settings, learning=learning)
    assert servers is not None
    return servers


def test_a_run_without_replicas_starts_no_servers(tmp_path):
    assert open_servers(config(tmp_path, replicas=0), learning=True) is None
    assert open_servers(replace(Config(), engine=replace(Config().engine, replicas=2)), learning=True) is None


def test_the_servers_of_a_run_have_a_random_key(tmp_path, monkeypatch):
    monkeypatch.delenv("ARPO_ENGINE_KEY", raising=False)
    first, second = (own_servers(config(tmp_path)) for _ in range(2))
    assert len(first.key) == 32
    assert first.key != second.key
    assert (first.host, first.gpus, first.share_gpu) == ("127.0.0.1", ("", ""), False)
    monkeypatch.setenv("ARPO_ENGINE_KEY", "0123456789abcdef")
    assert own_servers(config(tmp_path)).key == "0123456789abcdef"


def test_served_models_have_no_key_on_loopback(tmp_path, monkeypatch):
    monkeypatch.delenv("ARPO_ENGINE_KEY", raising=False)
    assert open_served(config(tmp_path), "127.0.0.1").key == ""
    with pytest.raises(
        UserError, match=r"--host 192\.0\.2\.1: is reachable from other machines, but there is no key"
    ):
        open_served(config(tmp_path), "192.0.2.1")


def test_two_runs_on_one_machine_use_other_ports(tmp_path):
    before = descendants(os.getpid())  # of other tests

    async def scenario():
        servers = own_servers(config(tmp_path))
        notes: list[str] = []
        async with servers.running(tmp_path / "a", notes.append) as first:
            async with servers.running(tmp_path / "b", notes.append) as second:
                ports = {server.place.port for server in (*first, *second)}
                assert len(ports) == 4
                assert min(ports) >= 9000
            assert all(server.state == "healthy" for server in first)

    asyncio.run(scenario())
    assert wait_until(lambda: not descendants(os.getpid()) - before)


def test_logs_without_a_folder_are_kept_only_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    servers = own_servers(config(tmp_path, replicas=1), learning=False)

    async def scenario(fault):
        async with servers.running(None, lambda text: None):
            if fault:
                raise fault

    asyncio.run(scenario(None))
    assert not list(tmp_path.glob("arpo-servers-*"))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(scenario(ZeroDivisionError()))
    [folder] = tmp_path.glob("arpo-servers-*")
    assert [path.suffix for path in Path(folder).glob("server-*")] == [".log"]
