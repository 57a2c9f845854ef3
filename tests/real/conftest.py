"""A real environment host for the tests: a process of its own, under the interpreter that has desktop-env."""

import shutil

import pytest

from arpo.config import Config, EnvConfig, OSWorldConfig
from arpo.envs.child_host import ChildHost
from arpo.envs.remote import Hosts, RemoteHost
from osworld_files import PYTHON


@pytest.fixture(scope="session")
def host_config(tmp_path_factory):
    for thing, missing in (
        ("bubblewrap", shutil.which("bwrap") is None),
        ("desktop-env", not PYTHON.exists()),
    ):
        if missing:
            pytest.skip(f"{thing} is not installed: make osworld")
    env = EnvConfig(
        name="osworld", width=1920, height=1080, parallel=2, start_seconds=120, evaluate_seconds=120
    )
    cache = tmp_path_factory.mktemp("cache")
    return Config(env=env, osworld=OSWorldConfig(python=str(PYTHON), cache=str(cache)))


@pytest.fixture(scope="session")
def hosts(host_config):
    """Where desktops are leased, two at once."""
    host = ChildHost(host_config)
    host.wait()
    yield Hosts([RemoteHost("the tests' host", host.address, host.token)], host_config.env)
    host.close()
