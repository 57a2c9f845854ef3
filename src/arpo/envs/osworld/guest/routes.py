"""Routes of OSWorld's guest protocol, with the responses that desktop-env's client expects.

A failed command is a response with status 200 and the error inside. After any other status the client repeats
the request, which would type a text twice. Screen recording is not supported.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from arpo.envs.osworld.guest import accessibility, commands
from arpo.envs.osworld.guest.launcher import start_process
from arpo.envs.osworld.guest.protocol import BadRequest, Request, Response, json_response, text_response
from arpo.envs.osworld.guest.pyautogui_parser import parse_program

if TYPE_CHECKING:  # these import python-xlib
    from arpo.envs.osworld.guest.guest_desktop import GuestDesktop
    from arpo.envs.osworld.guest.windows import XWindow

WINDOW_SECONDS = 30.0
OPEN_SECONDS = 120.0
OPEN_PAINT_SECONDS = 3.0
PYTHON_SECONDS = 30.0
BASH_SECONDS = 100.0
MAX_TREE_ENTRIES = 100_000
_PYTHON_NAMES = {"python", "python3", "/usr/bin/python", "/usr/bin/python3"}

Route = Callable[["GuestDesktop", Request], Response]


def screenshot(desktop: GuestDesktop, request: Request) -> Response:
    return Response(body=desktop.screen.screenshot(), content_type="image/png")


def execute(desktop: GuestDesktop, request: Request) -> Response:
    body = request.json()
    command, shell = _parse_command(body)
    return json_response(_result_fields(_execute(desktop, command, shell)))


def execute_with_verification(desktop: GuestDesktop, request: Request) -> Response:
    body = request.json()
    command, shell = _parse_command(body)
    checks = body.get("verification") or {}
    if not isinstance(checks, dict):
        raise BadRequest("verification must be an object")
    seconds, pause = _optional_number(body, "max_wait_time", 10), _optional_number(body, "check_interval", 1)
    result = _result_fields(_execute(desktop, command, shell))
    if not checks:
        return json_response(result)
    since = time.monotonic()
    while not _verified(desktop, checks):
        if time.monotonic() - since >= seconds:
            failed = {"status": "verification_failed", "verification": "failed", "wait_time": seconds}
            return json_response(result | failed, 500)
        time.sleep(min(pause, seconds))
    return json_response(result | {"verification": "passed", "wait_time": time.monotonic() - since})


def launch(desktop: GuestDesktop, request: Request) -> Response:
    command, shell = _parse_command(request.json())
    try:
        desktop.launcher.launch(command, shell)
    except (OSError, ValueError, IndexError) as error:
        return json_response({"status": "error", "message": str(error)}, 500)
    return text_response(
        f"{command if isinstance(command, str) else ' '.join(command)} launched successfully"
    )


def upload(desktop: GuestDesktop, request: Request) -> Response:
    form = request.form()
    try:
        if "file_path" not in form.fields or "file_data" not in form.files:
            raise BadRequest("file_path and file_data are required")
        target = _path(form.fields["file_path"])
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(form.files["file_data"], target)
        except OSError as error:
            return json_response({"error": f"{target}: {error.strerror}"}, 500)
        return text_response("File Uploaded")
    finally:
        for path in form.files.values():
            path.unlink(missing_ok=True)


def read_file(desktop: GuestDesktop, request: Request) -> Response:
    fields = request.form().fields
    if "file_path" not in fields:
        raise BadRequest("file_path is required")
    path = _path(fields["file_path"])
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return json_response({"error": f"Not a file: {path}"}, 404)
        with path.open("rb"):
            return Response(file=path)
    except OSError as error:
        return json_response({"error": f"File not found: {path}: {error.strerror}"}, 404)


def open_file(desktop: GuestDesktop, request: Request) -> Response:
    path = _path(_required_text(request.json(), "path"))
    if not path.exists():
        return text_response(f"File not found: {path}", 404)
    before = {window.id for window in desktop.windows.all()}
    start_process(["xdg-open", str(path)], False)
    name, stem = path.name.lower(), path.stem.lower()

    def shows_file(window: XWindow) -> bool:
        title = window.title.lower()
        return name in title or (window.id not in before and stem in title)

    window = desktop.windows.wait(OPEN_SECONDS, shows_file)
    if window is None:
        return text_response(f"No window for {path.name} within {OPEN_SECONDS:g} seconds.", 500)
    desktop.windows.activate(window)
    desktop.screen.expect_change(OPEN_PAINT_SECONDS)
    return text_response("File opened and window activated successfully")


def activate_window(desktop: GuestDesktop, request: Request) -> Response:
    window = _find_window(desktop, request)
    if window is None:
        return text_response("no window matches window_name", 404)
    desktop.windows.activate(window)
    desktop.screen.expect_change()
    return text_response("Window activated successfully")


def close_window(desktop: GuestDesktop, request: Request) -> Response:
    window = _find_window(desktop, request)
    if window is None:
        return text_response("no window matches window_name", 404)
    desktop.windows.close(window)
    desktop.screen.expect_change()
    return text_response("Window closed successfully.")


def download_file(desktop: GuestDesktop, request: Request) -> Response:
    body = request.json()
    url, target = _required_text(body, "url"), _path(_required_text(body, "path"))
    if not url.startswith(("http://", "https://")):
        raise BadRequest(f"url is {url!r}, must begin with http:// or https://")
    import urllib.request  # rarely needed, slow to load

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=60) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    except (OSError, ValueError) as error:
        return text_response(f"Failed to download {url}: {error}", 500)
    return text_response(f"File downloaded successfully {url} to {target}")


def change_wallpaper(desktop: GuestDesktop, request: Request) -> Response:
    path = _path(_required_text(request.json(), "path"))
    if not path.is_file():
        return text_response(f"File not found: {path}", 404)
    commands.run(["gsettings", "set", *_WALLPAPER, path.as_uri()], False, commands.TIMEOUT_SECONDS)
    try:
        desktop.windows.paint_wallpaper(path)
    except (OSError, ValueError) as error:
        return text_response(f"Failed to change wallpaper. Error: {error}", 500)
    return text_response("Wallpaper changed successfully")


def wallpaper(desktop: GuestDesktop, request: Request) -> Response:
    result = commands.run(["gsettings", "get", *_WALLPAPER], False, commands.TIMEOUT_SECONDS)
    path = Path(unquote(result.output.strip().strip("'").removeprefix("file://")))
    if not path.is_file():
        return json_response({"error": "Wallpaper file not found"}, 404)
    return Response(file=path, content_type="image/png")


def accessibility_tree(desktop: GuestDesktop, request: Request) -> Response:
    return json_response({"AT": accessibility.tree()})


def terminal(desktop: GuestDesktop, request: Request) -> Response:
    window = desktop.windows.active()
    shown = window is not None and "gnome-terminal" in window.wm_class.lower()
    return json_response({"output": accessibility.terminal_text() if shown else None, "status": "success"})


def list_directory(desktop: GuestDesktop, request: Request) -> Response:
    path = _path(_required_text(request.json(), "path"))
    if not path.is_dir():
        raise BadRequest("The provided path is not a directory")
    return json_response({"directory_tree": _tree(path, [MAX_TREE_ENTRIES])})


def run_python(desktop: GuestDesktop, request: Request) -> Response:
    result = _run_script("/usr/bin/python3", _required_text(request.json(), "code"), PYTHON_SECONDS, None)
    succeeded = result.returncode == 0
    return json_response(
        {
            "status": "success" if succeeded else "error",
            "message": "Code executed successfully"
            if succeeded
            else result.problem or "Code execution failed",
            "need_more": False,
            "output": result.output,
            "error": result.error,
            "return_code": result.returncode,
        }
    )


def run_bash_script(desktop: GuestDesktop, request: Request) -> Response:
    body = request.json()
    script, folder = _required_text(body, "script"), body.get("working_dir")
    if folder is not None and not (isinstance(folder, str) and _path(folder).is_dir()):
        raise BadRequest(f"working_dir {folder!r} is not a directory")
    seconds = _optional_number(body, "timeout", BASH_SECONDS)
    result = _run_script("/bin/bash", script, seconds, str(_path(folder)) if folder else None)
    return json_response(_result_fields(result) | {"status": "error" if result.returncode else "success"})


def screen_size(desktop: GuestDesktop, request: Request) -> Response:
    return json_response({"width": desktop.screen.width, "height": desktop.screen.height})


def window_size(desktop: GuestDesktop, request: Request) -> Response:
    name = request.form().fields.get("app_class_name", "").lower()
    if not name:
        raise BadRequest("app_class_name is required")
    window = desktop.windows.wait(0.0, lambda each: name in each.wm_class.lower().split("."))
    if window is None:
        return json_response({"error": f"no window has the class {name}"}, 404)
    width, height = desktop.windows.size(window)
    return json_response({"width": width, "height": height})


def cursor_position(desktop: GuestDesktop, request: Request) -> Response:
    return json_response(desktop.windows.cursor())


def desktop_path(desktop: GuestDesktop, request: Request) -> Response:
    return json_response({"desktop_path": str(Path.home() / "Desktop")})


def platform_name(desktop: GuestDesktop, request: Request) -> Response:
    return text_response(platform.system())


def recording(desktop: GuestDesktop, request: Request) -> Response:
    return json_response({"status": "error", "message": "This guest does not record its screen."}, 501)


def _execute(desktop: GuestDesktop, command: commands.CommandLine, shell: bool) -> commands.CommandResult:
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
        result = commands.run(command, shell, commands.TIMEOUT_SECONDS)
        desktop.screen.expect_change()
        return result
    try:
        warnings = desktop.input.perform(events)
    except Exception as error:  # boundary: the client must not repeat a half-performed program
        traceback.print_exc()
        problem = f"{type(error).__name__}: {error}"
        return commands.CommandResult(output="", error=problem, returncode=1, problem=problem)
    return commands.CommandResult(output="", error="\n".join(warnings), returncode=0, problem="")


def _run_script(interpreter: str, text: str, seconds: float, folder: str | None) -> commands.CommandResult:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="script-") as script:
        script.write(text)
        script.flush()
        return commands.run([interpreter, script.name], False, seconds, folder)


def _result_fields(result: commands.CommandResult) -> dict[str, Any]:
    fields = {
        "status": "error" if result.problem else "success",
        "output": result.output,
        "error": result.error,
        "returncode": result.returncode,
    }
    return fields | ({"message": result.problem} if result.problem else {})


def _verified(desktop: GuestDesktop, checks: dict[str, Any]) -> bool:
    if "window_exists" in checks and not desktop.windows.find(
        _required_text(checks, "window_exists"), False, False
    ):
        return False
    if "command_success" in checks:
        return commands.run(_required_text(checks, "command_success"), True, 5.0).returncode == 0
    return True


def _find_window(desktop: GuestDesktop, request: Request) -> XWindow | None:
    """Waits for a window with the requested name, then until new windows have taken their focus."""
    body = request.json()
    name = _required_text(body, "window_name")
    strict, by_class = bool(body.get("strict")), bool(body.get("by_class"))
    window = desktop.windows.wait(WINDOW_SECONDS, lambda each: each.matches(name, strict, by_class))
    desktop.screen.wait_until_stable()
    return window


def _parse_command(body: dict[str, Any]) -> tuple[commands.CommandLine, bool]:
    shell, command = bool(body.get("shell")), body.get("command")
    words = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if not command or not (words or isinstance(command, str)):
        raise BadRequest("command must be a non-empty string or list of strings")
    return command, shell


def _required_text(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{key} must be a non-empty string")
    return value


def _optional_number(body: dict[str, Any], key: str, default: float) -> float:
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 3600:
        raise BadRequest(f"{key} must be a number from 0 to 3600")
    return value


def _path(text: str) -> Path:
    if "\0" in text:
        raise BadRequest("a path must not contain a zero byte")
    return Path(os.path.expandvars(os.path.expanduser(text)))


def _tree(folder: Path, entries_left: list[int]) -> dict[str, Any]:
    """The names in a folder and its subfolders. Does not follow links."""
    children: list[dict[str, Any]] = []
    try:
        for entry in sorted(os.scandir(folder), key=lambda each: each.name):
            entries_left[0] -= 1
            if entries_left[0] < 0:
                raise BadRequest(f"the folder has more than {MAX_TREE_ENTRIES} entries")
            if entry.is_dir(follow_symlinks=False):
                children.append(_tree(Path(entry.path), entries_left))
            else:
                children.append({"type": "file", "name": entry.name})
    except OSError as error:
        return {"error": str(error)}
    return {"type": "directory", "name": folder.name, "children": children}


_WALLPAPER = ("org.gnome.desktop.background", "picture-uri")

ROUTES: dict[tuple[str, str], Route] = {
    ("GET", "/screenshot"): screenshot,
    ("GET", "/accessibility"): accessibility_tree,
    ("GET", "/terminal"): terminal,
    ("GET", "/platform"): platform_name,
    ("GET", "/cursor_position"): cursor_position,
    ("POST", "/execute"): execute,
    ("POST", "/setup/execute"): execute,
    ("POST", "/execute_with_verification"): execute_with_verification,
    ("POST", "/setup/execute_with_verification"): execute_with_verification,
    ("POST", "/setup/launch"): launch,
    ("POST", "/setup/upload"): upload,
    ("POST", "/file"): read_file,
    ("POST", "/setup/open_file"): open_file,
    ("POST", "/setup/activate_window"): activate_window,
    ("POST", "/setup/close_window"): close_window,
    ("POST", "/setup/download_file"): download_file,
    ("POST", "/setup/change_wallpaper"): change_wallpaper,
    ("POST", "/wallpaper"): wallpaper,
    ("POST", "/screen_size"): screen_size,
    ("POST", "/window_size"): window_size,
    ("POST", "/desktop_path"): desktop_path,
    ("POST", "/list_directory"): list_directory,
    ("POST", "/run_python"): run_python,
    ("POST", "/run_bash_script"): run_bash_script,
    ("POST", "/start_recording"): recording,
    ("POST", "/end_recording"): recording,
}
