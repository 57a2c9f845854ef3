"""The methods of a comparison: recipes to train, and finished runs. Reads their run folders.

A word of the command line names one method:

    desk, mine.toml           a recipe, trained in OUT/NAME/seed-0, OUT/NAME/seed-1, …
    runs/mine                 the finished run in this folder, or the runs in its subfolders, one per seed
    other=runs/a,runs/b       several finished runs, with a name for the table

Files needed for each run: recipe.toml, metrics.jsonl, timing.jsonl, evaluations.jsonl, and summary.json once
the run has finished. Collected episodes need timing.jsonl, otherwise their time is not counted. Checkpoints
and episodes are not needed, so a folder can be copied without them. Unfinished runs contribute curves only
and are listed as missing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arpo.comparison.results import BASE, FINAL, Comparison, RunResult, compare_runs, run_result
from arpo.config import Config
from arpo.config.changes import NEUTRAL
from arpo.config.recipe import (
    changed,
    load_config,
    load_recorded,
    nearest,
    own_settings,
    shipped_recipes,
    value,
)
from arpo.errors import UserError
from arpo.reporting.display import count_noun
from arpo.storage.run_folder import EVALUATIONS, METRICS, RECIPE, TIMING, read_log, read_summary
from arpo.tasks.lists import load_counts
from arpo.tasks.screened import Count

COLLECTED = "collected"  # like BASE a reserved name: the folder of collected episodes
NEUTRAL_KEYS = NEUTRAL | {"run.seed"}
_NAMED = re.compile(r"([^/=]+)=(.+)")
_SEED = re.compile("seed-([0-9]{1,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row of the comparison. `runs` has the folders of finished runs by seed; {} for a recipe."""

    name: str
    word: str  # of the command line
    runs: Mapping[int, Path]

    def config(self, settings: Sequence[str] = ()) -> Config:
        """The recipe with the settings of the command line, or the recipe of the first finished run."""
        finished = next(iter(self.runs.values()), None)
        return load_recorded(finished / RECIPE)[0] if finished else load_config(self.word, settings)


def find_methods(words: Sequence[str]) -> list[Method]:
    """Raises UserError for unfinished runs, for a reserved name, and for two methods with the same name."""
    methods: dict[str, Method] = {}
    for method in map(_find_method, words):
        if method.name in (BASE, COLLECTED):
            raise UserError(f"{method.word}: the name {method.name!r} is reserved in a comparison: rename it")
        if method.name in methods:
            raise UserError(
                f"{method.word}: {methods[method.name].word} has the name {method.name!r} too: rename one of "
                "them, or give a run folder another name with NAME=FOLDER"
            )
        methods[method.name] = method
    return list(methods.values())


def _find_method(word: str) -> Method:
    path, named = Path(word), _NAMED.fullmatch(word)
    if path.is_file() or word in shipped_recipes() or not (path.is_dir() or named):
        return Method(name=method_name(word), word=word, runs={})
    if path.is_dir():
        resolved = path.resolve()
        name = resolved.parent.name if _SEED.fullmatch(resolved.name) else resolved.name
        return Method(name=name, word=word, runs=_runs_by_seed([path]))
    assert named
    return Method(name=named[1], word=word, runs=_runs_by_seed(map(Path, filter(None, named[2].split(",")))))


def method_name(recipe: str) -> str:
    """Name of a recipe's row and folder: paper/grpo -> paper-grpo, my/recipe.toml -> recipe"""
    path = Path(recipe)
    return path.stem if path.is_file() or path.suffix == ".toml" else recipe.replace("/", "-")


def _runs_by_seed(given: Iterable[Path]) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for folder in (run for parent in given for run in _runs_in(parent)):
        landmarks = [line["landmark"] for line in read_log(folder, EVALUATIONS)]
        if not read_summary(folder) or FINAL not in landmarks:
            raise UserError(
                f"{folder}: this run is unfinished: finish it with `arpo train "
                f"{shlex.quote(str(folder / RECIPE))} --run.dir {shlex.quote(str(folder))}`, then compare"
            )
        seed = load_recorded(folder / RECIPE)[0].run.seed
        if other := found.get(seed):
            raise UserError(
                f"{folder}: has the seed {seed} of {other}: a method has one run per seed; compare them as "
                "two methods"
            )
        found[seed] = folder
    return dict(sorted(found.items()))


def _runs_in(folder: Path) -> list[Path]:
    if (folder / RECIPE).is_file():
        return [folder]
    what = "contains no runs" if folder.is_dir() else "no such folder"
    if not (found := sorted(path.parent for path in folder.glob(f"*/{RECIPE}"))):
        raise UserError(f"{folder}: {what}: give the folder of a run, or of the runs of one recipe")
    return found


def choose_baseline(against: str | None, names: Sequence[str]) -> str:
    """Name of the baseline: `against`, or the first name if it is None."""
    baseline = names[0] if against is None else against if against in names else method_name(against)
    if baseline not in names:
        raise UserError(f"--against {against}: not part of this comparison{nearest(baseline, names)}")
    return baseline


def differing_keys(one: Config, other: Config) -> list[str]:
    """Keys with different values and an effect on results."""
    return [key for key in changed(one, other) if key not in NEUTRAL_KEYS]


