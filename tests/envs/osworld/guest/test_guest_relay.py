"""The relay between a port of the host and a port of the guest."""

import socket
from contextlib import ExitStack

from arpo.envs.osworld.guest.relay import MAX_CONNECTIONS, start_relay


def test_connections_beyond_the_limit_are_closed_and_others_go_on():
    with ExitStack() as opened:
        program = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS))
        outside = socket.create_server(("127.0.0.1", 0), backlog=200)  # stays open: the relay never ends
        start_relay(outside, program.getsockname()[1])

        def connect():
            connection = socket.create_connection(outside.getsockname(), timeout=30)
            return opened.enter_context(connection)

        first = connect()
        inner, _ = program.accept()
        opened.enter_context(inner)
        for _ in range(MAX_CONNECTIONS - 1):
            connect()
        assert connect().recv(1) == b""
        first.sendall(b"question")
        assert inner.recv(8) == b"question"
        inner.sendall(b"answer")
        assert first.recv(6) == b"answer"
