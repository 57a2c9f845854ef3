"""OSWorld's guest protocol: its routes, with the shapes that desktop-env's client expects.

A command that fails is an answer of 200 that says so: the client takes any other status for a lost request
and sends it again, which would type a text twice. Recording is not offered.
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
from arpo.envs.osworld.guest.launches import start
from arpo.envs.osworld.guest.program import parse
from arpo.envs.osworld.guest.protocol import Answer, BadRequest, Request, as_json, as_text

if TYPE_CHECKING:  # for their types alone, as in `launches.py`
    from arpo.envs.osworld.guest.parts import Desktop
    from arpo.envs.osworld.guest.windows import Window

WINDOW_SECONDS = 30.0
OPEN_SECONDS = 120.0
OPEN_PAINT_SECONDS = 3.0
PYTHON_SECONDS = 30.0
BASH_SECONDS = 100.0
TREE_ENTRIES = 100_000
_PYTHONS = {"python", "python3", "/usr/bin/python", "/usr/bin/python3"}

Route = Callable[["Desktop", Request], Answer]


def screenshot(desktop: Desktop, request: Request) -> Answer:
    return Answer(body=desktop.screen.png(), kind="image/png")


def execute(desktop: Desktop, request: Request) -> Answer:
    asked = request.json()
    command, shell = _command(asked)
    return as_json(_outcome(_execute(desktop, command, shell)))


def execute_with_verification(desktop: Desktop, request: Request) -> Answer:
    asked = request.json()
    command, shell = _command(asked)
    checks = asked.get("verification") or {}
    if not isinstance(checks, dict):
        raise BadRequest("verification must be an object")
    seconds, pause = _number(asked, "max_wait_time", 10), _number(asked, "check_interval", 1)
    result = _outcome(_execute(desktop, command, shell))
    if not checks:
        return as_json(result)
    since = time.monotonic()
    while not _verified(desktop, checks):
        if time.monotonic() - since >= seconds:
            failed = {"status": "verification_failed", "verification": "failed", "wait_time": seconds}
            return as_json(result | failed, 500)
        time.sleep(min(pause, seconds))
    return as_json(result | {"verification": "passed", "wait_time": time.monotonic() - since})


def launch(desktop: Desktop, request: Request) -> Answer:
    command, shell = _command(request.json())
    try:
        desktop.launches.launch(command, shell)
    except (OSError, ValueError, IndexError) as error:
        return as_json({"status": "error", "message": str(error)}, 500)
    return as_text(f"{command if isinstance(command, str) else ' '.join(command)} launched successfully")


def upload(desktop: Desktop, request: Request) -> Answer:
    form = request.form()
    try:
        if "file_path" not in form.fields or "file_data" not in form.files:
            raise BadRequest("file_path and file_data are required")
        target = _path(form.fields["file_path"])
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(form.files["file_data"], target)
        except OSError as error:
            return as_json({"error": f"{target}: {error.strerror}"}, 500)
        return as_text("File Uploaded")
    finally:
        for path in form.files.values():
            path.unlink(missing_ok=True)


def file(desktop: Desktop, request: Request) -> Answer:
    fields = request.form().fields
    if "file_path" not in fields:
        raise BadRequest("file_path is required")
    path = _path(fields["file_path"])
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return as_json({"error": f"Not a file: {path}"}, 404)
        with path.open("rb"):
            return Answer(file=path)
    except OSError as error:
        return as_json({"error": f"File not found: {path}: {error.strerror}"}, 404)


def open_file(desktop: Desktop, request: Request) -> Answer:
    path = _path(_text(request.json(), "path"))
    if not path.exists():
        return as_text(f"File not found: {path}", 404)
    before = {window.id for window in desktop.windows.all()}
    start(["xdg-open", str(path)], False)
    name, stem = path.name.lower(), path.stem.lower()

    def shows_it(window: Window) -> bool:
        title = window.title.lower()
        return name in title or (window.id not in before and stem in title)

    window = desktop.windows.wait(OPEN_SECONDS, shows_it)
    if window is None:
        return as_text(f"No window for {path.name} within {OPEN_SECONDS:g} seconds.", 500)
    desktop.windows.activate(window)
    desktop.screen.touch(OPEN_PAINT_SECONDS)
    return as_text("File opened and window activated successfully")


def activate_window(desktop: Desktop, request: Request) -> Answer:
    window = _window(desktop, request)
    if window is None:
        return as_text("no window of that name", 404)
    desktop.windows.activate(window)
    desktop.screen.touch()
    return as_text("Window activated successfully")


def close_window(desktop: Desktop, request: Request) -> Answer:
    window = _window(desktop, request)
    if window is None:
        return as_text("no window of that name", 404)
    desktop.windows.close(window)
    desktop.screen.touch()
    return as_text("Window closed successfully.")


def download_file(desktop: Desktop, request: Request) -> Answer:
    asked = request.json()
    url, target = _text(asked, "url"), _path(_text(asked, "path"))
    if not url.startswith(("http://", "https://")):
        raise BadRequest(f"url is {url!r}, must begin with http:// or https://")
    import urllib.request  # rarely needed, slow to load

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=60) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    except (OSError, ValueError) as error:
        return as_text(f"Failed to download {url}: {error}", 500)
    return as_text(f"File downloaded successfully {url} to {target}")


def change_wallpaper(desktop: Desktop, request: Request) -> Answer:
    path = _path(_text(request.json(), "path"))
    if not path.is_file():
        return as_text(f"File not found: {path}", 404)
    commands.run(["gsettings", "set", *_WALLPAPER, path.as_uri()], False, commands.SECONDS)
    try:
        desktop.windows.paint_wallpaper(path)
    except (OSError, ValueError) as error:
        return as_text(f"Failed to change wallpaper. Error: {error}", 500)
    return as_text("Wallpaper changed successfully")


def wallpaper(desktop: Desktop, request: Request) -> Answer:
    outcome = commands.run(["gsettings", "get", *_WALLPAPER], False, commands.SECONDS)
    path = Path(unquote(outcome.output.strip().strip("'").removeprefix("file://")))
    if not path.is_file():
        return as_json({"error": "Wallpaper file not found"}, 404)
    return Answer(file=path, kind="image/png")


def accessibility_tree(desktop: Desktop, request: Request) -> Answer:
    return as_json({"AT": accessibility.tree()})


def terminal(desktop: Desktop, request: Request) -> Answer:
    window = desktop.windows.active()
    shown = window is not None and "gnome-terminal" in window.klass.lower()
    return as_json({"output": accessibility.terminal_text() if shown else None, "status": "success"})


def list_directory(desktop: Desktop, request: Request) -> Answer:
    path = _path(_text(request.json(), "path"))
    if not path.is_dir():
        raise BadRequest("The provided path is not a directory")
    return as_json({"directory_tree": _tree(path, [TREE_ENTRIES])})


def run_python(desktop: Desktop, request: Request) -> Answer:
    outcome = _run_script("/usr/bin/python3", _text(request.json(), "code"), PYTHON_SECONDS, None)
    good = outcome.returncode == 0
    return as_json(
        {
            "status": "success" if good else "error",
            "message": "Code executed successfully" if good else outcome.problem or "Code execution failed",
            "need_more": False,
            "output": outcome.output,
            "error": outcome.error,
            "return_code": outcome.returncode,
        }
    )


def run_bash_script(desktop: Desktop, request: Request) -> Answer:
    asked = request.json()
    script, folder = _text(asked, "script"), asked.get("working_dir")
    if folder is not None and not (isinstance(folder, str) and _path(folder).is_dir()):
        raise BadRequest(f"working_dir {folder!r} is not a directory")
    seconds = _number(asked, "timeout", BASH_SECONDS)
    outcome = _run_script("/bin/bash", script, seconds, str(_path(folder)) if folder else None)
    return as_json(_outcome(outcome) | {"status": "error" if outcome.returncode else "success"})


def screen_size(desktop: Desktop, request: Request) -> Answer:
    return as_json({"width": desktop.screen.width, "height": desktop.screen.height})


def window_size(desktop: Desktop, request: Request) -> Answer:
    name = request.form().fields.get("app_class_name", "").lower()
    if not name:
        raise BadRequest("app_class_name is required")
    window = desktop.windows.wait(0.0, lambda each: name in each.klass.lower().split("."))
    if window is None:
        return as_json({"error": f"no window of the class {name}"}, 404)
    width, height = desktop.windows.size(window)
    return as_json({"width": width, "height": height})


def cursor_position(desktop: Desktop, request: Request) -> Answer:
    return as_json(desktop.windows.cursor())


def desktop_path(desktop: Desktop, request: Request) -> Answer:
    return as_json({"desktop_path": str(Path.home() / "Desktop")})


def platform_name(desktop: Desktop, request: Request) -> Answer:
    return as_text(platform.system())


def recording(desktop: Desktop, request: Request) -> Answer:
    return as_json({"status": "error", "message": "This guest does not record its screen."}, 501)


def _execute(desktop: Desktop, command: commands.Words, shell: bool) -> commands.Outcome:
    """Input is carried out here; whatever else is asked for runs as a process."""
    acts = None
    if not shell and not isinstance(command, str) and len(command) == 3:
        program, option, code = command
        acts = parse(code) if program in _PYTHONS and option == "-c" else None
    if acts is None:
        outcome = commands.run(command, shell, commands.SECONDS)
        desktop.screen.touch()
        return outcome
    try:
        complaints = desktop.input.carry_out(acts)
    except Exception as error:  # a boundary: half a program must not be sent again
        traceback.print_exc()
        problem = f"{type(error).__name__}: {error}"
        return commands.Outcome(output="", error=problem, returncode=1, problem=problem)
    return commands.Outcome(output="", error="\n".join(complaints), returncode=0, problem="")


def _run_script(interpreter: str, text: str, seconds: float, folder: str | None) -> commands.Outcome:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="script-") as script:
        script.write(text)
        script.flush()
        return commands.run([interpreter, script.name], False, seconds, folder)


def _outcome(outcome: commands.Outcome) -> dict[str, Any]:
    result = {
        "status": "error" if outcome.problem else "success",
        "output": outcome.output,
        "error": outcome.error,
        "returncode": outcome.returncode,
    }
    return result | ({"message": outcome.problem} if outcome.problem else {})


def _verified(desktop: Desktop, checks: dict[str, Any]) -> bool:
    if "window_exists" in checks and not desktop.windows.find(_text(checks, "window_exists"), False, False):
        return False
    if "command_success" in checks:
        return commands.run(_text(checks, "command_success"), True, 5.0).returncode == 0
    return True


def _window(desktop: Desktop, request: Request) -> Window | None:
    """The window of that name, when there is one and when those that just came up have taken their focus."""
    asked = request.json()
    name = _text(asked, "window_name")
    strict, by_class = bool(asked.get("strict")), bool(asked.get("by_class"))
    window = desktop.windows.wait(WINDOW_SECONDS, lambda each: each.matches(name, strict, by_class))
    desktop.screen.rest()
    return window


def _command(asked: dict[str, Any]) -> tuple[commands.Words, bool]:
    shell, command = bool(asked.get("shell")), asked.get("command")
    words = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if not command or not (words or isinstance(command, str)):
        raise BadRequest("command must be a text or a list of texts, and not empty")
    return command, shell


def _text(asked: dict[str, Any], key: str) -> str:
    value = asked.get(key)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{key} must be a text, and not empty")
    return value


def _number(asked: dict[str, Any], key: str, default: float) -> float:
    value = asked.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 3600:
        raise BadRequest(f"{key} must be a number from 0 to 3600")
    return value


def _path(text: str) -> Path:
    if "\0" in text:
        raise BadRequest("a path holds no zero byte")
    return Path(os.path.expandvars(os.path.expanduser(text)))


def _tree(folder: Path, room: list[int]) -> dict[str, Any]:
    """Names of what is in a folder, and below; links are not followed."""
    children: list[dict[str, Any]] = []
    try:
        for entry in sorted(os.scandir(folder), key=lambda each: each.name):
            room[0] -= 1
            if room[0] < 0:
                raise BadRequest(f"more than {TREE_ENTRIES} entries")
            if entry.is_dir(follow_symlinks=False):
                children.append(_tree(Path(entry.path), room))
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
    ("POST", "/file"): file,
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
