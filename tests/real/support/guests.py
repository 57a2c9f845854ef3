"""A light desktop for a test: booted, asked over its protocol, and gone afterwards."""

import base64
import json
import os
import urllib.error
import urllib.request
from contextlib import contextmanager
from urllib.parse import urlencode

from arpo.envs.osworld.sandbox import GUEST_PACKAGES, Sandbox, SandboxSettings
from places import PYTHON

os.environ.setdefault(GUEST_PACKAGES, str(PYTHON.parents[1] / "guest-packages"))

SETTINGS = SandboxSettings(width=1280, height=800, home_megabytes=256, network=False)
BOOT_SECONDS = 60.0
PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "


class Guest:
    def __init__(self, sandbox):
        self.sandbox = sandbox

    def ask(self, path, body=None, token=None, seconds=120.0):
        """(status, bytes) of a request: GET without a body, else JSON, or a form where it is bytes."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        address = f"http://127.0.0.1:{self.sandbox.ports.server}{path}"
        request = urllib.request.Request(address, data=data)
        credentials = base64.b64encode(f"arpo:{token or self.sandbox.token}".encode()).decode()
        request.add_header("Authorization", f"Basic {credentials}")
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def picture(self):
        return self.ask("/screenshot")[1]

    def run(self, command):
        """What a shell command answers."""
        status, body = self.ask("/execute", {"command": command, "shell": True})
        assert status == 200, body
        return json.loads(body)

    def output(self, command):
        answer = self.run(command)
        assert answer["returncode"] == 0, answer
        return answer["output"]

    def play(self, code):
        """A pyautogui program, sent as desktop-env sends it."""
        status, body = self.ask("/execute", {"command": ["python", "-c", PREFIX + code], "shell": False})
        assert status == 200, body
        return json.loads(body)

    def launch(self, *command):
        status, body = self.ask("/setup/launch", {"command": list(command), "shell": False})
        assert status == 200, body

    def file(self, path):
        return self.ask("/file", urlencode({"file_path": path}).encode())


@contextmanager
def booted(settings=SETTINGS):
    sandbox = Sandbox(settings)
    sandbox.boot(BOOT_SECONDS)
    try:
        yield Guest(sandbox)
    finally:
        sandbox.close()
