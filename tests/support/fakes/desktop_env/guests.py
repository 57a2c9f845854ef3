"""The machines behind the fake: what a test sets about them, and what was done to them.

A test in the same process looks at `world`; one that looks at workers reads the file that FAKE_EVENTS names.
"""

import os
import struct
import zlib

PORT = 5000


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress(b"\0\x7f"))
    + _chunk(b"IEND", b"")
)


class World:
    def __init__(self):
        self.events = []  # what happened to the machine, in order
        self.programs = []  # what the guest was told to run
        self.naps = []  # seconds that were slept
        self.files = {}
        self.picture = PNG
        self.alive = True
        self.answer = {"status": "success", "returncode": 0, "output": "", "error": ""}  # None: HTTP 500
        self.boot_error = None
        self.pause_error = None

    def note(self, event):
        self.events.append(event)
        if path := os.environ.get("FAKE_EVENTS"):
            with open(path, "a") as file:
                file.write(event + "\n")


world = World()


def fresh():
    world.__init__()
    return world
