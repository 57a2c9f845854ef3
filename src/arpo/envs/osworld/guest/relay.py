"""Forwards TCP connections from a port of the host to a port of the guest, with one thread per direction.

If no program listens on the guest's port, the relay closes the connection at once. It has at most
MAX_CONNECTIONS, because their threads count among the guest's processes: a new one replaces the oldest that
has sent nothing; if there is none, the new one is closed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

MAX_CONNECTIONS = 64  # of one port
_CHUNK = 64 * 1024
_RETRY_SECONDS = 0.05


def start_relay(listening: socket.socket, port: int) -> None:
    relay = _Relay(listening, port)
    threading.Thread(target=relay.accept, name=f"relay-{port}", daemon=True).start()


class _Relay:
    def __init__(self, listening: socket.socket, port: int) -> None:
        self._listening, self._port = listening, port
        self._open: dict[socket.socket, None] = {}  # oldest first
        self._silent: dict[socket.socket, None] = {}  # of these, the ones that have sent nothing

    def accept(self) -> None:
        """Accept connections for ever. A fault costs one connection, never the relay."""
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # the caller has gone, or no file may be opened
                time.sleep(_RETRY_SECONDS)
                continue
            if len(self._open) >= MAX_CONNECTIONS and not self._replace_silent():
                connection.close()
                continue
            self._open[connection] = self._silent[connection] = None
            try:
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()
            except RuntimeError:  # the guest has as many processes as it may have
                self._forget(connection)
                time.sleep(_RETRY_SECONDS)

    def _replace_silent(self) -> bool:
        """Close the oldest connection that has sent nothing. Returns False if there is none."""
        for oldest in list(self._silent):
            self._silent.pop(oldest, None)
            self._open.pop(oldest, None)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its threads read the end, and close it
            return True
        return False

    def _forget(self, connection: socket.socket) -> None:
        self._open.pop(connection, None)
        self._silent.pop(connection, None)
        connection.close()

    def _serve(self, host: socket.socket) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=5) as guest:
                guest.settimeout(None)
                upload = threading.Thread(target=self._upload, args=(host, guest), daemon=True)
                upload.start()
                _copy_stream(guest, host)
                upload.join()
        except (OSError, RuntimeError):  # nobody listens, or no thread may be started
            pass
        finally:
            self._forget(host)

    def _upload(self, host: socket.socket, guest: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if first := host.recv(_CHUNK):
                self._silent.pop(host, None)
                guest.sendall(first)
                _copy_stream(host, guest)
                return
        with contextlib.suppress(OSError):
            guest.shutdown(socket.SHUT_RDWR)  # nothing was asked, so no answer is awaited


def _copy_stream(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK):
            sink.sendall(chunk)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
