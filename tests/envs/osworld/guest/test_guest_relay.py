"""The relay between a port of the host and a port of the guest."""

import socket
import threading
from contextlib import ExitStack

import pytest

from arpo.envs.osworld.guest.relay import MAX_CONNECTIONS, start_relay
from processes import wait_until


@pytest.fixture
def connect():
    """connect() -> (the caller's connection, the program's end of it)."""
    with ExitStack() as opened:
        program = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS))
        outside = socket.create_server(("127.0.0.1", 0), backlog=200)  # stays open: the relay never ends
        start_relay(outside, program.getsockname()[1])

        def connection(*, served=True):
            caller = opened.enter_context(socket.create_connection(outside.getsockname(), timeout=30))
            return caller, opened.enter_context(program.accept()[0]) if served else None

        yield connection


def exchange(caller, program):
    caller.sendall(b"question")
    assert program.recv(8) == b"question"
    program.sendall(b"answer")
    assert caller.recv(6) == b"answer"


def test_connections_beyond_the_limit_are_closed_and_others_go_on(connect):
    used = [connect() for _ in range(MAX_CONNECTIONS)]
    for pair in used:
        exchange(*pair)
    late, _ = connect(served=False)
    assert late.recv(1) == b""
    exchange(*used[0])


def test_a_new_connection_replaces_the_oldest_that_has_sent_nothing(connect):
    """Also if the program keeps its end open: threads of closed connections end."""
    before = threading.active_count()
    first = connect()
    exchange(*first)
    silent = [connect() for _ in range(MAX_CONNECTIONS - 1)]
    late = connect()
    exchange(*late)
    assert silent[0][0].recv(1) == b""
    for _ in range(2 * MAX_CONNECTIONS):
        silent.append(connect())
    exchange(*connect())
    exchange(*first)
    exchange(*late)
    assert wait_until(lambda: threading.active_count() <= before + 2 * MAX_CONNECTIONS)


@pytest.mark.parametrize("fault", ["accept", "thread"])
def test_a_fault_costs_one_connection_and_not_the_relay(fault, connect, monkeypatch):
    """No file may be opened, or no thread may be started."""
    faults = iter([OSError(24, "Too many open files"), RuntimeError("can't start new thread")])
    one = next(faults) if fault == "accept" else list(faults)[1]
    faulty, name = (socket.socket, "accept") if fault == "accept" else (threading.Thread, "start")
    works, failed = getattr(faulty, name), threading.Event()

    def fail(self, *arguments):
        if failed.is_set() or threading.current_thread().name.partition("-")[0] != "relay":
            return works(self, *arguments)
        failed.set()
        raise one

    exchange(*connect())
    monkeypatch.setattr(faulty, name, fail)
    if fault == "accept":
        connect()  # ends the call that was waiting
    else:
        lost, _ = connect(served=False)
        assert lost.recv(1) == b""
    exchange(*connect())
    assert failed.is_set()
