"""Forwards TCP connections from a port of the host to a port of the guest, with one thread per direction.

If no program listens on the guest's port, the relay closes the connection at once.
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
        host, _ = listening.accept()
        threading.Thread(target=_connect, args=(host, port), daemon=True).start()


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
