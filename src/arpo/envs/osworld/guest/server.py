"""The guest's HTTP server: who may ask, and how answers travel.

Every request needs the token, as the password of HTTP Basic. What a route did not foresee is answered with
500 and one line, never with a traceback. What can be asked is `routes.py`.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import shutil
import socket
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from arpo.envs.osworld.guest.protocol import Answer, BadRequest, Request, as_json
from arpo.envs.osworld.guest.routes import ROUTES

if TYPE_CHECKING:  # for its type alone, as in `launches.py`
    from arpo.envs.osworld.guest.parts import Desktop

USER = "arpo"
_REFUSED = as_json({"error": "the token is missing or wrong"}, 401)


class GuestServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, token: str, desktop: Desktop) -> None:
        super().__init__(listening.getsockname(), GuestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.desktop = desktop
        self.credentials = b"Basic " + base64.b64encode(f"{USER}:{token}".encode())


class GuestHandler(BaseHTTPRequestHandler):
    server: GuestServer
    protocol_version = "HTTP/1.1"
    server_version = "arpo-guest"
    sys_version = ""
    timeout = 600  # of a connection on which nothing comes

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        try:
            request = Request(self.headers, self.rfile)  # type: ignore[arg-type]
            answer = self._route(method, request) if self._may_ask() else _REFUSED
            self.close_connection = self.close_connection or not request.drain()
        except BadRequest as error:
            self.close_connection = True
            answer = as_json({"error": str(error)}, error.status)
        with contextlib.suppress(OSError):  # the asker has gone
            self._send(answer)

    def _may_ask(self) -> bool:
        sent = self.headers.get("Authorization", "").encode("latin-1", "replace")
        return hmac.compare_digest(sent, self.server.credentials)

    def _route(self, method: str, request: Request) -> Answer:
        path = urlsplit(self.path).path
        route = ROUTES.get((method, path))
        if route is None:
            status = 405 if any(known == path for _, known in ROUTES) else 404
            return as_json({"error": f"{method} {path}: no such route"}, status)
        try:
            return route(self.server.desktop, request)
        except BadRequest as error:
            return as_json({"status": "error", "error": str(error), "message": str(error)}, error.status)
        except Exception as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"
            return as_json({"status": "error", "error": message, "message": message}, 500)

    def _send(self, answer: Answer) -> None:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(answer.file.open("rb")) if answer.file else None
            length = answer.file.stat().st_size if answer.file else len(answer.body)
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(length))
            if self.close_connection:
                self.send_header("Connection", "close")
            if answer.status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="guest"')
            self.end_headers()
            if file:
                shutil.copyfileobj(file, self.wfile)
            else:
                self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: the log is for what goes wrong."""
