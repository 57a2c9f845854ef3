"""`python -m arpo.envs.osworld.prepare_home`: creates the prepared home of the light desktop.

LibreOffice and GIMP take seconds for their first start in an empty home. This module starts each application
once in a sandbox, and saves its files next to the guest's packages. Every later desktop copies these files
into its home (`guest/session.py`). Without them the desktop works too, but applications start more
slowly.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import tarfile
import urllib.request
from pathlib import Path

from arpo.config.settings import OSWorldConfig
from arpo.envs.osworld.limits import Limits
from arpo.envs.osworld.sandbox import Sandbox, SandboxSettings, prepared_home

_BOOT_SECONDS = 60.0
_RESPONSE_SECONDS = 120.0
_SETTINGS_FOLDERS = ".config/libreoffice .config/GIMP"  # saved while GIMP runs
_CACHE_FOLDERS = ".cache/babl .cache/gimp"  # written when GIMP quits
_TAR = "cd && tar --file /tmp/home.tar --ignore-failed-read --exclude .lock"
_MAXIMIZE_GIMP = (  # in GIMP's session settings
    'sed \'s/(maximized "no")/(maximized "yes")/\' /etc/gimp/2.0/sessionrc > ~/.config/GIMP/2.10/sessionrc'
)


def main() -> None:
    limits = Limits.of(OSWorldConfig())
    sandbox = Sandbox(
        SandboxSettings(width=1280, height=800, home_megabytes=256, network=False, limits=limits)
    )
    sandbox.boot(_BOOT_SECONDS)
    try:
        _open(sandbox, "libreoffice", "--writer")
        _quit(sandbox, "soffice.bin")
        _open(sandbox, "gimp")
        _run(sandbox, _MAXIMIZE_GIMP)
        _run(sandbox, f"{_TAR} --create {_SETTINGS_FOLDERS}")
        _quit(sandbox, "gimp")
        _run(sandbox, f"{_TAR} --append {_CACHE_FOLDERS}")
        archive = _request(sandbox, "/file", "file_path=/tmp/home.tar")
    finally:
        sandbox.close()
    _unpack(archive, prepared_home())


def _open(sandbox: Sandbox, *command: str) -> None:
    _request(sandbox, "/setup/launch", json.dumps({"command": command}))
    _request(sandbox, "/screenshot", None)  # waits until the screen is stable


def _quit(sandbox: Sandbox, process: str) -> None:
    _request(
        sandbox,
        "/execute",
        json.dumps({"command": ["python", "-c", "import pyautogui; pyautogui.hotkey('ctrl', 'q')"]}),
    )
    _run(sandbox, f"timeout 20 sh -c 'while pgrep -x {process}; do sleep 0.1; done'")


def _run(sandbox: Sandbox, command: str) -> None:
    _request(sandbox, "/execute", json.dumps({"command": command, "shell": True}))


def _request(sandbox: Sandbox, path: str, body: str | None) -> bytes:
    request = urllib.request.Request(
        f"http://127.0.0.1:{sandbox.ports.server}{path}", data=body.encode() if body is not None else None
    )
    request.add_header(
        "Authorization", f"Basic {base64.b64encode(f'arpo:{sandbox.token}'.encode()).decode()}"
    )
    with urllib.request.urlopen(request, timeout=_RESPONSE_SECONDS) as response:
        return bytes(response.read())


def _unpack(archive: bytes, folder: Path) -> None:
    """Replaces the folder after the archive is fully extracted."""
    extracted = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(extracted, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(extracted, filter=_readable_by_all)
    shutil.rmtree(folder, ignore_errors=True)
    extracted.rename(folder)


def _readable_by_all(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """Checks the member's path. An installation by root serves all users."""
    return tarfile.data_filter(member, folder).replace(mode=0o755 if member.isdir() else 0o644, deep=False)


if __name__ == "__main__":
    main()
