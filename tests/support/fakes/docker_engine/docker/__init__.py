"""Fake of the package `docker`, without a Docker daemon. A container is a small guest server in a thread.

The server implements the part of OSWorld's guest protocol used by the tests. Events are appended to the file
named by DOCKER_FAKE_EVENTS. The screenshot is the file named by DOCKER_FAKE_SCREENSHOT.
"""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def record(event):
    with open(os.environ["DOCKER_FAKE_EVENTS"], "a") as file:
        file.write(event + "\n")


class Guest(BaseHTTPRequestHandler):
    def do_GET(self):
        self._answer(Path(os.environ["DOCKER_FAKE_SCREENSHOT"]).read_bytes(), "image/png")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        record(f"{self.path} {body.rpartition('pyautogui.')[2].strip()}")
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
        record("pause")

    def unpause(self):
        record("unpause")

    def stop(self):
        self._server.shutdown()
        record("stop")

    def remove(self):
        record("remove")


class Containers:
    def run(self, image, environment, cap_add, devices, volumes, ports, detach):
        (disk,) = volumes
        record(f"run {image} {Path(disk).name} {volumes[disk]['mode']}")
        return Container(ports[5000])

    def list(self):
        return []


class Client:
    containers = Containers()


def from_env():
    return Client()
