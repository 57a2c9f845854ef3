"""Runs the jobs of a comparison: `arpo` processes, several at once, each with its own folder.

This module starts processes and waits for them. A finished run is not started again; an unfinished run
resumes from its last checkpoint. A failed run does not stop the others. All runs end with this process, even
if it is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.comparison.settings import NEUTRAL_KEYS
from arpo.config import LEARNING, Config
from arpo.config.recipe import changed, load_recorded
from arpo.errors import UserError
from arpo.models.hub import with_recorded_model
from arpo.processes.child import Child, read_tail
from arpo.reporting.display import Display, format_duration, format_seconds
from arpo.storage.run_folder import METRICS, RECIPE, SUMMARY, TIMING, read_json, read_log, write_atomically

POLL_SECONDS = 1.0  # interval of the progress bar
EXIT_SECONDS = 0.1  # interval of the checks for ended processes


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


def is_finished(job: Job) -> bool:
    """Whether the job has a result. Raises UserError if the result is of a run with other settings."""
    if not job.result_path.is_file() or not read_json(job.result_path).get("ended", True):
        return False
    recorded, _ = load_recorded(job.folder / RECIPE)
    differing = changed(recorded, with_recorded_model(job.config, recorded))
    if job.collects:
        differing = [key for key in differing if affects_episodes(key)]
    else:
        differing = [key for key in differing if not key.startswith(NEUTRAL_KEYS)]
    if differing:
        raise UserError(
            f"{job.folder}: this finished run has another {', '.join(differing)}: choose another --out, or "
            "remove the folder"
        )
    return True


def affects_episodes(key: str) -> bool:
    return key in ("train.epochs", "train.tasks") or not key.startswith((*NEUTRAL_KEYS, *LEARNING))


class JobRunner:
    """Runs jobs as processes, several at once, and forwards Ctrl-C to them."""

    def __init__(self, jobs_at_once: int, planned: Mapping[str, int], display: Display) -> None:
        self.stopping = False
        self._display = display
        self._jobs_at_once = jobs_at_once
        self._children: dict[str, Child] = {}
        self._running: list[Job] = []
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
        self._children[job.title] = child
        self._running.append(job)
        if self.stopping:
            child.process.send_signal(signal.SIGINT)
        try:
            while (code := child.process.poll()) is None:  # noqa: ASYNC110  (another process)
                await asyncio.sleep(EXIT_SECONDS)
            return code
        finally:
            child.end()
            del self._children[job.title]
            self._running.remove(job)

    def _stop(self) -> None:
        if not self.stopping:
            self._display.note(
                f"interrupted: the runs finish their batch and save ({self._longest_batch()}); press Ctrl-C "
                "again to stop them now"
            )
        self.stopping = True
        for child in self._children.values():
            child.process.send_signal(signal.SIGINT)

    def _longest_batch(self) -> str:
        """An upper bound of the time to wait: the longest last batch of the running jobs."""
        seconds = [seconds for job in self._running if (seconds := _batch_seconds(job.folder))]
        return f"at most about {format_seconds(max(seconds))}" if seconds else "duration unknown"

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
    """Episodes in the last complete line of metrics.jsonl; 0 if it cannot be read."""
    return int(_last_record(folder / METRICS).get("episodes", 0))


def _batch_seconds(folder: Path) -> float:
    """Duration of the last batch of a run without its evaluation; 0 if it is unknown."""
    last = _last_record(folder / TIMING)
    return float(sum(last.get(stage) or 0.0 for stage in ("rollout", "wait", "judge", "learn", "save")))


def _last_record(path: Path) -> dict[str, Any]:
    """The last complete line of the .jsonl file of a running run; {} if it cannot be read."""
    with suppress(OSError, ValueError):
        lines = path.read_bytes().split(b"\n")[:-1]
        return dict(json.loads(lines[-1])) if lines else {}
    return {}


def _outcome(job: Job) -> str:
    """Success rates and duration of a finished job: ", train 61.3%, heldout 47.0%, 4:30"."""
    summary = read_json(job.result_path)
    final = summary.get("success", {}).get("final", {})
    rates = [f", {task_set} {rate:.1%}" for task_set, rate in final.items() if rate is not None]
    seconds = collection_seconds(job.folder) if job.collects else summary["seconds"]
    return "".join(rates) + f", {format_duration(seconds)}"


def collection_seconds(folder: Path) -> float:
    return sum(line.get("rollout", 0.0) for line in read_log(folder, TIMING))
