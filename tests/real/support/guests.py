"""A light desktop for a test, with helpers for OSWorld's guest protocol."""

import base64
import json
import os
import urllib.error
import urllib.request
from contextlib import contextmanager
from urllib.parse import urlencode

from arpo.envs.osworld.limits import Limits
from arpo.envs.osworld.sandbox import GUEST_PACKAGES, Sandbox, SandboxSettings
from osworld_files import PYTHON

os.environ.setdefault(GUEST_PACKAGES, str(PYTHON.parents[1] / "guest-packages"))

LIMITS = Limits(memory_megabytes=4096, processes=2048, cpus=4.0, file_megabytes=256)
SETTINGS = SandboxSettings(width=1280, height=800, home_megabytes=256, network=False, limits=LIMITS)
BOOT_SECONDS = 60.0
PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "


class Guest:
    def __init__(self, sandbox):
        self.sandbox = sandbox

    def request(self, path, body=None, token=None, seconds=120.0):
        """(status, bytes). Sends GET without a body, a form if the body is bytes, else JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        address = f"http://127.0.0.1:{self.sandbox.ports.server}{path}"
        message = urllib.request.Request(address, data=data)
        credentials = base64.b64encode(f"arpo:{token or self.sandbox.token}".encode()).decode()
        message.add_header("Authorization", f"Basic {credentials}")
        try:
            with urllib.request.urlopen(message, timeout=seconds) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def screenshot(self):
        return self.request("/screenshot")[1]

    def run(self, command):
        """The JSON response to a shell command."""
        status, body = self.request("/execute", {"command": command, "shell": True})
        assert status == 200, body
        return json.loads(body)

    def output(self, command):
        result = self.run(command)
        assert result["returncode"] == 0, result
        return result["output"]

    def run_pyautogui(self, code):
        """Sends a pyautogui program in desktop-env's format."""
        status, body = self.request("/execute", {"command": ["python", "-c", PREFIX + code], "shell": False})
        assert status == 200, body
        return json.loads(body)

    def launch(self, *command):
        status, body = self.request("/setup/launch", {"command": list(command), "shell": False})
        assert status == 200, body

    def file(self, path):
        return self.request("/file", urlencode({"file_path": path}).encode())


@contextmanager
def booted(settings=SETTINGS):
    """Boots a desktop, and closes it at the end of the block."""
    sandbox = Sandbox(settings)
    sandbox.boot(BOOT_SECONDS)
    try:
        yield Guest(sandbox)
    finally:
        sandbox.close()
