"""Relays: connections to a port outside go on to a port of the guest, byte for byte.

Each direction has a thread of its own. Where nobody listens in the guest, the connection is closed at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading

_CHUNK = 64 * 1024


def start_relay(listening: socket.socket, port: int) -> None:
    threading.Thread(target=_accept, args=(listening, port), name=f"relay-{port}", daemon=True).start()


def _accept(listening: socket.socket, port: int) -> None:
    while True:
        outside, _ = listening.accept()
        threading.Thread(target=_connect, args=(outside, port), daemon=True).start()


def _connect(outside: socket.socket, port: int) -> None:
    try:
        inside = socket.create_connection(("127.0.0.1", port), timeout=5)
    except OSError:
        outside.close()
        return
    inside.settimeout(None)
    there = threading.Thread(target=_pump, args=(outside, inside), daemon=True)
    there.start()
    _pump(inside, outside)
    there.join()
    outside.close()
    inside.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK):
            sink.sendall(chunk)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
