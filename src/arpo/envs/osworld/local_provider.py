"""The light sandbox as a provider of desktop-env: what starts and stops the machine of one environment.

It has no snapshots and needs none, as every start is from the same prepared home. desktop-env's own requests
carry the guest's token, because `requests` looks up NETRC by itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from desktop_env.providers.base import Provider

from arpo.envs.osworld.sandbox import Sandbox, SandboxSettings
from arpo.errors import UserError

NO_SCREEN_SHARING = 0  # the port that desktop-env asks for and never uses


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
        """In the form in which desktop-env takes ports from its Docker provider."""
        assert self._sandbox is not None
        ports = self._sandbox.ports
        return f"127.0.0.1:{ports.server}:{ports.chromium}:{NO_SCREEN_SHARING}:{ports.vlc}"

    def save_state(self, path_to_vm: str, snapshot_name: str) -> None:
        raise UserError("a light desktop has no snapshots: it always starts anew")

    def revert_to_snapshot(self, path_to_vm: str, snapshot_name: str) -> str:
        """What follows is a start, which is fresh."""
        self.stop_emulator(path_to_vm)
        return path_to_vm

    def stop_emulator(self, path_to_vm: str) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None
