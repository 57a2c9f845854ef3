"""Names of the task sets of a run: training tasks, one or several held-out sets, overall tasks.

tasks.heldout may list several sources, separated by commas. Each becomes a set of its own:

    "tasks.json"                                   heldout
    "desk:instances/validation,more.json"          instances_validation, more
    "desk:test"                                    instances_test, families_test, applications_test, long_test

The names are keys of summary.json and evaluations.jsonl, parts of metrics ("eval_instances_test") and of
episode ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from arpo.errors import UserError

TRAIN, HELDOUT, OVERALL = "train", "heldout", "overall"
TRAINING_EPISODES = "training_episodes"  # key of summary.json; takes the place of endless training tasks
DESK = "desk:"  # prefix of the task lists of Desk
# The generated held-out sets of Desk: levels, each with two halves.
LEVELS = {
    "instances": "new instances",
    "families": "new goal families",
    "applications": "new applications",
    "long": "longer tasks",
}
EVERY_TASK = {
    "instances": "goal families of desk:fresh, other worlds",
    "families": "a goal family that desk:fresh never has",
    "applications": "an application that desk:fresh never has",
    "long": "two or three goals in at least two applications",
}  # has this
HALVES = ("validation", "test")  # to choose with; untouched by any choice
MINIWOB, OPENENV = "miniwob:", "openenv:"
GYM_PREFIXES = ("gymnasium:", "browsergym:")  # of environments, and of lists of their instances
QUICK = "quick"  # the first tasks of the validation half
GENERATED = {f"{DESK}{level}/{half}": f"{level}_{half}" for level in LEVELS for half in HALVES}
GENERATED |= {f"{DESK}{level}/{QUICK}": f"{level}_validation" for level in LEVELS}
# Keys beside the sets: in the files of `arpo eval`, and among the curves of a comparison.
RESERVED = ("model", "temperature", "skipped", "sampled", "without_signal", "rescued", "replay_age")
_LABELS = {TRAIN: "training tasks", HELDOUT: "held-out tasks", OVERALL: "all tasks"}
_LABELS |= {f"{level}_{half}": f"{label} ({half})" for level, label in LEVELS.items() for half in HALVES}


def split_sources(text: str) -> list[str]:
    """The sources of tasks.heldout. "desk:validation", "desk:test" and "desk:quick" stand for all levels.

    >>> split_sources("desk:test, more.json")
    ['desk:instances/test', 'desk:families/test', 'desk:applications/test', 'desk:long/test', 'more.json']
    """
    sources: list[str] = []
    for source in filter(None, map(str.strip, text.split(","))):
        if sources and _is_listed_after(sources[-1], source):
            sources[-1] += f",{source}"  # one more task of the list before
            continue
        half = source.removeprefix(DESK)
        is_half = half in (*HALVES, QUICK) and source.startswith(DESK)
        sources += [f"{DESK}{level}/{half}" for level in LEVELS] if is_half else [source]
    return sources


def _is_listed_after(source: str, name: str) -> bool:
    """Whether `name` is a further task of the list `source`, and no source of its own."""
    if source.startswith(GYM_PREFIXES):
        return re.fullmatch(r"[\w./-]+", name) is not None and not name.endswith(".json")
    return source.startswith(MINIWOB) and re.fullmatch(r"[a-z0-9-]+", name) is not None


def heldout_sets(text: str) -> dict[str, str]:
    """The sources of tasks.heldout by the name of their set. A single list of tasks is "heldout".

    Raises UserError if two sets have the same name, or one has a reserved name.
    """
    sources = split_sources(text)
    if not sources or (len(sources) == 1 and sources[0] not in GENERATED):
        return {HELDOUT: "".join(sources)}
    found: dict[str, str] = {}
    for source in sources:
        name = GENERATED.get(source) or re.sub(r"\W+", "_", PurePath(source.rpartition(":")[2]).stem)
        if name in RESERVED:
            raise UserError(
                f"tasks.heldout: {source}: the name {name!r} is reserved for other results: rename the file"
            )
        if name in (*found, TRAIN, OVERALL):
            raise UserError(
                f"tasks.heldout: {source}: there is another task set with the name {name!r}: remove it, or "
                "rename the file"
            )
        found[name] = source
    return found


def set_label(name: str) -> str:
    """The label of a task set in tables: "training tasks", "new instances (test)", "held-out tasks, more"."""
    return _LABELS.get(name, f"held-out tasks, {name}")


def explain_heldout(text: str) -> dict[str, str]:
    """What each set of tasks.heldout is, by its name: its source, and what every task of a set of Desk has.

    >>> explain_heldout("desk:families/test")
    {'families_test': 'desk:families/test: a goal family that desk:fresh never has'}
    """
    found = {}
    for name, source in heldout_sets(text).items():
        level = EVERY_TASK.get(source.removeprefix(DESK).partition("/")[0]) if source in GENERATED else None
        found[name] = f"{source}: {level}" if level else source
    return {name: explained for name, explained in found.items() if explained}


def in_order(names: Iterable[str]) -> list[str]:
    """The names without duplicates: training tasks first, then held-out sets as they come, overall last."""
    return sorted(dict.fromkeys(names), key=lambda name: (name != TRAIN, name == OVERALL))
