"""Forwards TCP connections from a port of the host to a port of the guest, with one thread per direction.

If no program listens on the guest's port, the relay closes the connection at once, as it does with those
after MAX_CONNECTIONS: their threads count among the guest's processes.
"""

from __future__ import annotations

import contextlib
import socket
import threading

MAX_CONNECTIONS = 64  # of one port
_CHUNK = 64 * 1024


def start_relay(listening: socket.socket, port: int) -> None:
    threading.Thread(target=_accept, args=(listening, port), name=f"relay-{port}", daemon=True).start()


def _accept(listening: socket.socket, port: int) -> None:
    free = threading.Semaphore(MAX_CONNECTIONS)
    while True:
        host, _ = listening.accept()
        if free.acquire(blocking=False):
            threading.Thread(target=_serve, args=(host, port, free), daemon=True).start()
        else:
            host.close()


def _serve(host: socket.socket, port: int, free: threading.Semaphore) -> None:
    try:
        _connect(host, port)
    finally:
        free.release()


def _connect(host: socket.socket, port: int) -> None:
    try:
        guest = socket.create_connection(("127.0.0.1", port), timeout=5)
    except OSError:
        host.close()
        return
    guest.settimeout(None)
    upload = threading.Thread(target=_copy_stream, args=(host, guest), daemon=True)
    upload.start()
    _copy_stream(guest, host)
    upload.join()
    host.close()
    guest.close()


def _copy_stream(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK):
            sink.sendall(chunk)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
