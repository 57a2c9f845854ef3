"""Runs several recipes over several seeds. Each run is an `arpo` process with its own folder.

    OUT/NAME/seed-0/       run folder of `arpo train`; its output is in OUT/NAME/seed-0.log
    OUT/collected/seed-0/  episodes of the base model for offline methods; seed-0.json beside it says whether
                           the collection is complete

This module starts processes and waits for them. `viewer/comparison.py` reads the results. A finished run is
not started again; an unfinished run resumes from its last checkpoint. A failed run does not stop the others.
All runs end with this process, even if it is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from arpo.config import INCIDENTAL, LEARNING, Config
from arpo.errors import UserError
from arpo.evaluation.task_sets import load_sets
from arpo.interrupts import INTERRUPTED
from arpo.models.hub import with_recorded_model
from arpo.recipe import changed, load_config, nearest
from arpo.reporting.display import Display, format_duration, open_display
from arpo.storage.run_folder import (
    METRICS,
    RECIPE,
    SUMMARY,
    TIMING,
    lock_folder,
    read_json,
    read_log,
    write_atomically,
)

BASE, COLLECTED = "base", "collected"  # reserved: a row of the table and a folder, so no recipe's names
RESERVED_KEYS = ("run.dir", "run.seed")
NEUTRAL_KEYS = (*INCIDENTAL, "run.", "optim.tokens_per_microbatch")  # change results by rounding at most
POLL_SECONDS = 1.0  # interval of the progress bar
PR_SET_PDEATHSIG = 1  # prctl option: signal to receive when the parent process ends
LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One recipe of the comparison. `config` includes the settings from the command line."""

    name: str
    recipe: str
    config: Config

    @property
    def needs_collection(self) -> bool:
        return self.config.train.method != "online" and not self.config.offline.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process: a training run, or a collection of episodes for the offline runs of one seed."""

    title: str
    command: str
    recipe: str
    settings: tuple[str, ...]
    config: Config  # recipe with settings applied
    waits_for: str = ""  # title of another job

    @property
    def folder(self) -> Path:
        return Path(self.config.run.dir)

    @property
    def log_path(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def collects(self) -> bool:
        return self.command == "collect"

    @property
    def result_path(self) -> Path:
        """File with the outcome. A run writes its summary; `JobRunner` writes the file of a collection."""
        return self.folder.with_suffix(".json") if self.collects else self.folder / SUMMARY

    @property
    def plays_training_episodes(self) -> bool:
        """False for offline training, which plays episodes in evaluations only."""
        return self.collects or self.config.train.method == "online"

    @property
    def command_line(self) -> list[str]:
        return [sys.executable, "-m", "arpo", self.command, self.recipe, *self.settings]


def load_methods(recipes: Sequence[str], settings: Sequence[str]) -> list[Method]:
    methods: dict[str, Method] = {}
    for recipe in recipes:
        name = method_name(recipe)
        if name in (BASE, COLLECTED):
            raise UserError(f"{recipe}: the name {name!r} is reserved in a comparison: rename the recipe")
        if name in methods:
            raise UserError(f"{recipe}: {methods[name].recipe} has the name {name!r} too: rename one of them")
        methods[name] = Method(name=name, recipe=recipe, config=load_config(recipe, settings))
    for key in RESERVED_KEYS:
        if any(word.partition("=")[0] == f"--{key}" for word in settings):
            raise UserError(f"--{key}: a comparison sets it for each run: use --out and --seeds instead")
    return list(methods.values())


def method_name(recipe: str) -> str:
    """Name of a recipe's row and folder: paper/grpo -> paper-grpo, my/recipe.toml -> recipe"""
    path = Path(recipe)
    return path.stem if path.is_file() or path.suffix == ".toml" else recipe.replace("/", "-")


def choose_baseline(against: str | None, names: Sequence[str]) -> str:
    """Name of the baseline: `against`, or the first name if it is None."""
    baseline = names[0] if against is None else method_name(against)
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
    differing = [key for key in changed(one.config, other.config) if _affects_episodes(key)]
    if differing:
        raise UserError(
            f"{other.recipe}: {', '.join(differing)} differs from {one.recipe}, but both learn from the same "
            "collected episodes: use equal values, or set offline.source in each recipe"
        )


def _affects_episodes(key: str) -> bool:
    return key == "train.epochs" or not key.startswith((*NEUTRAL_KEYS, *LEARNING))


def is_finished(job: Job) -> bool:
    """Whether the job has a result. Raises UserError if the result is of a run with other settings."""
    if not job.result_path.is_file() or not read_json(job.result_path).get("ended", True):
        return False
    recorded = load_config(job.folder / RECIPE)
    differing = changed(recorded, with_recorded_model(job.config, recorded))
    if job.collects:
        differing = [key for key in differing if _affects_episodes(key)]
    else:
        differing = [key for key in differing if not key.startswith(NEUTRAL_KEYS)]
    if differing:
        raise UserError(
            f"{job.folder}: this finished run has another {', '.join(differing)}: choose another --out, or "
            "remove the folder"
        )
    return True


def planned_episodes(config: Config) -> int:
    """Number of training episodes of a run. Raises UserError if a task list cannot be loaded."""
    return config.train.epochs * len(load_sets(config)["train"]) * config.rollout.group_size