def describe_differences(
    configs: Mapping[str, Config], reference: str, recipes: Mapping[str, str]
) -> list[str]:
    """Lines with the settings of each method that differ from the reference, and hints.

    `recipes` has the recipe of each method that is trained, by its name.
    """
    lines = []
    for name in (name for name in configs if name != reference):
        keys = differing_keys(configs[reference], configs[name])
        count = f"differs from {reference} in {count_noun(len(keys), 'setting')}"
        lines.append(f"{name} {count if keys else f'has the settings of {reference}'}")
        width = max(map(len, keys), default=0)
        for key in keys:
            own, other = (json.dumps(value(configs[one], key)) for one in (name, reference))
            lines.append(f"  {key:{width}}  {own} ({reference}: {other})")
        if name in recipes and reference in recipes:
            lines += _hint(recipes[name], recipes[reference], keys)
    return lines


def _hint(recipe: str, reference: str, differing: list[str]) -> list[str]:
    """A hint for a recipe that differs in keys which it does not set: its author may not know that."""
    if not Path(recipe).is_file():
        return []
    extended, own = own_settings(Path(recipe))
    if extended is not None or set(own) >= set(differing):
        return []
    if Path(reference).is_file():
        reference = os.path.relpath(reference, Path(recipe).parent)
    return [
        f"  {recipe} sets {len(own)} of these keys; the others have their defaults. To start from the other "
        f'recipe, put this line first in {recipe}: extends = "{reference}"'
    ]


def load_comparison(
    out: Path, words: Sequence[str], seeds: int | None, against: str | None
) -> tuple[Comparison, list[RunResult]]:
    """Compare the runs in `out` and the finished runs that `words` name.

    `words` sets the methods and their order: recipes and finished runs. If it is empty, all methods in `out`
    are compared, the baseline first. `seeds` None: all seeds in `out`. `against` None: the baseline is the
    first method, or the base model if `words` is empty.
    """
    methods = find_methods(words)
    if not out.is_dir() and not any(method.runs for method in methods):
        raise UserError(
            f"{out}: no such folder: create it with `arpo compare RECIPE … --seeds 3 --out FOLDER`"
        )
    trained = _trained_runs(out, [method.name for method in methods if not method.runs] if words else None)
    if not words and not trained:
        command = f"arpo compare RECIPE … --seeds 3 --out {shlex.quote(str(out))}"
        raise UserError(f"{out}: contains no runs: start them with `{command}`")
    if seeds is None and (missing := [name for name in trained if not trained[name]]):
        available = ", ".join(sorted(_trained_runs(out, None)))
        raise UserError(f"{out}: contains no runs of {', '.join(missing)}: choose from {available}")
    planned = range(seeds or 1 + max((seed for runs in trained.values() for seed in runs), default=-1))
    folders = {method.name: method.runs for method in methods} | {
        name: {seed: runs[seed] for seed in sorted(runs) if seed in planned} for name, runs in trained.items()
    }
    baseline = choose_baseline(against, [*folders, BASE] if words else [BASE, *folders])
    names = list(folders) if words else sorted(folders, key=lambda name: (name != baseline, name))
    results = [read_run_result(folders[name][seed], name, seed) for name in names for seed in folders[name]]
    wanted = {name: planned if name in trained else folders[name] for name in names}
    return compare_runs(results, wanted, baseline, _screening_counts(results)), results


def _trained_runs(out: Path, names: Sequence[str] | None) -> dict[str, dict[int, Path]]:
    """Folders of the runs in `out` by method and seed: of these methods, or of all that have runs."""
    found: dict[str, dict[int, Path]] = {name: {} for name in names or ()}
    for path in sorted(out.glob(f"*/seed-*/{RECIPE}")):
        folder, name = path.parent, path.parent.parent.name
        if name in (BASE, COLLECTED) or (names is not None and name not in names):
            continue
        if not (seed := _SEED.fullmatch(folder.name)):
            raise UserError(
                f"{folder}: run folders of a comparison are named seed-0, seed-1, …: move it away"
            )
        found.setdefault(name, {})[int(seed[1])] = folder
    return found


def read_run_result(folder: Path, method: str, seed: int) -> RunResult:
    """Read a run folder, finished or not. Raises UserError if a record in it is damaged."""
    config, _ = load_recorded(folder / RECIPE)
    seconds = 0.0
    if config.train.method != "online":
        collected = folder.absolute().parents[1] / COLLECTED / folder.name
        seconds = collection_seconds(collected if collected.is_dir() else Path(config.offline.source))
    return run_result(
        method,
        seed,
        config,
        summary=read_summary(folder),
        metrics=read_log(folder, METRICS),
        timing=read_log(folder, TIMING),
        evaluations=read_log(folder, EVALUATIONS),
        collection_seconds=seconds,
    )


def collection_seconds(folder: Path) -> float:
    return sum(line.get("rollout", 0.0) for line in read_log(folder, TIMING))


def _screening_counts(runs: Sequence[RunResult]) -> dict[str, Count]:
    """Screening counts of the training tasks. Skips task files that cannot be loaded any more."""
    found: dict[str, Count] = {}
    for tasks in dict.fromkeys(run.config.tasks for run in runs):
        try:
            found |= load_counts(tasks.train, tasks.examples)
        except UserError:
            continue
    return found
