"""The guest's HTTP server: authentication and transport. `routes.py` defines the routes.

Every request needs the token as its HTTP Basic password. An unexpected exception in a route becomes a
response with status 500 and a one-line message. The traceback goes to the guest's log.
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

from arpo.envs.osworld.guest.protocol import BadRequest, Request, Response, json_response
from arpo.envs.osworld.guest.routes import ROUTES

if TYPE_CHECKING:  # imports python-xlib
    from arpo.envs.osworld.guest.guest_desktop import GuestDesktop

USER = "arpo"
_UNAUTHORIZED = json_response({"error": "the token is missing or wrong"}, 401)


class GuestServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, token: str, desktop: GuestDesktop) -> None:
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
    timeout = 600  # seconds without data, after which a connection is closed

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def _handle(self, method: str) -> None:
        try:
            request = Request(self.headers, self.rfile)  # type: ignore[arg-type]
            response = self._route(method, request) if self._is_authorized() else _UNAUTHORIZED
            self.close_connection = self.close_connection or not request.drain()
        except BadRequest as error:
            self.close_connection = True
            response = json_response({"error": str(error)}, error.status)
        with contextlib.suppress(OSError):  # the client has disconnected
            self._send(response)

    def _is_authorized(self) -> bool:
        received = self.headers.get("Authorization", "").encode("latin-1", "replace")
        return hmac.compare_digest(received, self.server.credentials)

    def _route(self, method: str, request: Request) -> Response:
        path = urlsplit(self.path).path
        route = ROUTES.get((method, path))
        if route is None:
            status = 405 if any(known == path for _, known in ROUTES) else 404
            return json_response({"error": f"{method} {path}: no such route"}, status)
        try:
            return route(self.server.desktop, request)
        except BadRequest as error:
            return json_response(
                {"status": "error", "error": str(error), "message": str(error)}, error.status
            )
        except Exception as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"
            return json_response({"status": "error", "error": message, "message": message}, 500)

    def _send(self, response: Response) -> None:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(response.file.open("rb")) if response.file else None
            length = response.file.stat().st_size if response.file else len(response.body)
            self.send_response(response.status)
            self.send_header("Content-Type", response.content_type)
            self.send_header("Content-Length", str(length))
            if self.close_connection:
                self.send_header("Connection", "close")
            if response.status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="guest"')
            self.end_headers()
            if file:
                shutil.copyfileobj(file, self.wfile)
            else:
                self.wfile.write(response.body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs no requests: the log is for errors."""
