"""Launches: starting applications, and waiting for their windows in place of a guessed sleep.

Of a known application a window is expected: the launch returns when it is there, when the program has ended,
or when it has taken too long. A command that ends others returns when they are gone. A command of any other
name returns at once.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from arpo.envs.osworld.guest.commands import Words, split

if TYPE_CHECKING:  # for their types alone: what does not need the X server is tested without its library
    from arpo.envs.osworld.guest.screen import Screen
    from arpo.envs.osworld.guest.windows import Windows

APPLICATIONS = {
    "chrome", "chromium", "chromium-browser", "code", "eog", "evince", "gedit", "gimp", "gnome-terminal",
    "google-chrome", "google-chrome-stable", "libreoffice", "localc", "loimpress", "lowriter", "nautilus",
    "soffice", "thunderbird", "vlc", "xterm",
}  # fmt: skip
ENDERS = {"killall", "pkill"}
WINDOW_SECONDS = 30.0
END_SECONDS = 10.0
_PAINT_SECONDS = (
    3.0  # from a new window, or from the end of a program that handed over, to a finished picture
)
_POLL_SECONDS = 0.03


class Launches:
    def __init__(self, windows: Windows, screen: Screen) -> None:
        self._windows = windows
        self._screen = screen

    def launch(self, command: Words, shell: bool) -> None:
        before = self._ids()
        process = start(command, shell)
        if program(command) in APPLICATIONS:
            deadline = time.monotonic() + WINDOW_SECONDS
            while not self._shown(before) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                before &= self._ids()  # the number of a window that is gone may be given again
        elif program(command) in ENDERS:
            _wait_for_ends(split(command, False)[1:], process)
        self._screen.touch(_PAINT_SECONDS)

    def _ids(self) -> set[int]:
        return {window.id for window in self._windows.all()}

    def _shown(self, before: set[int]) -> bool:
        return any(not window.passing for window in self._windows.all(before))


def _wait_for_ends(chosen: Words, process: subprocess.Popen[bytes]) -> None:
    """Until all that was told to end has: it may have settings to write, which who comes next shall read."""
    process.wait()
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        if subprocess.call(["pgrep", *chosen], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            return
        time.sleep(_POLL_SECONDS)


def start(command: Words, shell: bool) -> subprocess.Popen[bytes]:
    """A process that lives on by itself; what it says goes to the guest's log."""
    process = subprocess.Popen(
        split(command, shell), shell=shell, stdin=subprocess.DEVNULL, start_new_session=True
    )
    threading.Thread(target=process.wait, name="reaper", daemon=True).start()
    return process


def program(command: Words) -> str:
    """The name of the program that a command starts, after settings of its environment.

    >>> program("VLC_VERBOSE=-1 vlc --no-audio")
    'vlc'
    """
    try:
        words = shlex.split(command if isinstance(command, str) else command[0])
    except (ValueError, IndexError):
        return ""
    names = [word for word in words if "=" not in word.split("/")[0]]
    return os.path.basename(names[0]) if names else ""
