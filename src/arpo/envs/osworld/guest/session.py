"""The desktop session: a fresh home, the X server, the message bus, the window manager and the dock.

Nothing is waited for longer than it takes: each part says itself when it is up. This module is loaded before
all others and imports little, so that the X server starts at once.
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from arpo.envs.osworld.guest.fresh_home import prepare_home

HERE = Path(__file__).parent
HOME = Path("/home/user")
WARM_HOME = Path("/opt/arpo/home")
RUNTIME = Path("/run/user/1000")
FRAMEBUFFER = Path("/run/framebuffer/Xvfb_screen0")
TIME_ZONE = "America/New_York"
LINKS = {
    "python": "/usr/bin/python3",
    "chromium": "google-chrome",
    "chromium-browser": "google-chrome",
    "google-chrome-stable": "google-chrome",
}
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
    "SAL_USE_VCLPLUGIN": "gtk3",
    "LIBGL_ALWAYS_SOFTWARE": "1",
    "PYTHONPATH": "/opt/arpo/packages",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games",
}
_POLL_SECONDS = 0.005


class Session:
    """Making one starts the slow parts; the rest is started when they are up."""

    def __init__(self, width: int, height: int) -> None:
        os.environ.clear()
        os.environ.update(ENVIRONMENT)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(HOME)
        _write_cookie()
        self._display_up = _start_display(width, height)
        address = os.environ["DBUS_SESSION_BUS_ADDRESS"]
        self._bus = subprocess.Popen(
            ["dbus-daemon", "--session", f"--address={address}", "--nofork", "--nopidfile"]
        )
        prepare_home(HOME, HERE / "home", WARM_HOME)
        Path("/run/localtime").symlink_to(f"/usr/share/zoneinfo/{TIME_ZONE}")
        _install_programs()

    def wait_for_display(self) -> None:
        """The X server writes a line with its number; it does not survive if the line is not read whole."""
        with os.fdopen(self._display_up) as up:
            if up.readline() != "0\n":
                raise SystemExit("Xvfb ended while it started")

    def wait_for_bus(self) -> None:
        while not (RUNTIME / "bus").exists():
            if self._bus.poll() is not None:
                raise SystemExit("dbus-daemon ended while it started")
            time.sleep(_POLL_SECONDS)

    def start_manager(self) -> None:
        subprocess.Popen(["openbox"])

    def start_dock(self) -> None:
        """When the window manager is up: else it would sleep for a second before it looks again."""
        subprocess.Popen(["tint2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _write_cookie() -> None:
    """A cookie as `xauth add :0` writes it: without one, programs warn on their error output."""
    family_local = 256
    fields = (socket.gethostname().encode(), b"0", b"MIT-MAGIC-COOKIE-1", secrets.token_bytes(16))
    entry = struct.pack(">H", family_local)
    for field in fields:
        entry += struct.pack(">H", len(field)) + field
    Path(os.environ["XAUTHORITY"]).write_bytes(entry)


def _start_display(width: int, height: int) -> int:
    """Xvfb, with its picture in a file that can be mapped; returns a pipe that it writes to when it is up."""
    FRAMEBUFFER.parent.mkdir()
    sockets = Path("/tmp/.X11-unix")
    sockets.mkdir()
    sockets.chmod(0o1777)
    up, up_display = os.pipe()
    screen = ("-screen", "0", f"{width}x{height}x24", "-fbdir", str(FRAMEBUFFER.parent))
    access = ("-nolisten", "tcp", "-auth", os.environ["XAUTHORITY"])
    server = subprocess.Popen(
        ["Xvfb", os.environ["DISPLAY"], "-noreset", *screen, *access, "-displayfd", str(up_display)],
        pass_fds=[up_display],
    )
    os.close(up_display)
    threading.Thread(target=_end_with, args=(server,), name="display-watch", daemon=True).start()
    return up


def _end_with(display: subprocess.Popen[bytes]) -> None:
    """Without its X server the guest ends: its last picture must not be taken for the present."""
    display.wait()
    print("guest: Xvfb has ended", file=sys.stderr, flush=True)
    os._exit(1)


def _install_programs() -> None:
    """What the tasks call by other names than the host, into a place that comes first on the path."""
    programs = Path("/usr/local/bin")
    programs.mkdir()
    for source in (HERE / "bin").iterdir():
        target = programs / source.name
        shutil.copyfile(source, target)
        target.chmod(0o755)
    for name, target_name in LINKS.items():
        (programs / name).symlink_to(target_name)
    shutil.copytree(HERE / "applications", "/usr/local/share/applications")
