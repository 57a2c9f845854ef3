"""Finished runs as methods of a comparison: `arpo compare runs/mine other=runs/a,runs/b`.

A word of the command line names one method: a recipe to train, or finished runs, one per seed.

    runs/mine                 the run in this folder, or the runs in its subfolders
    other=runs/a,runs/b       several runs, with a name for the table
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from arpo.config import Config
from arpo.config.recipe import load_recorded, shipped_recipes
from arpo.errors import UserError
from arpo.storage.run_folder import EVALUATIONS, RECIPE, read_log, read_summary

_NAMED = re.compile(r"([^/=]+)=(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """The finished runs of one method: folders by seed."""

    name: str
    folders: dict[int, Path]
    config: Config  # of the first run


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, RunGroup]]:
    """The recipes among the words, and the finished runs by the word that names them."""
    groups = {word: group for word in words if (group := find_runs(word)) is not None}
    return [word for word in words if word not in groups], groups


def find_runs(word: str) -> RunGroup | None:
    """The finished runs that a word names; None for a recipe. Raises UserError for unfinished runs."""
    if Path(word).is_file() or word in shipped_recipes():
        return None
    if Path(word).is_dir():
        return _group(_default_name(Path(word)), [Path(word)])
    if named := _NAMED.fullmatch(word):
        return _group(named[1], [Path(part) for part in named[2].split(",") if part])
    return None


def _group(name: str, given: Iterable[Path]) -> RunGroup:
    configs: dict[Path, Config] = {}
    folders: dict[int, Path] = {}
    for folder in (run for parent in given for run in _runs_in(parent)):
        _require_finished(folder)
        config, _ = load_recorded(folder / RECIPE)
        configs[folder] = config
        if other := folders.get(config.run.seed):
            raise UserError(
                f"{folder}: has the seed {config.run.seed} of {other}: a method has one run per seed; "
                "compare them as two methods"
            )
        folders[config.run.seed] = folder
    folders = dict(sorted(folders.items()))
    return RunGroup(name=name, folders=folders, config=configs[next(iter(folders.values()))])


def _runs_in(folder: Path) -> list[Path]:
    if (folder / RECIPE).is_file():
        return [folder]
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder: give the folder of a run, or of the runs of one recipe")
    found = sorted(path.parent for path in folder.glob(f"*/{RECIPE}"))
    if not found:
        raise UserError(
            f"{folder}: contains no runs: give the folder of a run, or the folder of the runs of one recipe"
        )
    return found


def _require_finished(folder: Path) -> None:
    landmarks = [line["landmark"] for line in read_log(folder, EVALUATIONS)]
    if not read_summary(folder) or "final" not in landmarks:
        raise UserError(
            f"{folder}: this run is unfinished: finish it with `arpo train {folder / RECIPE} --run.dir "
            f"{folder}`, then compare"
        )


def _default_name(folder: Path) -> str:
    """Name of the folder; for OUT/NAME/seed-0, a run of a comparison, NAME."""
    folder = folder.resolve()
    return folder.parent.name if re.fullmatch("seed-[0-9]+", folder.name) else folder.name
