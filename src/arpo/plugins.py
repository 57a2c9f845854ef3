"""Plug-ins: functions and classes of the user, named as `module:attribute` in the section [plugins].

    [plugins]
    reward = "my_file:reward"  # the function `reward` of my_file.py in the current folder

The protocols below are their signatures. Arguments are passed by position, so a plug-in may name them as it
likes. docs/python.md has an example of each.

A mistake raises UserError. It names the config key, the plug-in, and file and line of the user's code.
"""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from random import Random
from typing import Any, Protocol

from arpo.config import Config, PluginsConfig
from arpo.config.checks import shorten
from arpo.config.recipe import nearest
from arpo.errors import UserError, definition_of, describe_exception, place_of
from arpo.types import Group, Task, Trajectory


class RewardPlugin(Protocol):
    """The reward of an episode. Replaces score and format penalty. Called once per episode."""

    def __call__(self, trajectory: Trajectory, task: Task, /) -> float: ...


class AdvantagePlugin(Protocol):
    """The advantage of each episode of a group, in the order of `rewards`. Replaces loss.advantage.

    Called once per group of at least two episodes, after replay. A group whose advantages are all 0 is not
    trained on.
    """

    def __call__(self, rewards: Sequence[float], group: Group, /) -> Sequence[float]: ...


class CurriculumPlugin(Protocol):
    """The tasks of one epoch, in order: as many as `tasks`, each any number of times.

    `history` has the scores of all training episodes so far by task id, oldest first. `rng` depends on
    run.seed and the epoch alone. Called once per epoch; checkpoints store the order.
    """

    def __call__(
        self, tasks: Sequence[Task], epoch: int, history: Mapping[str, Sequence[float]], rng: Random, /
    ) -> Sequence[Task]: ...


class Tracker(Protocol):
    """Receives the metrics of each step: `tracker.log(3, {"reward": 0.25, "loss": -0.01})`."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TrackerPlugin(Protocol):
    """A class or function that makes a tracker, in addition to those of [store]. Called once per process.

    A resumed run logs the steps after its checkpoint again.
    """

    def __call__(self, config: Config, /) -> Tracker: ...


class CallbackPlugin(Protocol):
    """Called after each batch, with its metrics and its groups after replay; offline training has no groups.

    It may return further metrics. They are logged with the others.
    """

    def __call__(
        self, batch: int, metrics: Mapping[str, float], groups: Sequence[Group], /
    ) -> Mapping[str, float] | None: ...


KINDS: Mapping[str, type] = {
    "reward": RewardPlugin,
    "advantage": AdvantagePlugin,
    "curriculum": CurriculumPlugin,
    "tracker": TrackerPlugin,
    "callback": CallbackPlugin,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A loaded plug-in. `call` is the boundary that attributes each of its exceptions."""

    key: str  # for example plugins.reward
    name: str  # for example my_file:reward
    function: Callable[..., Any]

    def __call__(self, *arguments: object) -> Any:
        return self.call(self.function, *arguments)

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a function of the plug-in. Every exception except Ctrl-C becomes a UserError."""
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            raise self.error(describe_exception(error), place_of(error)) from error

    def error(self, reason: str, place: str | None = None) -> UserError:
        """The error to raise for a wrong result. `place` is by default the definition of the function."""
        return _error(self.key, self.name, reason, definition_of(self.function) if place is None else place)

    def number(self, value: object, subject: str) -> float:
        """The value as a float. `subject` names it in the error: "episode batch-1-1-0"."""
        if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        raise self.error(f"returned {shorten(value)} for {subject}, must be a finite number")


def open_plugin(plugins: PluginsConfig, kind: str) -> Plugin | None:
    """Import the plug-in of [plugins] and check its signature. None if the setting is empty."""
    key, name = f"plugins.{kind}", getattr(plugins, kind)
    if not name:
        return None
    function = import_attribute(key, name)
    plugin = Plugin(key=key, name=name, function=function)
    if not callable(function):
        raise _error(key, name, f"is {shorten(function)}, must be a function")
    if inspect.iscoroutinefunction(function):
        raise plugin.error("is async: write `def`, not `async def`")
    needed = list(inspect.signature(KINDS[kind].__call__).parameters)[1:]
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C
        return plugin
    try:
        signature.bind(*needed)
    except TypeError:
        raise plugin.error(f"takes {signature}, must take ({', '.join(needed)})") from None
    return plugin


def check_plugins(plugins: PluginsConfig) -> None:
    """Import all plug-ins: a mistake is reported before a folder is made and a model is loaded."""
    for kind in KINDS:
        open_plugin(plugins, kind)


def run_callback(
    plugin: Plugin, batch: int, metrics: Mapping[str, float], groups: Sequence[Group]
) -> dict[str, float]:
    """Call the callback of a batch. Returns its further metrics."""
    further = plugin(batch, dict(metrics), tuple(groups))
    if further is None:
        return {}
    if not isinstance(further, Mapping) or not all(isinstance(name, str) for name in further):
        raise plugin.error(f"returned {shorten(further)}, must be a dict of metrics, or None")
    if known := sorted(further.keys() & {"step", *metrics}):
        raise plugin.error(f"returned the metric {known[0]!r}, which exists: choose another name")
    return {name: plugin.number(value, f"the metric {name!r}") for name, value in further.items()}


def import_attribute(key: str, name: str, kind: str = "function") -> Any:
    """Import "module:attribute", the value of a config key. Modules in the current folder are found, too."""
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise _error(key, name, f"must be module:{kind}, for example my_file:my_{kind}")
    if module_name.endswith(".py") or "/" in module_name:
        written = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise _error(key, name, f"is a path, must be a module: write {written}:{attribute}")
    here = str(Path.cwd())
    if here not in sys.path:  # an installed command does not search the current folder
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # importing runs the module, which may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            remedy = f"run the command in the folder of {error.name}.py, or install it"
            raise _error(key, name, f"no module {error.name}: {remedy}") from None
        raise _error(
            key, name, f"importing {module_name} failed: {describe_exception(error)}", place_of(error)
        ) from error
    if not hasattr(module, attribute):
        names = [other for other in vars(module) if not other.startswith("_")]
        reason = f"module {module_name} has no {kind} {attribute}{nearest(attribute, names)}"
        raise _error(key, name, reason)
    return getattr(module, attribute)


def _error(key: str, name: str, reason: str, place: str = "") -> UserError:
    return UserError(f"{key} = {name!r}: {reason}" + (f" ({place})" if place else ""))
