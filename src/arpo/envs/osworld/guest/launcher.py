"""Starts programs, and waits for their windows instead of sleeping for a fixed time.

- A known application: returns when its window appears, when the program exits, or after a timeout.
- `killall` and `pkill`: return when the selected processes are gone, or after a timeout.
- Any other command: returns at once.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from arpo.envs.osworld.guest.commands import CommandLine, popen_arguments

if TYPE_CHECKING:  # python-xlib is not installed for the tests, which run without an X server
    from arpo.envs.osworld.guest.screen import Screen
    from arpo.envs.osworld.guest.windows import Windows

APPLICATIONS = {
    "chrome", "chromium", "chromium-browser", "code", "eog", "evince", "gedit", "gimp", "gnome-terminal",
    "google-chrome", "google-chrome-stable", "libreoffice", "localc", "loimpress", "lowriter", "nautilus",
    "soffice", "thunderbird", "vlc", "xterm",
}  # fmt: skip
KILL_COMMANDS = {"killall", "pkill"}
WINDOW_SECONDS = 30.0
KILL_SECONDS = 10.0
# A new window needs time to paint. So does the window of a running instance that took over the command.
_PAINT_SECONDS = 3.0
_POLL_SECONDS = 0.03
_PKILL_ONLY = re.compile(r"-[0-9]+|-(SIG)?[A-Z]{3,}[0-9]*|--signal=.*|-e|--echo")  # pgrep rejects them
_NAME_BYTES = 15  # the kernel cuts names of processes


class Launcher:
    def __init__(self, windows: Windows, screen: Screen) -> None:
        self._windows = windows
        self._screen = screen

    def launch(self, command: CommandLine, shell: bool) -> None:
        before = self._window_ids()
        process = start_process(command, shell)
        if program_name(command) in APPLICATIONS:
            deadline = time.monotonic() + WINDOW_SECONDS
            while not self._has_new_window(before) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                before &= self._window_ids()  # X may give the id of a closed window to a new one
        elif program_name(command) in KILL_COMMANDS:
            _wait_for_exits(pgrep_commands(list(popen_arguments(command, False))), process)
        self._screen.expect_change(_PAINT_SECONDS)

    def _window_ids(self) -> set[int]:
        return {window.id for window in self._windows.all()}

    def _has_new_window(self, before: set[int]) -> bool:
        return any(not window.auxiliary for window in self._windows.all(before))


def _wait_for_exits(searches: list[list[str]], process: subprocess.Popen[bytes]) -> None:
    """Waits until no search finds a killed process: they may write settings for the next program to read."""
    process.wait()
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline and any(map(_finds_processes, searches)):
        time.sleep(_POLL_SECONDS)


def _finds_processes(search: list[str]) -> bool:
    return subprocess.call(search, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def pgrep_commands(words: list[str]) -> list[list[str]]:
    """Searches for the processes that a `pkill` or `killall` command selects.

    >>> pgrep_commands(["pkill", "-9", "-f", "--signal", "KILL", "vlc --loop"])
    [['pgrep', '-f', 'vlc --loop']]
    >>> pgrep_commands(["/usr/bin/killall", "-s", "TERM", "gimp-2.10", "soffice.bin"])
    [['pgrep', '-x', 'gimp-2.10'], ['pgrep', '-x', 'soffice.bin']]
    """
    exact = os.path.basename(words[0]) == "killall"
    kept, rest = [], iter(words[1:])
    for word in rest:
        if word == "--signal" or (exact and word == "-s"):
            next(rest, None)
        elif not _PKILL_ONLY.fullmatch(word):
            kept.append(word)
    if not exact:
        return [["pgrep", *kept]]
    return [["pgrep", "-x", name[:_NAME_BYTES]] for name in kept if not name.startswith("-")]


def start_process(command: CommandLine, shell: bool) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own. Its output goes to the guest's log."""
    process = subprocess.Popen(
        popen_arguments(command, shell), shell=shell, stdin=subprocess.DEVNULL, start_new_session=True
    )
    threading.Thread(target=process.wait, name="reaper", daemon=True).start()
    return process


def program_name(command: CommandLine) -> str:
    """The name of the program in a command, without environment assignments. Empty if there is none.

    >>> program_name("VLC_VERBOSE=-1 vlc --no-audio")
    'vlc'
    """
    try:
        words = shlex.split(command if isinstance(command, str) else command[0])
    except (ValueError, IndexError):
        return ""
    names = [word for word in words if "=" not in word.split("/")[0]]
    return os.path.basename(names[0]) if names else ""
