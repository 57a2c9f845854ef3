"""Keys that earlier versions had, with what to do instead.

An error about one of them says it. A run that recorded one resumes if its meaning is the same as today.
"""

from __future__ import annotations

CONSTANTS: dict[str, float | str] = {
    "model.lora_alpha": 64.0,
    "server.stop": "",
    "offline.beta": 0.1,
    "cluster.rank_nodes": "",
}
OPTIONS = {
    "eval.tasks": "--tasks of arpo eval osworld",
    "eval.results": "--result-dir of arpo eval osworld",
    "eval.trials": "--trial-id of arpo eval osworld",
    "env.listen": "--listen of arpo env-host",
    "screen.rollouts": "--rollouts of arpo screen",
    "screen.drop_always": "--drop-always of arpo screen",
    "screen.count": "--count of arpo screen",
}
REMOVED = (*CONSTANTS, *OPTIONS)


def advice(name: str) -> str:
    """What to do instead of setting this key.

    >>> advice("env.listen")
    'is an option now: remove it, and use --listen of arpo env-host'
    """
    if name in OPTIONS:
        return f"is an option now: remove it, and use {OPTIONS[name]}"
    return f"is always {CONSTANTS[name]!r} now: remove it"


def has_no_effect(name: str, value: object) -> bool:
    """Whether a run that recorded this value is the same without it."""
    return name in OPTIONS or (name in CONSTANTS and value == CONSTANTS[name])
