"""Opens environments by `env.name`: "desk", "osworld", "browser", "gymnasium:ID", "browsergym:ID",
"openenv:URL#FILE", or "module:Class" for a class of the user.

They run in this process, or on the machines of `env.hosts`. OSWorld's libraries conflict with the trainer's,
so "osworld" without `env.hosts` runs in a child process.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from arpo.config import Config, EnvConfig
from arpo.config.task_set_names import GYM_PREFIXES, OPENENV
from arpo.envs.base import Env, EnvFactory, EnvSource
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.envs.return_values import ENV_METHODS
from arpo.errors import UserError, definition_of
from arpo.plugins import import_attribute


def resolve_env(config: Config) -> EnvFactory:
    """Return a factory of environments in this process. A class of the user is called without arguments.

    Raises UserError if the name is unknown, or if the environment cannot work on this machine.
    """
    env = config.env
    if env.name == "desk":
        from arpo.envs.desk.env import DeskEnv

        def make_desk() -> Env:
            return DeskEnv(env.width, env.height, env.partial)

        return make_desk
    if env.name == "osworld":
        from arpo.envs.osworld.env import OSWorldEnv

        def make_osworld() -> Env:
            return OSWorldEnv(config.osworld, env)

        make_osworld()  # reports a missing requirement once, now, and not in every episode
        return make_osworld
    if env.name == "browser":
        from arpo.envs.browser.env import BrowserEnvs

        return BrowserEnvs(config.browser, env)
    if env.name.startswith(GYM_PREFIXES):
        from arpo.envs.gymnasium.env import GymnasiumEnvs

        return GymnasiumEnvs(config)
    if env.name.startswith(OPENENV):
        from arpo.envs.openenv.env import OpenEnvs

        return OpenEnvs(env.name)
    return _import_env(env.name)


def open_pool(config: Config) -> EnvPool:
    """Open a pool of the recipe's environments, local or remote."""
    if not uses_hosts(config.env):
        return EnvPool(LocalEnvs(resolve_env(config), config.env.parallel), config.env)
    from arpo.envs.remote import add_timeout_slack

    return EnvPool(_open_hosts(config), add_timeout_slack(config.env))


def open_factory(config: Config) -> EnvFactory:
    """Like `open_pool`, but returns a factory, for callers with at most env.parallel environments."""
    if not uses_hosts(config.env):
        return resolve_env(config)
    from arpo.envs.remote import LeaseOnStartEnv

    source = _open_hosts(config)
    return lambda: LeaseOnStartEnv(source)


def plays_desk(env: EnvConfig) -> bool:
    """Whether the environment can play the tasks of Desk. A class that only env.hosts can import may."""
    name = env.name
    if ":" not in name or name.startswith((OPENENV, *GYM_PREFIXES)):
        return name == "desk"
    from arpo.envs.desk.env import DeskEnv

    try:
        factory = _import_env(name)
    except UserError:
        if env.hosts:
            return True
        raise
    return not isinstance(factory, type) or issubclass(factory, DeskEnv)


def env_source(name: str) -> str:
    """The source or mapping file of the user's environment; "" for a built-in one, or if it is not found."""
    if ":" not in name or name.startswith(GYM_PREFIXES):
        return ""
    module = sys.modules.get(name.partition(":")[0])
    is_openenv = name.startswith(OPENENV)
    path = name.partition("#")[2] if is_openenv else getattr(module, "__file__", None)
    return Path(path).read_text("utf-8", "replace") if path and Path(path).is_file() else ""


def uses_hosts(env: EnvConfig) -> bool:
    return bool(env.hosts) or env.name == "osworld"


def _open_hosts(config: Config) -> EnvSource:
    from arpo.envs.child_host import start_child_host
    from arpo.envs.remote import parse_hosts

    return parse_hosts(config.env) if config.env.hosts else start_child_host(config)


def _import_env(name: str) -> EnvFactory:
    if ":" not in name:
        raise UserError(
            f'env.name = {name!r}: no such environment: use "desk", "osworld", "browser", "gymnasium:ID", '
            '"browsergym:ID", "openenv:URL#FILE" or "module:Class"'
        )
    factory = import_attribute("env.name", name, "class")
    if not callable(factory):
        raise UserError(f"env.name = {name!r}: not an environment: it is not callable")
    missing = [method for method in ENV_METHODS if isinstance(factory, type) and not hasattr(factory, method)]
    if missing:
        raise UserError(
            f"env.name = {name!r}: not an environment: add the methods {', '.join(missing)}{_at(factory)}"
        )
    if arguments := _required_arguments(factory):
        raise UserError(
            f"env.name = {name!r}: ARPO calls {name.partition(':')[2]}() without arguments, but it needs "
            f"{', '.join(arguments)}: give them default values{_at(factory)}"
        )
    return factory


def _required_arguments(factory: Any) -> list[str]:
    """Names of the arguments without a default value."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # of a callable written in C
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in optional]


def _at(factory: Any) -> str:
    """The line of the constructor, or of the class or function if it has none."""
    own = vars(factory).get("__init__") if isinstance(factory, type) else None
    place = definition_of(own or factory)
    return f" ({place})" if place else ""
