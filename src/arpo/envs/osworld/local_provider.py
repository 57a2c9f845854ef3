"""The light desktop as a desktop-env provider, which starts and stops the machine of one environment.

It has no snapshots: every start begins with a fresh home. desktop-env's requests carry the guest's token
because the `requests` library reads the file in the environment variable NETRC.
"""

from __future__ import annotations

import os
from pathlib import Path

from desktop_env.providers.base import Provider

from arpo.envs.osworld.sandbox import Sandbox, SandboxSettings
from arpo.errors import UserError

NO_VNC_PORT = 0  # desktop-env expects a VNC port and never uses it


class LocalProvider(Provider):
    def __init__(self, settings: SandboxSettings, boot_seconds: float, netrc: Path) -> None:
        super().__init__()
        self._settings = settings
        self._boot_seconds = boot_seconds
        self._netrc = netrc
        self._sandbox: Sandbox | None = None

    def start_emulator(self, path_to_vm: str, headless: bool, os_type: str = "Ubuntu") -> None:
        self._sandbox = Sandbox(self._settings)
        self._sandbox.boot(self._boot_seconds)
        self._netrc.touch(mode=0o600)
        self._netrc.write_text(f"machine 127.0.0.1 login arpo password {self._sandbox.token}\n")
        os.environ["NETRC"] = str(self._netrc)

    def get_ip_address(self, path_to_vm: str) -> str:
        """address:server:chromium:vnc:vlc, the format of desktop-env's Docker provider."""
        assert self._sandbox is not None
        ports = self._sandbox.ports
        return f"127.0.0.1:{ports.server}:{ports.chromium}:{NO_VNC_PORT}:{ports.vlc}"

    def save_state(self, path_to_vm: str, snapshot_name: str) -> None:
        raise UserError("a light desktop has no snapshots: every start is fresh")

    def revert_to_snapshot(self, path_to_vm: str, snapshot_name: str) -> str:
        """Stops the desktop. desktop-env then calls `start_emulator`, which starts a fresh one."""
        self.stop_emulator(path_to_vm)
        return path_to_vm

    def stop_emulator(self, path_to_vm: str) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None
