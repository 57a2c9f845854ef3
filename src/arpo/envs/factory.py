"""From a name in a recipe to environments: "desk", "osworld", or module:Class of the user's own.

They run in this process, or with `env.hosts` on other machines; real desktops, whose libraries and the
trainer's cannot share an interpreter, in a host of our own.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from arpo.config import Config
from arpo.envs.base import Env, EnvFactory, EnvSource
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.errors import UserError

CALLS = ("start", "step", "evaluate", "close")


def resolve_env(config: Config) -> EnvFactory:
    """What makes a fresh environment at each call. A class of the user's own is called without arguments."""
    if config.env.name == "desk":
        from arpo.envs.desk.env import DeskEnv

        def make_desk() -> Env:
            return DeskEnv(config.env.width, config.env.height, config.env.partial)

        return make_desk
    if config.env.name == "osworld":
        from arpo.envs.osworld.env import OSWorldEnv

        def make_osworld() -> Env:
            return OSWorldEnv(config.osworld, config.env)

        make_osworld()  # what cannot work is told now, not by every episode
        return make_osworld
    return _imported(config.env.name)


def open_pool(config: Config) -> EnvPool:
    """The recipe's environments, wherever they are."""
    if not is_elsewhere(config):
        return EnvPool(LocalEnvs(resolve_env(config), config.env.parallel), config.env)
    from arpo.envs.remote import add_timeout_slack

    return EnvPool(_elsewhere(config), add_timeout_slack(config.env))


def open_factory(config: Config) -> EnvFactory:
    """The same, for who makes environments one by one and keeps no more than env.parallel of them."""
    if not is_elsewhere(config):
        return resolve_env(config)
    from arpo.envs.remote import LeaseOnStartEnv

    source = _elsewhere(config)
    return lambda: LeaseOnStartEnv(source)


def is_elsewhere(config: Config) -> bool:
    return bool(config.env.hosts) or config.env.name == "osworld"


def _elsewhere(config: Config) -> EnvSource:
    from arpo.envs.child_host import start_child_host
    from arpo.envs.remote import parse_hosts

    return parse_hosts(config.env) if config.env.hosts else start_child_host(config)


def _imported(name: str) -> EnvFactory:
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise UserError(f'env.name = {name!r}: write "desk", "osworld", or module:Class')
    here = str(Path.cwd())
    if here not in sys.path:  # a command that is installed does not look where it is called
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UserError(f"env.name = {name!r}: importing {module_name} gave {error!r}") from error
    factory = getattr(module, class_name, None)
    if factory is None:
        raise UserError(f"env.name = {name!r}: {module_name} has no {class_name}")
    missing = [call for call in CALLS if isinstance(factory, type) and not hasattr(factory, call)]
    if missing or not callable(factory):
        raise UserError(f"env.name = {name!r}: not an environment, it has no {', '.join(missing) or 'call'}")
    return factory
