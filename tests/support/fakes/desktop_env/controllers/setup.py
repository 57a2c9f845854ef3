import logging
import os
import time
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from desktop_env.guests import machine

logger = logging.getLogger("desktopenv.setup")


class SetupController:
    def __init__(self, vm_ip, server_port, chromium_port, vlc_port, cache_dir, client_password, **screen):
        self.cache_dir = cache_dir

    def reset_cache_dir(self, cache_dir):
        self.cache_dir = cache_dir

    def setup(self, config, use_proxy=False):
        raise AssertionError("CheckedSetup overrides this method")

    def _launch_setup(self, command):
        if command == "missing":
            logger.error("Failed to launch application. Status code: %s", "no such program")
        else:
            machine.record(f"launch {command}")

    def _execute_setup(self, command, until=None, failures=0):
        for _ in range(failures):
            logger.error("Failed to launch application. Status code: %s", "busy")

    def _download_setup(self, files):
        for file in files:
            logger.error("Failed to download, retrying")
            name = f"{uuid5(NAMESPACE_URL, file['url'])}_{Path(file['path']).name}"
            if not (Path(self.cache_dir) / name).exists():
                raise OSError(f"no retries left for {file['url']}")
            machine.files[file["path"]] = (Path(self.cache_dir) / name).read_bytes()
            (Path(self.cache_dir) / name).write_bytes(b"overwritten")

    def _sleep_setup(self, seconds):
        time.sleep(seconds)

    def _crash_setup(self):
        os.abort()
