"""A Docker engine of one process, in place of the package `docker`: a container is a small guest server.

It speaks as much of OSWorld's guest protocol as a test needs, on the port that it is told. What happens to it
is written to the file that FAKE_EVENTS names; its picture is the file that FAKE_PICTURE names.
"""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def note(event):
    with open(os.environ["FAKE_EVENTS"], "a") as file:
        file.write(event + "\n")


class Guest(BaseHTTPRequestHandler):
    def do_GET(self):
        self._answer(Path(os.environ["FAKE_PICTURE"]).read_bytes(), "image/png")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        note(f"{self.path} {body.rpartition('pyautogui.')[2].strip()}")
        answer = {"status": "success", "output": "here\n", "error": "", "returncode": 0}
        self._answer(json.dumps(answer).encode())

    def _answer(self, body, kind="application/json"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


class Container:
    id = "c0ffee"
    attrs = {"NetworkSettings": {"Ports": {}}}  # noqa: RUF012

    def __init__(self, port):
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Guest)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def pause(self):
        note("pause")

    def unpause(self):
        note("unpause")

    def stop(self):
        self._server.shutdown()
        note("stop")

    def remove(self):
        note("remove")


class Containers:
    def run(self, image, environment, cap_add, devices, volumes, ports, detach):
        (disk,) = volumes
        note(f"run {image} {Path(disk).name} {volumes[disk]['mode']}")
        return Container(ports[5000])

    def list(self):
        return []


class Client:
    containers = Containers()


def from_env():
    return Client()
