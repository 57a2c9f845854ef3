"""Runs several recipes over several seeds, next to finished runs (`arpo compare`).

    OUT/NAME/seed-0/       run folder of `arpo train`; its output is in OUT/NAME/seed-0.log
    OUT/collected/seed-0/  episodes of the base model for offline methods; seed-0.json beside it says whether
                           the collection is complete

`viewer/comparison.py` reads the results.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from arpo.comparison.jobs import Job, JobRunner, affects_episodes
from arpo.comparison.run_groups import RunGroup, split_words
from arpo.comparison.settings import describe_differences
from arpo.config import Config
from arpo.config.recipe import changed, load_config, nearest
from arpo.errors import UserError
from arpo.interrupts import INTERRUPTED
from arpo.reporting.display import Display, open_display
from arpo.storage.run_folder import lock_folder
from arpo.tasks.sets import load_sets

BASE, COLLECTED = "base", "collected"  # reserved: a row of the table and a folder, so no recipe's names
RESERVED_KEYS = ("run.dir", "run.seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One recipe of the comparison. `config` includes the settings from the command line."""

    name: str
    recipe: str
    config: Config

    @property
    def needs_collection(self) -> bool:
        return self.config.train.method != "online" and not self.config.offline.source


def load_methods(recipes: Sequence[str], settings: Sequence[str]) -> list[Method]:
    check_names({recipe: method_name(recipe) for recipe in recipes}, recipes)
    methods = [
        Method(name=method_name(recipe), recipe=recipe, config=load_config(recipe, settings))
        for recipe in recipes
    ]
    for key in RESERVED_KEYS:
        if any(word.partition("=")[0] == f"--{key}" for word in settings):
            raise UserError(f"--{key}: a comparison sets it for each run: use --out and --seeds instead")
    return methods


def check_names(names: Mapping[str, str], words: Sequence[str]) -> None:
    """Raise UserError if two words of the command line have the same name, or one has a reserved name."""
    owners: dict[str, str] = {}
    for word in words:
        name = names[word]
        if name in (BASE, COLLECTED):
            raise UserError(f"{word}: the name {name!r} is reserved in a comparison: rename it")
        if name in owners:
            raise UserError(
                f"{word}: {owners[name]} has the name {name!r} too: rename one of them, or give a run folder "
                "another name with NAME=FOLDER"
            )
        owners[name] = word


def method_name(recipe: str) -> str:
    """Name of a recipe's row and folder: paper/grpo -> paper-grpo, my/recipe.toml -> recipe"""
    path = Path(recipe)
    return path.stem if path.is_file() or path.suffix == ".toml" else recipe.replace("/", "-")


def choose_baseline(against: str | None, names: Sequence[str]) -> str:
    """Name of the baseline: `against`, or the first name if it is None."""
    baseline = names[0] if against is None else against if against in names else method_name(against)
    if baseline not in names:
        raise UserError(f"--against {against}: not part of this comparison{nearest(baseline, names)}")
    return baseline


def make_jobs(
    methods: Sequence[Method], seeds: int, out: Path, settings: Sequence[str], threads: int
) -> list[Job]:
    """Jobs of all runs, seed by seed: an early report covers every method. 0 threads: as in the recipes."""
    offline = [method for method in methods if method.needs_collection]
    for method in offline[1:]:
        _check_same_collection(offline[0], method)
    jobs = []
    for seed in range(seeds):
        source = out / COLLECTED / f"seed-{seed}"
        if offline:
            jobs.append(_make_job("collect", offline[0], COLLECTED, seed, source, settings, threads))
        for method in methods:
            folder = out / method.name / f"seed-{seed}"
            own = [*settings, *(["--offline.source", str(source)] if method in offline else [])]
            job = _make_job("train", method, method.name, seed, folder, own, threads)
            jobs.append(replace(job, waits_for=job_title(COLLECTED, seed) if method in offline else ""))
    return jobs


def job_title(name: str, seed: int) -> str:
    return f"{name}, seed {seed}"


def _make_job(
    command: str, method: Method, name: str, seed: int, folder: Path, settings: Sequence[str], threads: int
) -> Job:
    own = [*settings, "--run.dir", str(folder), "--run.seed", str(seed)]
    if threads and not method.config.run.threads:
        own += ["--run.threads", str(threads)]
    return Job(
        title=job_title(name, seed),
        command=command,
        recipe=method.recipe,
        settings=tuple(own),
        config=load_config(method.recipe, own),
    )


def _check_same_collection(one: Method, other: Method) -> None:
    """All offline methods learn from one collection, so settings that affect its episodes must agree."""
    differing = [key for key in changed(one.config, other.config) if affects_episodes(key)]
    if differing:
        raise UserError(
            f"{other.recipe}: {', '.join(differing)} differs from {one.recipe}, but both learn from the same "
            "collected episodes: use equal values, or set offline.source in each recipe"
        )


def planned_episodes(config: Config) -> int:
    """Number of training episodes of a run. Raises UserError if a task list cannot be loaded."""
    return config.planned_tasks(len(load_sets(config)["train"])) * config.rollout.group_size


def run_comparison(
    words: Sequence[str],
    seeds: int | None,
    jobs_at_once: int,
    out: Path,
    against: str | None,
    settings: Sequence[str],
) -> int:
    """Train the recipes among `words`; the others are finished runs. Prints first how the settings differ.

    Returns the exit code of `arpo compare`: 0 all finished, 1 a run failed, 130 interrupted.
    """
    recipes, groups = split_words(words)
    if recipes and seeds is None:
        raise UserError(f"compare needs --seeds N to train {recipes[0]} (see: arpo compare --help)")
    if settings and not recipes:
        raise UserError(f"{settings[0].partition('=')[0]}: nothing is trained: remove it")
    names = method_names(words, groups)
    check_names(names, words)
    methods = load_methods(recipes, settings)
    baseline = choose_baseline(against, [*names.values(), BASE])  # fail before the runs start
    threads = max(1, _available_cores() // jobs_at_once) if jobs_at_once > 1 else 0
    jobs = make_jobs(methods, seeds or 0, out, settings, threads)
    planned = {job.title: planned_episodes(job.config) for job in jobs if job.plays_training_episodes}
    lock_fd = lock_folder(out, "comparison", "--out")
    display = open_display(sys.stdout)
    try:
        configs = {method.name: method.config for method in methods}
        configs |= {group.name: group.config for group in groups.values()}
        ordered = {name: configs[name] for name in names.values()}
        reference = baseline if baseline in ordered else next(iter(ordered))
        for line in describe_differences(ordered, reference, {one.name: one.recipe for one in methods}):
            display.note(line)
        return _run_jobs(jobs, JobRunner(jobs_at_once, planned, display), display) if jobs else 0
    finally:
        display.close()
        os.close(lock_fd)


def _run_jobs(jobs: Sequence[Job], runner: JobRunner, display: Display) -> int:
    left = asyncio.run(runner.run_all(jobs))
    if runner.stopping and left:
        display.note(f"{len(left)} of {len(jobs)} runs are unfinished: run the same command to resume")
        return INTERRUPTED
    if left:
        display.note(f"{len(left)} of {len(jobs)} runs failed: run the same command to retry them")
    return 1 if left else 0


def method_names(words: Sequence[str], groups: Mapping[str, RunGroup]) -> dict[str, str]:
    """Names in the table by word of the command line."""
    return {word: groups[word].name if word in groups else method_name(word) for word in words}


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
