import logging

from desktop_env.guests import world

logger = logging.getLogger("desktopenv.pycontroller")


class PythonController:
    def __init__(self, vm_ip, server_port):
        self.retry_times = 3
        self.retry_interval = 5

    def _tries(self):
        for _ in range(self.retry_times):
            yield
            world.naps.append(self.retry_interval)

    def get_screenshot(self):
        for _ in self._tries():
            if world.alive:
                return world.picture
            logger.error("An error occurred while trying to get the screenshot: refused")
        return None

    def get_file(self, file_path):
        for _ in self._tries():
            if world.alive and file_path in world.files:
                return world.files[file_path]
            logger.error("Failed to get file. Status code: 404")
        return None

    def execute_python_command(self, command):
        for _ in self._tries():
            world.programs.append(command)
            if world.alive and world.answer is not None:
                return world.answer
            logger.error("Failed to execute command. Status code: 500")
        return None
