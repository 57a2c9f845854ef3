import logging
import os

from desktop_env.controllers.python import PythonController
from desktop_env.evaluators import getters, metrics
from desktop_env.guests import PORT, machine
from desktop_env.providers.base import Provider

logger = logging.getLogger("desktopenv.providers.docker.DockerProvider")


class Container:
    id = "c0ffee"

    def pause(self):
        if machine.pause_error:
            raise RuntimeError(machine.pause_error)
        machine.record("pause")

    def unpause(self):
        machine.record("unpause")


class VirtualMachine(Provider):
    """Like vmware: it has a snapshot and cannot be paused."""

    container = None

    def start_emulator(self, path_to_vm, headless, os_type):
        machine.record("boot")
        if machine.boot_error:
            raise machine.boot_error

    def get_ip_address(self, path_to_vm):
        return f"localhost:{PORT}:9222:8006:8080"

    def revert_to_snapshot(self, path_to_vm, snapshot_name):
        machine.record(f"revert {snapshot_name}")
        return path_to_vm

    def stop_emulator(self, path_to_vm, region=None):
        machine.record("stop")


class Containers:
    def get(self, id):
        assert id == Container.id
        return Container()


class Client:
    containers = Containers()


class Docker(VirtualMachine):
    client = Client()

    def start_emulator(self, path_to_vm, headless, os_type):
        self.container = Container()
        super().start_emulator(path_to_vm, headless, os_type)


def create_vm_manager_and_provider(provider_name, region, use_proxy=False):
    if provider_name == "aws":
        raise ModuleNotFoundError("No module named 'boto3'", name="boto3")
    return None, (Docker if provider_name == "docker" else VirtualMachine)(region)


class DesktopEnv:
    def __init__(
        self, provider_name, region, path_to_vm, action_space, cache_dir, screen_size, headless, **_
    ):
        self.client_password = "password"
        self.screen_width, self.screen_height = screen_size
        self.manager, self.provider = create_vm_manager_and_provider(provider_name, region)
        self.is_environment_used = provider_name == "vmware"
        self.path_to_vm = path_to_vm
        self.headless = headless
        self.os_type = "Ubuntu"
        self.cache_dir_base = cache_dir
        self._start_emulator()
        self.action_history = []

    def _start_emulator(self):
        self.provider.start_emulator(self.path_to_vm, self.headless, self.os_type)
        ports = self.provider.get_ip_address(self.path_to_vm).split(":")
        self.vm_ip = ports[0]
        self.server_port, self.chromium_port, self.vnc_port, self.vlc_port = map(int, ports[1:])
        self.controller = PythonController(self.vm_ip, self.server_port)
        self.setup_controller = None

    def reset(self, task_config):
        if self.is_environment_used:
            self.provider.revert_to_snapshot(self.path_to_vm, "init_state")
            self._start_emulator()
        self.evaluator = task_config["evaluator"]
        self.cache_dir = os.path.join(self.cache_dir_base, task_config["id"])
        self.setup_controller.reset_cache_dir(self.cache_dir)
        self.setup_controller.setup(task_config["config"], False)
        return self._get_obs()

    def _get_obs(self):
        return {"screenshot": self.controller.get_screenshot()}

    def step(self, action, pause=2):
        self.action_history.append(action)
        if action == "WAIT":
            machine.sleeps.append(pause)
        elif action not in ("DONE", "FAIL"):
            self.controller.execute_python_command(action)
        machine.sleeps.append(pause)
        return self._get_obs(), 0, action in ("DONE", "FAIL"), {}

    def evaluate(self):
        self.setup_controller.setup(self.evaluator.get("postconfig", []), False)
        failed = bool(self.action_history) and self.action_history[-1] == "FAIL"
        if self.evaluator["func"] == "infeasible":
            return int(failed)
        if failed:
            return 0
        metric = getattr(metrics, self.evaluator["func"])
        states = [
            getattr(getters, f"get_{source['type']}")(self, source)
            for key in ("result", "expected")
            if (source := self.evaluator.get(key))
        ]
        return metric(*states)
