"""Trains the recipes of a comparison: `arpo` processes, several at once, each with its own folder.

    OUT/NAME/seed-0/       run folder of `arpo train`; its output is in OUT/NAME/seed-0.log
    OUT/collected/seed-0/  episodes of the base model for offline methods; seed-0.json beside it says whether
                           the collection is complete

A finished run is not started again; an unfinished run resumes from its last checkpoint. A failed run does not
stop the others. All runs end with this process, even if it is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from arpo.comparison.methods import (
    COLLECTED,
    NEUTRAL_KEYS,
    Method,
    choose_baseline,
    collection_seconds,
    describe_differences,
    differing_keys,
    find_methods,
)
from arpo.comparison.results import BASE
from arpo.config import LEARNING, Config
from arpo.config.changes import REMEDIES
from arpo.config.recipe import changed, load_config, load_recorded
from arpo.errors import UserError
from arpo.interrupts import INTERRUPTED
from arpo.models.hub import with_recorded_model
from arpo.processes.child import Child, python_command, read_tail
from arpo.reporting.display import Display, format_duration, open_display
from arpo.storage.run_folder import METRICS, RECIPE, SUMMARY, lock_folder, read_json, write_atomically
from arpo.tasks.sets import load_sets

RESERVED_KEYS = ("run.dir", "run.seed")
POLL_SECONDS = 1.0  # interval of the progress bar
EXIT_SECONDS = 0.1  # interval of the checks for ended processes


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
    methods = find_methods(words)
    recipes = [method for method in methods if not method.runs]
    if recipes and seeds is None:
        raise UserError(f"compare needs --seeds N to train {recipes[0].word} (see: arpo compare --help)")
    if settings and not recipes:
        raise UserError(f"{settings[0].partition('=')[0]}: nothing is trained: remove it")
    configs = {method.name: method.config(settings) for method in methods}
    baseline = choose_baseline(against, [*configs, BASE])  # fail before the runs start
    threads = max(1, _available_cores() // jobs_at_once) if jobs_at_once > 1 else 0
    jobs = make_jobs(recipes, seeds or 0, out, settings, threads)
    planned = {job.title: planned_episodes(job.config) for job in jobs if job.plays_training_episodes}
    lock_fd = lock_folder(out, "comparison", "--out")
    display = open_display(sys.stdout)
    try:
        reference = baseline if baseline in configs else next(iter(configs))
        for line in describe_differences(configs, reference, {one.name: one.word for one in recipes}):
            display.note(line)
        if not jobs:
            return 0
        runner = JobRunner(jobs_at_once, planned, display)
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


def planned_episodes(config: Config) -> int:
    """Number of training episodes of a run. Raises UserError if a task list cannot be loaded."""
    return config.planned_tasks(len(load_sets(config)["train"])) * config.rollout.group_size


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


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
        return python_command("arpo", self.command, self.recipe, *self.settings)


def make_jobs(
    recipes: Sequence[Method], seeds: int, out: Path, settings: Sequence[str], threads: int
) -> list[Job]:
    """Jobs of all runs, seed by seed: an early report covers every method. 0 threads: as in the recipes."""
    for key in RESERVED_KEYS:
        if any(word.partition("=")[0] == f"--{key}" for word in settings):
            raise UserError(f"--{key}: a comparison sets it for each run: use --out and --seeds instead")
    offline = [method for method in recipes if _needs_collection(method.config(settings))]
    for method in offline[1:]:
        _check_same_collection(offline[0], method, settings)

    def make_job(command: str, method: Method, folder: Path, *more: str) -> Job:
        seed = folder.name.removeprefix("seed-")
        own = [*settings, *more, "--run.dir", str(folder), "--run.seed", seed]
        if threads and not method.config(settings).run.threads:
            own += ["--run.threads", str(threads)]
        return Job(
            title=f"{folder.parent.name}, seed {seed}",
            command=command,
            recipe=method.word,
            settings=tuple(own),
            config=load_config(method.word, own),
        )

    jobs = []
    for seed in range(seeds):
        source = out / COLLECTED / f"seed-{seed}"
        if offline:
            jobs.append(make_job("collect", offline[0], source))
        for method in recipes:
            folder = out / method.name / source.name
            if method in offline:
                job = make_job("train", method, folder, "--offline.source", str(source))
                jobs.append(replace(job, waits_for=f"{COLLECTED}, seed {seed}"))
            else:
                jobs.append(make_job("train", method, folder))
    return jobs


def _needs_collection(config: Config) -> bool:
    return config.train.method != "online" and not config.offline.source


def _check_same_collection(one: Method, other: Method, settings: Sequence[str]) -> None:
    """All offline methods learn from one collection, so settings that affect its episodes must agree."""
    differing = [k for k in changed(one.config(settings), other.config(settings)) if affects_episodes(k)]
    if differing:
        raise UserError(
            f"{other.word}: {', '.join(differing)} differs from {one.word}, but both learn from the same "
            "collected episodes: use equal values, or set offline.source in each recipe"
        )


def is_finished(job: Job) -> bool:
    """Whether the job has a result. Raises UserError if the result is of a run with other settings."""
    if not job.result_path.is_file() or not read_json(job.result_path).get("ended", True):
        return False
    recorded, _ = load_recorded(job.folder / RECIPE)
    present = with_recorded_model(job.config, recorded)
    if job.collects:
        differing = [key for key in changed(recorded, present) if affects_episodes(key)]
    else:
        differing = differing_keys(recorded, present)
    if differing := [key for key in differing if key not in REMEDIES]:  # for those that are unfinished
        raise UserError(
            f"{job.folder}: this finished run has another {', '.join(differing)}: choose another --out, or "
            "remove the folder"
        )
    return True


def affects_episodes(key: str) -> bool:
    learning = key in NEUTRAL_KEYS or key.startswith(LEARNING)
    return key in ("train.epochs", "train.tasks") or not learning


class JobRunner:
    """Runs jobs as processes, several at once, and forwards Ctrl-C to them."""

    def __init__(self, jobs_at_once: int, planned: Mapping[str, int], display: Display) -> None:
        self.stopping = False
        self._display = display
        self._jobs_at_once = jobs_at_once
        self._children: list[Child] = []
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
        """Fill each free process slot with the first job ready to run."""
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
            *_, last = "no output", *read_tail(job.log_path)
            self._display.note(f"{job.title}: failed: {last.strip()}; full log: {job.log_path}")
        return code == 0

    async def _run_process(self, job: Job) -> int:
        """Exit code. Ctrl-C reaches the process through `_stop` only, once."""
        try:
            child = Child(job.command_line, env=os.environ, log=job.log_path, guarded=True)
        except OSError as error:
            reason = f"cannot be written: {error.strerror}: choose another --out"
            raise UserError(f"{job.log_path}: {reason}") from None
        self._children.append(child)
        if self.stopping:
            child.process.send_signal(signal.SIGINT)
        try:
            while (code := child.process.poll()) is None:  # noqa: ASYNC110  (another process)
                await asyncio.sleep(EXIT_SECONDS)
            return code
        finally:
            child.end()
            self._children.remove(child)

    def _stop(self) -> None:
        if not self.stopping:
            self._display.note(
                "interrupted: the runs finish their batch and save; press Ctrl-C again to stop them now"
            )
        self.stopping = True
        for child in self._children:
            child.process.send_signal(signal.SIGINT)

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


def _episodes_played(folder: Path) -> int:
    """Episodes in the last complete line of metrics.jsonl of a running run; 0 if it cannot be read."""
    with suppress(OSError, ValueError, IndexError):
        return int(json.loads((folder / METRICS).read_bytes().split(b"\n")[-2]).get("episodes", 0))
    return 0


def _outcome(job: Job) -> str:
    """Success rates and duration of a finished job: ", train 61.3%, heldout 47.0%, 4:30"."""
    summary = read_json(job.result_path)
    final = summary.get("success", {}).get("final", {})
    rates = [f", {task_set} {rate:.1%}" for task_set, rate in final.items() if rate is not None]
    seconds = collection_seconds(job.folder) if job.collects else summary["seconds"]
    return "".join(rates) + f", {format_duration(seconds)}"
