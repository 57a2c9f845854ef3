"""The desktop session: a fresh home, the X server, the message bus, the window manager and the dock.

Each part signals its own readiness: there are no fixed waits. This module is imported first and imports
little, to start the X server early.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

GUEST_FOLDER = Path(__file__).parent
HOME = Path("/home/user")
PREPARED_HOME = Path("/opt/arpo/home")
RUNTIME = Path("/run/user/1000")
FRAMEBUFFER = Path("/run/framebuffer/Xvfb_screen0")
TIME_ZONE = "America/New_York"
ENVIRONMENT = {
    "HOME": str(HOME),
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "DISPLAY": ":0",
    "XAUTHORITY": str(HOME / ".Xauthority"),
    "XDG_RUNTIME_DIR": str(RUNTIME),
    "DBUS_SESSION_BUS_ADDRESS": f"unix:path={RUNTIME}/bus",
    "XDG_CURRENT_DESKTOP": "GNOME",
    "XDG_SESSION_TYPE": "x11",
    "GTK_MODULES": "gail:atk-bridge",
    "GSK_RENDERER": "cairo",
    "GIO_USE_VOLUME_MONITOR": "unix",
    "GNOME_ACCESSIBILITY": "1",
    "QT_ACCESSIBILITY": "1",
    "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1",
    "CHROME_DESKTOP": "google-chrome.desktop",
    "MOZ_APP_REMOTINGNAME": "thunderbird",  # window class; Debian's default is thunderbird-default
    "SAL_USE_VCLPLUGIN": "gtk3",
    "LIBGL_ALWAYS_SOFTWARE": "1",
    "PYTHONPATH": "/opt/arpo/packages",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games",
}
_POLL_SECONDS = 0.005

FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos")
REGISTRY = Path(".config/libreoffice/4/user/registrymodifications.xcu")
_SETUP_FLAGS = (
    "/org.openoffice.Setup/Product",
    "LastCompatibilityCheckID",
    "ooSetupInstCompleted",
    "ooLocale",
)
_CLOSING_TAG = "</oor:items>"


class DesktopSession:
    """The constructor starts the X server and the message bus; start the other parts when those are ready."""

    def __init__(self, width: int, height: int) -> None:
        os.environ.clear()
        os.environ.update(ENVIRONMENT)
        os.chdir(HOME)
        _write_x_cookie()
        self._display_ready = _start_display(width, height)
        address = os.environ["DBUS_SESSION_BUS_ADDRESS"]
        self._bus = subprocess.Popen(
            ["dbus-daemon", "--session", f"--address={address}", "--nofork", "--nopidfile"]
        )
        fill_home(HOME, GUEST_FOLDER / "home", PREPARED_HOME)
        Path("/run/localtime").symlink_to(f"/usr/share/zoneinfo/{TIME_ZONE}")

    def wait_for_display(self) -> None:
        """Waits for Xvfb's line with the display number. Reads the whole line: otherwise Xvfb dies."""
        with os.fdopen(self._display_ready) as ready:
            if ready.readline() != "0\n":
                raise SystemExit("Xvfb exited during startup")

    def wait_for_bus(self) -> None:
        while not (RUNTIME / "bus").exists():
            if self._bus.poll() is not None:
                raise SystemExit("dbus-daemon exited during startup")
            time.sleep(_POLL_SECONDS)

    def start_window_manager(self) -> None:
        subprocess.Popen(["openbox"])

    def start_dock(self) -> None:
        """Call when the window manager is ready: otherwise tint2 sleeps for a second and looks again."""
        subprocess.Popen(["tint2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _write_x_cookie() -> None:
    """Writes a cookie in the format of `xauth add :0`. Without a cookie, programs print warnings."""
    family_local = 256
    fields = (socket.gethostname().encode(), b"0", b"MIT-MAGIC-COOKIE-1", secrets.token_bytes(16))
    entry = struct.pack(">H", family_local)
    for field in fields:
        entry += struct.pack(">H", len(field)) + field
    Path(os.environ["XAUTHORITY"]).write_bytes(entry)


def _start_display(width: int, height: int) -> int:
    """Starts Xvfb with its framebuffer in a file. Returns the pipe on which Xvfb reports readiness."""
    FRAMEBUFFER.parent.mkdir()
    sockets = Path("/tmp/.X11-unix")
    sockets.mkdir()
    sockets.chmod(0o1777)
    ready, ready_display = os.pipe()
    screen = ("-screen", "0", f"{width}x{height}x24", "-fbdir", str(FRAMEBUFFER.parent))
    access = ("-nolisten", "tcp", "-auth", os.environ["XAUTHORITY"])
    server = subprocess.Popen(
        ["Xvfb", os.environ["DISPLAY"], "-noreset", *screen, *access, "-displayfd", str(ready_display)],
        pass_fds=[ready_display],
    )
    os.close(ready_display)
    threading.Thread(target=_exit_with_display, args=(server,), name="display-watch", daemon=True).start()
    return ready


def _exit_with_display(display: subprocess.Popen[bytes]) -> None:
    """Ends the guest when the X server ends: the framebuffer file would keep showing the last screenshot."""
    display.wait()
    print("guest: Xvfb exited", file=sys.stderr, flush=True)
    os._exit(1)


def fill_home(home: Path, template: Path, prepared: Path) -> None:
    """Copies the prepared home (`prepare_home.py`), then the template, which overrides it.

    Of LibreOffice's prepared settings, only the flags of a completed first start are kept, no window state.
    Names with the prefix `dot_` in the template become dot files. `prepared` may be missing.
    """
    if prepared.is_dir():
        shutil.copytree(prepared, home, dirs_exist_ok=True)
    prepared_settings = (home / REGISTRY).read_text("utf-8") if (home / REGISTRY).is_file() else ""
    for source in template.iterdir():
        shutil.copytree(source, home / source.name.replace("dot_", ".", 1), dirs_exist_ok=True)
    settings = (home / REGISTRY).read_text("utf-8")
    (home / REGISTRY).write_text(add_setup_flags(settings, prepared_settings), "utf-8")
    for name in FOLDERS:
        (home / name).mkdir(exist_ok=True)


def add_setup_flags(settings: str, prepared_settings: str) -> str:
    """Adds the lines of `prepared_settings` that mark LibreOffice's first start as completed."""
    flags = [line for line in prepared_settings.splitlines() if any(flag in line for flag in _SETUP_FLAGS)]
    missing = [line for line in flags if line not in settings]
    return settings.replace(_CLOSING_TAG, "".join(f"{line}\n" for line in missing) + _CLOSING_TAG)
