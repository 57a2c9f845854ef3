import logging

from desktop_env.guests import machine

logger = logging.getLogger("desktopenv.pycontroller")


class PythonController:
    def __init__(self, vm_ip, server_port):
        self.retry_times = 3
        self.retry_interval = 5

    def _tries(self):
        for _ in range(self.retry_times):
            yield
            machine.sleeps.append(self.retry_interval)

    def get_screenshot(self):
        for _ in self._tries():
            if machine.alive:
                return machine.screenshot
            logger.error("An error occurred while trying to get the screenshot: refused")
        return None

    def get_file(self, file_path):
        for _ in self._tries():
            if machine.alive and file_path in machine.files:
                return machine.files[file_path]
            logger.error("Failed to get file. Status code: 404")
        return None

    def execute_python_command(self, command):
        for _ in self._tries():
            machine.programs.append(command)
            if machine.alive and machine.answer is not None:
                return machine.answer
            logger.error("Failed to execute command. Status code: 500")
        return None
