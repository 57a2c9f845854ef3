"""`python -m arpo.envs.osworld.prepare_home`: records the first start of applications for later use.

LibreOffice and GIMP take seconds to set themselves up in an empty home. This starts each once in a sandbox
and keeps what it wrote, beside the guest's packages; every later home begins with it (`guest/fresh_home.py`).
Without it all works, slower.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import tarfile
import urllib.request
from pathlib import Path

from arpo.envs.osworld.sandbox import Sandbox, SandboxSettings, warm_home

_BOOT_SECONDS = 60.0
_ANSWER_SECONDS = 120.0
_SETTINGS = ".config/libreoffice .config/GIMP"  # GIMP's as its start leaves them
_CACHES = ".cache/babl .cache/gimp"  # written at the end
_TAR = "cd && tar --file /tmp/warm.tar --ignore-failed-read --exclude .lock"
_FILL_SCREEN = (  # GIMP's first window, as its own settings say
    'sed \'s/(maximized "no")/(maximized "yes")/\' /etc/gimp/2.0/sessionrc > ~/.config/GIMP/2.10/sessionrc'
)


def main() -> None:
    sandbox = Sandbox(SandboxSettings(width=1280, height=800, home_megabytes=256, network=False))
    sandbox.boot(_BOOT_SECONDS)
    try:
        _open(sandbox, "libreoffice", "--writer")
        _quit(sandbox, "soffice.bin")
        _open(sandbox, "gimp")
        _run(sandbox, _FILL_SCREEN)
        _run(sandbox, f"{_TAR} --create {_SETTINGS}")
        _quit(sandbox, "gimp")
        _run(sandbox, f"{_TAR} --append {_CACHES}")
        packed = _ask(sandbox, "/file", "file_path=/tmp/warm.tar")
    finally:
        sandbox.close()
    _unpack(packed, warm_home())


def _open(sandbox: Sandbox, *command: str) -> None:
    _ask(sandbox, "/setup/launch", json.dumps({"command": command}))
    _ask(sandbox, "/screenshot", None)  # which waits until it has come to rest


def _quit(sandbox: Sandbox, process: str) -> None:
    _ask(
        sandbox,
        "/execute",
        json.dumps({"command": ["python", "-c", "import pyautogui; pyautogui.hotkey('ctrl', 'q')"]}),
    )
    _run(sandbox, f"timeout 20 sh -c 'while pgrep -x {process}; do sleep 0.1; done'")


def _run(sandbox: Sandbox, command: str) -> None:
    _ask(sandbox, "/execute", json.dumps({"command": command, "shell": True}))


def _ask(sandbox: Sandbox, path: str, body: str | None) -> bytes:
    request = urllib.request.Request(
        f"http://127.0.0.1:{sandbox.ports.server}{path}", data=body.encode() if body is not None else None
    )
    request.add_header(
        "Authorization", f"Basic {base64.b64encode(f'arpo:{sandbox.token}'.encode()).decode()}"
    )
    with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
        return bytes(answer.read())


def _unpack(packed: bytes, folder: Path) -> None:
    """In place of what was there before, and only when it is complete."""
    fresh = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(fresh, filter="data")
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


if __name__ == "__main__":
    main()
