"""The guest's first process: starts the desktop session, reports readiness, and serves until it is killed."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import sys

from arpo.envs.osworld.guest.session import DesktopSession

_PR_SET_DUMPABLE = 4


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    with open(os.devnull) as devnull:
        os.dup2(devnull.fileno(), 0)
    for name, value in settings["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    _hide_memory()
    session = DesktopSession(settings["width"], settings["height"])
    # These imports take as long as the X server's start: run both at the same time.
    from arpo.envs.osworld.guest.guest_desktop import GuestDesktop
    from arpo.envs.osworld.guest.relay import start_relay
    from arpo.envs.osworld.guest.server import GuestServer

    desktop = GuestDesktop.start(session)
    for port, fd in settings["relays"].items():
        start_relay(socket.socket(fileno=fd), int(port))
    server = GuestServer(socket.socket(fileno=settings["server"]), settings["token"], desktop)
    os.write(settings["ready"], b"1")
    os.close(settings["ready"])
    server.serve_forever()


def _hide_memory() -> None:
    """Hides this process's memory and descriptors from the guest's other processes, which have the same user.

    They could otherwise read the token, or take over the listening sockets and forge responses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(f"guest: {type(error).__name__}: {error}")
