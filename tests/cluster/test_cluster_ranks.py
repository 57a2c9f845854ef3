"""Learner ranks on a cluster, without Ray: who gets a GPU, and who may connect to rank 0."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import ExitStack, closing, suppress
from types import ModuleType
from typing import Any

import pytest

from arpo.cluster.nodes import Node
from arpo.cluster.rank_actor import RankListener, connect_to_rank_0, interface_variables
from arpo.cluster.ranks import RESULT_SECONDS, RayRank, has_own_gpu, learns_on_gpus
from arpo.config.recipe import load_config
from arpo.errors import UserError
from arpo.learner.ranks import EXIT_SECONDS, interface_of

HEAD = Node(id="a", address="10.0.0.1", resources={"CPU": 8.0})
WITH_GPUS = Node(id="b", address="10.0.0.2", resources={"CPU": 8.0, "GPU": 4.0})


@pytest.mark.parametrize(
    ("device", "nodes", "driver", "expected"),
    [
        ("auto", [HEAD, WITH_GPUS], "10.0.0.2", True),
        ("cpu", [HEAD, WITH_GPUS], "10.0.0.2", False),
        ("auto", [HEAD], "10.0.0.1", False),
        ("auto", [HEAD, WITH_GPUS], "10.0.0.1", "start it on a node with a GPU, or set model.device = cpu"),
        ("cuda", [HEAD], "10.0.0.1", r"this node \(10.0.0.1\) has no GPU"),
    ],
)
def test_ranks_have_gpus_if_the_node_of_the_run_has_one(
    device: str, nodes: list[Node], driver: str, expected: bool | str
) -> None:
    config = load_config("desk", {"model.device": device, "cluster.ray": "auto"})
    if isinstance(expected, bool):
        assert learns_on_gpus(config.cluster, config.model, nodes, driver) is expected
    else:
        with pytest.raises(UserError, match=expected):
            learns_on_gpus(config.cluster, config.model, nodes, driver)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, False), ("0,1,2,3", False), ("2", True), ("", True), ("GPU-5f2c", True)],
)
def test_a_list_of_all_gpus_is_no_choice_of_one(visible: str | None, expected: bool) -> None:
    """Schedulers of clusters set the variable to all GPUs of a node. Ray would give ours to a server too."""
    assert has_own_gpu({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) is expected


def test_the_loss_of_a_rank_is_known_before_the_group_gives_up_waiting_for_it() -> None:
    """Else the error of torch.distributed ends the run, and the learner does not restart."""
    assert RESULT_SECONDS < EXIT_SECONDS


def accepted(listener: RankListener, count: int) -> dict[int, socket.socket]:
    """The first `count` ranks."""
    found: dict[int, socket.socket] = {}
    while len(found) < count:
        found |= listener.accept(60.0)
    return found


def in_thread(listener: RankListener, token: bytes, number: int) -> threading.Thread:
    def connect() -> None:
        with connect_to_rank_0(listener.address, token, number) as connection:
            assert connection.recv(7) == b"command"

    thread = threading.Thread(target=connect)
    thread.start()
    return thread


def test_only_a_rank_with_the_token_connects_to_rank_0() -> None:
    with closing(RankListener("127.0.0.1", b"right")) as listener:
        with socket.create_connection(listener.address) as other:
            other.sendall(bytes(36))
            assert len(other.recv(64)) == 32  # the challenge, then the end
            assert other.recv(1) == b""
            assert listener.accept(0.0) == {}
        rank = in_thread(listener, b"right", 7)
        [(number, connection)] = accepted(listener, 1).items()
        connection.sendall(b"command")
        rank.join()
        connection.close()
    assert number == 7


def test_a_silent_connection_delays_no_rank() -> None:
    """Before ranks 1 and 2, three others connect: one is silent, one sends two bytes, one has ended."""
    with closing(RankListener("127.0.0.1", b"right")) as listener:
        silent, slow = (socket.create_connection(listener.address) for _ in range(2))
        slow.sendall(b"ab")
        socket.create_connection(listener.address).close()
        ranks = [in_thread(listener, b"right", number) for number in (1, 2)]
        found = accepted(listener, 2)
        assert sorted(found) == [1, 2]
        for connection in found.values():
            connection.sendall(b"command")
            connection.close()
        for rank in ranks:
            rank.join()
    for connection in (silent, slow):
        assert len(connection.recv(64)) == 32 and connection.recv(1) == b""  # closed with the listener
        connection.close()


def test_a_silent_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arpo.cluster.rank_actor.HEADER_SECONDS", 0.1)
    with (
        closing(RankListener("127.0.0.1", b"right")) as listener,
        socket.create_connection(listener.address) as silent,
    ):
        assert len(silent.recv(64)) == 32 and silent.recv(1) == b""
        assert listener.accept(0.0) == {}


def test_a_caller_that_sends_byte_after_byte_has_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arpo.cluster.rank_actor.HEADER_SECONDS", 0.5)
    with (
        closing(RankListener("127.0.0.1", b"right")) as listener,
        socket.create_connection(listener.address, 30) as slow,
    ):
        assert len(slow.recv(32)) == 32
        sent = 0
        slow.settimeout(0.1)
        with suppress(OSError):
            while sent < 36:
                slow.sendall(b"x")
                sent += 1
                with suppress(TimeoutError):
                    assert slow.recv(1) == b""
                    break
        assert 3 <= sent < 36


def test_a_listener_that_may_not_start_a_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    start, failed = threading.Thread.start, threading.Event()

    def fail_once(thread: threading.Thread) -> None:
        if "_examine" in thread.name and not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    with closing(RankListener("127.0.0.1", b"right")) as listener:
        monkeypatch.setattr(threading.Thread, "start", fail_once)
        with socket.create_connection(listener.address, 30) as lost:
            assert lost.recv(1) == b""
        rank = in_thread(listener, b"right", 1)
        [connection] = accepted(listener, 1).values()
        connection.sendall(b"command")
        connection.close()
        rank.join()


def test_a_new_connection_replaces_the_oldest_of_too_many_silent_ones() -> None:
    with ExitStack() as opened:
        listener = opened.enter_context(closing(RankListener("127.0.0.1", b"right")))
        silent = [opened.enter_context(socket.create_connection(listener.address, 60)) for _ in range(100)]
        for connection in silent[:36]:
            assert len(connection.recv(64)) <= 32 and connection.recv(1) == b""
        rank = in_thread(listener, b"right", 1)
        [connection] = accepted(listener, 1).values()
        connection.sendall(b"command")
        connection.close()
        rank.join()


def test_ranks_can_be_stopped_after_the_end_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a process, Ray may close first. An error would keep the next ranks from being stopped."""

    class RayError(Exception):
        pass

    def closed(*arguments: object, **options: object) -> None:
        raise RayError("Ray has not been started yet")

    ray: Any = ModuleType("ray")
    ray.get = ray.kill = closed
    ray.exceptions = exceptions = ModuleType("ray.exceptions")
    exceptions.RayError = RayError  # type: ignore[attr-defined]
    exceptions.RayTaskError = type("RayTaskError", (RayError,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    here, there = socket.socketpair()
    rank = RayRank(1, "10.0.0.2", here, None, None)
    there.close()
    rank.stop(5.0)
    assert rank.exit is not None and rank.exit.reason == "was lost on node 10.0.0.2"
    assert here.fileno() == -1


def test_torch_uses_the_interface_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    loopback = interface_of("127.0.0.1")
    assert loopback in {name for _, name in socket.if_nameindex()}
    assert interface_of("203.0.113.7") is None
    assert interface_variables("127.0.0.1") == {
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
    }
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert interface_variables("127.0.0.1") == {"GLOO_SOCKET_IFNAME": loopback}