class JobRunner:
    """Runs jobs as processes, several at once, and forwards Ctrl-C to them."""

    def __init__(self, jobs_at_once: int, planned: Mapping[str, int], display: Display) -> None:
        self.stopping = False
        self._display = display
        self._jobs_at_once = jobs_at_once
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._planned = planned  # training episodes by job title; offline runs have none
        self._shown: dict[str, int] = {}  # episodes in the progress bar, by job title

    async def run_all(self, jobs: Sequence[Job]) -> list[str]:
        """Run all unfinished jobs. Returns the titles of jobs still unfinished, failed ones included."""
        left = [job for job in jobs if not is_finished(job)]
        played = {job.title: _episodes_played(job.folder) for job in left if job.plays_training_episodes}
        self._shown = dict(self._planned) | played
        self._display.begin("comparing", sum(self._planned.values()), sum(self._shown.values()))
        progress = asyncio.create_task(self._poll_progress(left))
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self._stop)
        try:
            return await self._schedule(left)
        finally:
            progress.cancel()
            for signum in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(signum)

    async def _schedule(self, jobs: Sequence[Job]) -> list[str]:
        """Fill each free process slot with the first job that waits for no other."""
        waiting = {job.title: job for job in jobs}
        running: dict[asyncio.Task[bool], str] = {}
        failed: list[str] = []
        while waiting or running:
            for title, job in list(waiting.items()):
                needed = job.waits_for
                if self.stopping:
                    failed.append(waiting.pop(title).title)
                elif needed in failed:
                    self._display.note(f"{title}: skipped, because {needed} failed")
                    failed.append(waiting.pop(title).title)
                elif len(running) < self._jobs_at_once and needed not in (*waiting, *running.values()):
                    running[asyncio.create_task(self._run_job(waiting.pop(title)))] = title
            if running:
                ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    title = running.pop(task)
                    failed += [] if task.result() else [title]
        return failed

    async def _run_job(self, job: Job) -> bool:
        """Whether the job succeeded."""
        resumed = (job.folder / RECIPE).is_file()
        self._display.note(f"{job.title}: {'resumed' if resumed else 'started'}")
        code = await self._run_process(job)
        if job.collects:
            write_atomically(job.result_path, json.dumps({"ended": code == 0}) + "\n")
        if code == 0:
            self._advance_bar(job, self._planned.get(job.title, 0))
            self._display.note(f"{job.title}: finished{_outcome(job)}")
        elif self.stopping:
            self._display.note(f"{job.title}: interrupted")
        else:
            self._display.note(f"{job.title}: failed: {last_line(job.log_path)}; full log: {job.log_path}")
        return code == 0

    async def _run_process(self, job: Job) -> int:
        """Exit code. The process has its own session, so Ctrl-C reaches it through `_stop` only, once."""
        with _open_log(job.log_path) as log:
            process = await asyncio.create_subprocess_exec(
                *job.command_line,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self._processes[job.title] = process
        if self.stopping:
            process.send_signal(signal.SIGINT)
        try:
            return await process.wait()
        finally:
            del self._processes[job.title]

    def _stop(self) -> None:
        if not self.stopping:
            self._display.note(
                "interrupted: the runs finish their batch and save; press Ctrl-C again to stop them now"
            )
        self.stopping = True
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)

    async def _poll_progress(self, jobs: Sequence[Job]) -> None:
        """Advance the progress bar from the metrics files until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            for job in jobs:
                self._advance_bar(job, _episodes_played(job.folder))

    def _advance_bar(self, job: Job, played: int) -> None:
        for _ in range(played - self._shown.get(job.title, played)):
            self._display.episode_done()
            self._shown[job.title] += 1


def _open_log(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}: choose another --out") from None


def _end_with_parent() -> None:
    """Runs in the child process. If the parent is killed, the child must not keep the lock of its run."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _episodes_played(folder: Path) -> int:
    """Episodes in the last complete line of metrics.jsonl; 0 if it cannot be read."""
    with suppress(OSError, ValueError):
        lines = (folder / METRICS).read_bytes().split(b"\n")[:-1]
        return int(json.loads(lines[-1]).get("episodes", 0)) if lines else 0
    return 0


def _outcome(job: Job) -> str:
    """Success rates and duration of a finished job: ", train 61.3%, heldout 47.0%, 4:30"."""
    summary = read_json(job.result_path)
    final = summary.get("success", {}).get("final", {})
    rates = [f", {task_set} {rate:.1%}" for task_set, rate in final.items() if rate is not None]
    seconds = collection_seconds(job.folder) if job.collects else summary["seconds"]
    return "".join(rates) + f", {format_duration(seconds)}"


def collection_seconds(folder: Path) -> float:
    return sum(line.get("rollout", 0.0) for line in read_log(folder, TIMING))


def last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def run_comparison(
    recipes: Sequence[str],
    seeds: int,
    jobs_at_once: int,
    out: Path,
    against: str | None,
    settings: Sequence[str],
) -> int:
    """Run `arpo compare`. Returns its exit code: 0 all finished, 1 a run failed, 130 interrupted."""
    threads = max(1, _available_cores() // jobs_at_once) if jobs_at_once > 1 else 0
    methods = load_methods(recipes, settings)
    choose_baseline(against, [*(method.name for method in methods), BASE])  # fail before the runs start
    jobs = make_jobs(methods, seeds, out, settings, threads)
    planned = {job.title: planned_episodes(job.config) for job in jobs if job.plays_training_episodes}
    lock_fd = lock_folder(out, "comparison", "--out")
    display = open_display(sys.stdout)
    runner = JobRunner(jobs_at_once, planned, display)
    try:
        left = asyncio.run(runner.run_all(jobs))
        if runner.stopping and left:
            display.note(f"{len(left)} of {len(jobs)} runs are unfinished: run the same command to resume")
            return INTERRUPTED
        if left:
            display.note(f"{len(left)} of {len(jobs)} runs failed: run the same command to retry them")
        return 1 if left else 0
    finally:
        display.close()
        os.close(lock_fd)


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
