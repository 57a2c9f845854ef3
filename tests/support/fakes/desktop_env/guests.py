"""State of the fake machine: values set by a test, and a record of calls.

A test in the same process uses `machine`. A test of workers reads the file named by DOCKER_FAKE_EVENTS.
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


class FakeMachine:
    def __init__(self):
        self.events = []  # "boot", "pause", "stop", … in order
        self.programs = []  # sources sent to the guest
        self.sleeps = []  # seconds
        self.files = {}
        self.screenshot = PNG
        self.alive = True
        self.answer = {"status": "success", "returncode": 0, "output": "", "error": ""}  # None: HTTP 500
        self.boot_error = None
        self.pause_error = None

    def record(self, event):
        self.events.append(event)
        if path := os.environ.get("DOCKER_FAKE_EVENTS"):
            with open(path, "a") as file:
                file.write(event + "\n")


machine = FakeMachine()


def reset_machine():
    machine.__init__()
    return machine
