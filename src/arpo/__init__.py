"""ARPO: reinforcement learning for agents that use a computer through screenshots, mouse and keyboard.

    import arpo

    run = arpo.train(arpo.load("desk", {"train.epochs": 1, "run.dir": "runs/mine"}))

docs/python.md explains the functions. `import arpo` is fast: each name is imported when it is used, and torch
only when a model is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from arpo.api import Episode, Play, Step, StoredRun, evaluate, load, open_run, play, train
    from arpo.config import Config
    from arpo.errors import ArpoFault, EngineError, EnvError, UserError
    from arpo.evaluation.scoring import Score

_MODULES = {
    "arpo.api": ("Episode", "Play", "Step", "StoredRun", "evaluate", "load", "open_run", "play", "train"),
    "arpo.config": ("Config",),
    "arpo.errors": ("ArpoFault", "EngineError", "EnvError", "UserError"),
    "arpo.evaluation.scoring": ("Score",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ArpoFault",
    "Config",
    "EngineError",
    "EnvError",
    "Episode",
    "Play",
    "Score",
    "Step",
    "StoredRun",
    "UserError",
    "evaluate",
    "load",
    "open_run",
    "play",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'arpo' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
