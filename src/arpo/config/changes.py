"""Settings that a resumed run may change, with a record of the changes, and why it must keep the others.

`settings.py` declares with each setting whether it may change. One that may not has a reason here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from arpo.config import Config
from arpo.config.recipe import changed, format_value, keys, value
from arpo.config.settings import OnResume

ON_RESUME = {key.name: key.on_resume for key in keys()}
NEUTRAL, REMEDIES = (
    frozenset(name for name, own in ON_RESUME.items() if own is allowed)
    for allowed in (OnResume.FREE, OnResume.REMEDY)
)
_MOVED = "run.dir"  # a folder of another name is the same run

# By key, otherwise by section.
REASONS = {
    "run.seed": "it determines tasks, samples and replay",
    "model": "checkpoint and stored episodes belong to one model, with one prompt and one image size",
    "tasks": "the progress of a run is a position in its tasks",
    "env": "episodes before and after would come from different environments",
    "osworld": "episodes before and after would come from different desktops",
    "browser": "episodes before and after would come from different browsers",
    "gymnasium": "episodes before and after would come from different environments",
    "rollout": "episodes before and after would have different limits or another sampling",
    "train": "batches, updates and the order of tasks follow from it",
    "train.max_staleness": "it may only be lowered: older tokens than before would be trained",
    "train.epochs": "the learning rate reaches 0 at the end of the planned length (optim.schedule)",
    "train.tasks": "the learning rate reaches 0 at the end of the planned length (optim.schedule)",
    "loss": "the objective would change in the middle of the run",
    "reward": "the objective would change in the middle of the run",
    "server.model": "another judge would score the rest of the run (reward.judge)",
    "replay": "the objective would change in the middle of the run",
    "replay.seeds": "the run has copied its seeds when it started",
    "offline": "the objective would change in the middle of the run",
    "offline.passes": "the learning rate reaches 0 at the end of the planned length (optim.schedule)",
    "optim": "the optimiser would change in the middle of the run",
    "eval": "success rates before and after training would be measured differently",
    "plugins": "rewards, advantages or the order of tasks would change in the middle of the run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A setting that was changed on resume. The values are as in a recipe.

    >>> str(Change(batch=6, key="env.parallel", before="32", after="8"))
    'env.parallel = 8 from batch 6 (before: 32)'
    """

    batch: int  # the first one with the new value
    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key} = {self.after} from batch {self.batch} (before: {self.before})"


def describe_refusals(recorded: Config, config: Config, ignored: tuple[str, ...] = ()) -> str:
    """The settings that a resumed run must keep although `config` changes them, with reasons; "" for none.

    `ignored`: prefixes of keys that may change.
    """
    by_reason: dict[str, list[str]] = {}
    for key in changed(recorded, config):
        if not key.startswith(ignored) and not _may_change(key, recorded, config):
            kept = f"{key} = {format_value(value(recorded, key))}"
            by_reason.setdefault(reason(key), []).append(kept)
    return "; ".join(f"{', '.join(kept)} ({why})" for why, kept in by_reason.items())


def reason(key: str) -> str:
    return REASONS.get(key) or REASONS[key.partition(".")[0]]


def _may_change(key: str, recorded: Config, config: Config) -> bool:
    match ON_RESUME[key]:
        case OnResume.LOWER:
            before, after = value(recorded, key), value(config, key)
            assert not isinstance(before, str) and not isinstance(after, str)
            return after < before
        case OnResume.LENGTH:
            return config.optim.schedule == "constant"
        case OnResume.UNJUDGED:
            return not recorded.reward.judge
        case allowed:
            return allowed is not OnResume.FIXED


def find_changes(recorded: Config, config: Config, batch: int, ignored: tuple[str, ...] = ()) -> list[Change]:
    """The changed settings of a run that resumes with this batch. `ignored`: prefixes of keys."""
    return [
        Change(
            batch=batch,
            key=key,
            before=format_value(value(recorded, key)),
            after=format_value(value(config, key)),
        )
        for key in changed(recorded, config)
        if not key.startswith((_MOVED, *ignored))
    ]


def add_changes(noted: Iterable[Change], found: Sequence[Change], batch: int) -> list[Change]:
    """The changes of a run that resumes with this batch, in order: those noted before, and those found now.

    A change noted for a later batch applies from this one: its batches are trained again. Two changes of one
    key with the same batch become one.
    """
    merged: dict[tuple[int, str], Change] = {}
    for change in [*(replace(one, batch=min(one.batch, batch)) for one in noted), *found]:
        place = (change.batch, change.key)
        before = merged[place].before if place in merged else change.before
        merged[place] = replace(change, before=before)
    return [change for change in merged.values() if change.before != change.after]
