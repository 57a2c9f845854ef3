"""From a name in a recipe to environments: "desk", or module:Class of the user's own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from arpo.config import EnvConfig
from arpo.envs.base import Env, EnvFactory
from arpo.errors import UserError

CALLS = ("start", "step", "evaluate", "close")


def resolve_env(config: EnvConfig) -> EnvFactory:
    """What makes a fresh environment at each call. A class of the user's own is called without arguments."""
    if config.name == "desk":
        from arpo.envs.desk.env import DeskEnv

        def make() -> Env:
            return DeskEnv(config.width, config.height)

        return make
    return _imported(config.name)


def _imported(name: str) -> EnvFactory:
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise UserError(f'env.name = {name!r}: write "desk", or module:Class')
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
