"""The guest's HTTP server: OSWorld's guest protocol, with the responses that desktop-env's client expects.

- Every request needs the token as its HTTP Basic password.
- An error is JSON with a one-line message. The traceback of an unexpected exception goes to the guest's log.
- A failed command is a response with status 200 and the error inside. After any other status the client
  repeats the request, which would type a text twice.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import os
import shutil
import socket
import stat
import time
import traceback
from functools import partial
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from bottle import BaseRequest, Bottle, HTTPError, request, response

from arpo.envs.osworld.guest import accessibility, commands
from arpo.envs.osworld.guest.launcher import start_process
from arpo.envs.osworld.guest.pyautogui_parser import parse_program

if TYPE_CHECKING:  # these import python-xlib
    from arpo.envs.osworld.guest.guest_desktop import GuestDesktop
    from arpo.envs.osworld.guest.windows import XWindow

USER = "arpo"
WINDOW_SECONDS = 30.0
OPEN_SECONDS = 120.0
OPEN_PAINT_SECONDS = 3.0
MAX_TREE_ENTRIES = 100_000
MAX_STRANGERS = 64  # connections
STRANGER_SECONDS = 10.0  # without data, after which a stranger's connection is closed
CALLER_SECONDS = 600.0
_PYTHON_NAMES = {"python", "python3", "/usr/bin/python", "/usr/bin/python3"}
_ADMIT = "arpo.admit"  # in the WSGI environment: a function for connections with the token
_WALLPAPER = ("org.gnome.desktop.background", "picture-uri")

BaseRequest.MEMFILE_MAX = 16 * 2**20  # bytes of a body in memory; a longer one goes to /tmp

Answer = dict[str, Any] | str | bytes | Any  # a dictionary becomes JSON; an open file is sent


class GuestServer(ThreadingMixIn, WSGIServer):
    """One thread and one request per connection. Of MAX_STRANGERS without the token, a new one replaces the
    oldest: idle connections of others use up neither the guest's threads nor its open files."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, token: str, desktop: GuestDesktop) -> None:
        super().__init__(listening.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = listening.getsockname()
        self.setup_environ()
        self.set_app(guest_app(token, desktop))
        self._strangers: dict[socket.socket, None] = {}  # oldest first

    def process_request(self, request: Any, client_address: Any) -> None:
        for oldest in list(self._strangers)[: 1 - MAX_STRANGERS]:
            self.admit(oldest)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
        self._strangers[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.admit(request)
        super().shutdown_request(request)

    def admit(self, connection: socket.socket) -> None:
        """The connection is no stranger's, or no more."""
        self._strangers.pop(connection, None)


class _Handler(WSGIRequestHandler):
    server: GuestServer

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(STRANGER_SECONDS)

    def get_environ(self) -> dict[str, Any]:
        return super().get_environ() | {_ADMIT: self._admit}

    def _admit(self) -> None:
        self.server.admit(self.connection)
        self.connection.settimeout(CALLER_SECONDS)

    def log_message(self, format: str, *args: object) -> None:
        """Logs no requests: the log is for errors."""


def guest_app(token: str, desktop: GuestDesktop) -> Bottle:
    app = Bottle()
    credentials = b"Basic " + base64.b64encode(f"{USER}:{token}".encode())

    @app.hook("before_request")
    def check_token() -> None:
        received = request.get_header("Authorization", "").encode("latin-1", "replace")
        if not hmac.compare_digest(received, credentials):
            _refuse(401, "the token is missing or wrong")
        request.environ[_ADMIT]()

    for (method, path), route in ROUTES.items():
        app.route(path, method, partial(route, desktop))
    app.default_error_handler = _describe_error
    return app


def _describe_error(error: HTTPError) -> str:
    failure = error.exception
    message = f"{type(failure).__name__}: {failure}" if failure else str(error.body)
    response.content_type = "application/json"
    return json.dumps({"status": "error", "error": message, "message": message})


def _refuse(status: int, reason: str) -> NoReturn:
    raise HTTPError(status, reason)


def screenshot(desktop: GuestDesktop) -> Answer:
    response.content_type = "image/png"
    return desktop.screen.screenshot()


def execute(desktop: GuestDesktop) -> Answer:
    return _execute(desktop, *_command(_json_body()))


def execute_with_verification(desktop: GuestDesktop) -> Answer:
    body = _json_body()
    command, shell = _command(body)
    checks = body.get("verification") or {}
    if not isinstance(checks, dict):
        _refuse(400, "verification must be an object")
    seconds, pause = _number(body, "max_wait_time", 10), _number(body, "check_interval", 1)
    result = _execute(desktop, command, shell)
    if not checks:
        return result
    since = time.monotonic()
    while not _verified(desktop, checks):
        if time.monotonic() - since >= seconds:
            response.status = 500
            failed = {"status": "verification_failed", "verification": "failed", "wait_time": seconds}
            return result | failed
        time.sleep(min(pause, seconds))
    return result | {"verification": "passed", "wait_time": time.monotonic() - since}


def launch(desktop: GuestDesktop) -> Answer:
    command, shell = _command(_json_body())
    try:
        desktop.launcher.launch(command, shell)
    except (OSError, ValueError, IndexError) as error:
        _refuse(500, str(error))
    return f"{command if isinstance(command, str) else ' '.join(command)} launched successfully"


def upload(desktop: GuestDesktop) -> Answer:
    path, data = request.forms.getunicode("file_path"), request.files.get("file_data")
    if not path or data is None:
        _refuse(400, "file_path and file_data are required")
    target = _path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(data.file, file)
    except OSError as error:
        _refuse(500, f"{target}: {error.strerror}")
    return "File Uploaded"


def read_file(desktop: GuestDesktop) -> Answer:
    return _file(_path(request.forms.getunicode("file_path") or _refuse(400, "file_path is required")))


def open_file(desktop: GuestDesktop) -> Answer:
    path = _path(_text(_json_body(), "path"))
    if not path.exists():
        _refuse(404, f"File not found: {path}")
    before = {window.id for window in desktop.windows.all()}
    start_process(["xdg-open", str(path)], False)
    name, stem = path.name.lower(), path.stem.lower()

    def shows_file(window: XWindow) -> bool:
        title = window.title.lower()
        return name in title or (window.id not in before and stem in title)

    window = desktop.windows.wait(OPEN_SECONDS, shows_file)
    if window is None:
        _refuse(500, f"No window for {path.name} within {OPEN_SECONDS:g} seconds.")
    desktop.windows.activate(window)
    desktop.screen.expect_change(OPEN_PAINT_SECONDS)
    return "File opened and window activated successfully"


def activate_window(desktop: GuestDesktop) -> Answer:
    desktop.windows.activate(_find_window(desktop))
    desktop.screen.expect_change()
    return "Window activated successfully"


def close_window(desktop: GuestDesktop) -> Answer:
    desktop.windows.close(_find_window(desktop))
    desktop.screen.expect_change()
    return "Window closed successfully."


def change_wallpaper(desktop: GuestDesktop) -> Answer:
    path = _path(_text(_json_body(), "path"))
    if not path.is_file():
        _refuse(404, f"File not found: {path}")
    commands.run(["gsettings", "set", *_WALLPAPER, path.as_uri()], False)
    try:
        desktop.windows.paint_wallpaper(path)
    except (OSError, ValueError) as error:
        _refuse(500, f"Failed to change wallpaper. Error: {error}")
    return "Wallpaper changed successfully"


def wallpaper(desktop: GuestDesktop) -> Answer:
    result = commands.run(["gsettings", "get", *_WALLPAPER], False)
    return _file(Path(unquote(result.output.strip().strip("'").removeprefix("file://"))))


def accessibility_tree(desktop: GuestDesktop) -> Answer:
    return {"AT": accessibility.tree()}


def terminal(desktop: GuestDesktop) -> Answer:
    window = desktop.windows.active()
    shown = window is not None and "gnome-terminal" in window.wm_class.lower()
    return {"output": accessibility.terminal_text() if shown else None, "status": "success"}


def list_directory(desktop: GuestDesktop) -> Answer:
    path = _path(_text(_json_body(), "path"))
    if not path.is_dir():
        _refuse(400, "The provided path is not a directory")
    return {"directory_tree": _tree(path, [MAX_TREE_ENTRIES])}


def screen_size(desktop: GuestDesktop) -> Answer:
    return {"width": desktop.screen.width, "height": desktop.screen.height}


def window_size(desktop: GuestDesktop) -> Answer:
    name = (request.forms.getunicode("app_class_name") or _refuse(400, "app_class_name is required")).lower()
    window = desktop.windows.wait(0.0, lambda each: name in each.wm_class.lower().split("."))
    if window is None:
        _refuse(404, f"no window has the class {name}")
    width, height = desktop.windows.size(window)
    return {"width": width, "height": height}


def desktop_path(desktop: GuestDesktop) -> Answer:
    return {"desktop_path": str(Path.home() / "Desktop")}


def _execute(desktop: GuestDesktop, command: commands.CommandLine, shell: bool) -> dict[str, Any]:
    """Performs pyautogui programs in this process, and runs any other command as a process.

    `python -c` imports no modules from the current folder, as on OSWorld's machines: it is the home folder.
    """
    events = None
    if not shell and not isinstance(command, str) and len(command) == 3:
        program, option, code = command
        if program in _PYTHON_NAMES and option == "-c":
            events = parse_program(code)
            command = [program, "-P", option, code]
    if events is None:
        result = commands.run(command, shell)
        desktop.screen.expect_change()
    else:
        try:
            warnings = desktop.input.perform(events)
            result = commands.CommandResult(output="", error="\n".join(warnings), returncode=0, problem="")
        except Exception as error:  # boundary: the client must not repeat a half-performed program
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"
            result = commands.CommandResult(output="", error=problem, returncode=1, problem=problem)
    fields = {
        "status": "error" if result.problem else "success",
        "output": result.output,
        "error": result.error,
        "returncode": result.returncode,
    }
    return fields | ({"message": result.problem} if result.problem else {})


def _verified(desktop: GuestDesktop, checks: dict[str, Any]) -> bool:
    if "window_exists" in checks and not desktop.windows.find(_text(checks, "window_exists"), False, False):
        return False
    if "command_success" in checks:
        return commands.run(_text(checks, "command_success"), True, 5.0).returncode == 0
    return True


def _find_window(desktop: GuestDesktop) -> XWindow:
    body = _json_body()
    name, strict, by_class = _text(body, "window_name"), bool(body.get("strict")), bool(body.get("by_class"))
    window = desktop.windows.wait(WINDOW_SECONDS, lambda each: each.matches(name, strict, by_class))
    desktop.screen.wait_until_stable()
    return window or _refuse(404, "no window matches window_name")


def _file(path: Path) -> Answer:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            _refuse(404, f"Not a file: {path}")
        file = path.open("rb")
    except OSError as error:
        _refuse(404, f"File not found: {path}: {error.strerror}")
    response.content_type = "application/octet-stream"
    response.set_header("Content-Length", str(os.fstat(file.fileno()).st_size))
    return file


def _json_body() -> dict[str, Any]:
    try:
        value = json.load(request.body)
    except (ValueError, RecursionError) as error:
        _refuse(400, f"the body is not JSON: {error}")
    return value if isinstance(value, dict) else _refuse(400, "the body must be a JSON object")


def _command(body: dict[str, Any]) -> tuple[commands.CommandLine, bool]:
    shell, command = bool(body.get("shell")), body.get("command")
    words = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if not command or not (words or isinstance(command, str)):
        _refuse(400, "command must be a non-empty string or list of strings")
    return command, shell


def _text(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    return value if isinstance(value, str) and value else _refuse(400, f"{key} must be a non-empty string")


def _number(body: dict[str, Any], key: str, default: float) -> float:
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 3600:
        _refuse(400, f"{key} must be a number from 0 to 3600")
    return value


def _path(text: str) -> Path:
    if "\0" in text:
        _refuse(400, "a path must not contain a zero byte")
    return Path(os.path.expandvars(os.path.expanduser(text)))


def _tree(folder: Path, entries_left: list[int]) -> dict[str, Any]:
    """The names in a folder and its subfolders. Does not follow links."""
    children: list[dict[str, Any]] = []
    try:
        for entry in sorted(os.scandir(folder), key=lambda each: each.name):
            entries_left[0] -= 1
            if entries_left[0] < 0:
                _refuse(400, f"the folder has more than {MAX_TREE_ENTRIES} entries")
            if entry.is_dir(follow_symlinks=False):
                children.append(_tree(Path(entry.path), entries_left))
            else:
                children.append({"type": "file", "name": entry.name})
    except OSError as error:
        return {"error": str(error)}
    return {"type": "directory", "name": folder.name, "children": children}


ROUTES = {
    ("GET", "/screenshot"): screenshot,
    ("GET", "/accessibility"): accessibility_tree,
    ("GET", "/terminal"): terminal,
    ("POST", "/execute"): execute,
    ("POST", "/setup/execute"): execute,
    ("POST", "/setup/execute_with_verification"): execute_with_verification,
    ("POST", "/setup/launch"): launch,
    ("POST", "/setup/upload"): upload,
    ("POST", "/file"): read_file,
    ("POST", "/setup/open_file"): open_file,
    ("POST", "/setup/activate_window"): activate_window,
    ("POST", "/setup/close_window"): close_window,
    ("POST", "/setup/change_wallpaper"): change_wallpaper,
    ("POST", "/wallpaper"): wallpaper,
    ("POST", "/screen_size"): screen_size,
    ("POST", "/window_size"): window_size,
    ("POST", "/desktop_path"): desktop_path,
    ("POST", "/list_directory"): list_directory,
}
