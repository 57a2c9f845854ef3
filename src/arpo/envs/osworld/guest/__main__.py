"""The guest's first process: brings the session up, says so, and serves until the sandbox ends."""

from __future__ import annotations

import json
import os
import socket
import sys

from arpo.envs.osworld.guest.session import Session


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    session = Session(settings["width"], settings["height"])
    # Imported while the X server starts, which takes as long.
    from arpo.envs.osworld.guest.parts import Desktop
    from arpo.envs.osworld.guest.relay import start_relay
    from arpo.envs.osworld.guest.server import GuestServer

    desktop = Desktop.of(session)
    for port, fd in settings["relays"].items():
        start_relay(socket.socket(fileno=fd), int(port))
    server = GuestServer(socket.socket(fileno=settings["server"]), settings["token"], desktop)
    os.write(settings["ready"], b"1")
    os.close(settings["ready"])
    server.serve_forever()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(f"guest: {type(error).__name__}: {error}")
