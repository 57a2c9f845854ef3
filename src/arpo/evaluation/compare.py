"""Recipes over seeds: every run a process and a folder of its own, as if it had been typed by hand.

    OUT/NAME/seed-0/       what `arpo train` leaves; what it said is in seed-0.log beside it
    OUT/collected/seed-0/  the base model's episodes, for methods that learn from stored ones; seed-0.json
                           beside it says whether all are there

Nothing is trained or counted here: this starts processes, several at once, and waits for them. A run that has
its summary is not started again; any other goes on from its last checkpoint. One that fails does not hold up
the others, and all end with this process, however it ends. What came out is read by `viewer/comparison.py`.
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
from arpo.recipe import changed, load_config, nearest
from arpo.reporting.display import Display, format_duration, open_display
from arpo.storage.run_folder import (
    METRICS,
    RECIPE,
    SUMMARY,
    TIMING,
    lock,
    read_json,
    read_lines,
    write_atomically,
)

BASE, COLLECTED = "base", "collected"  # a row of the table and a folder: no recipe's names
OURS = ("run.dir", "run.seed")
MAY_DIFFER = (*INCIDENTAL, "run.", "optim.tokens_per_microbatch")  # no more than rounding depends on these
LOOK_AGAIN = 1.0  # seconds between two looks at how far the runs are
PR_SET_PDEATHSIG = 1  # of prctl: the signal that a process gets when its parent ends
LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One recipe of the comparison, with the settings that are given for all."""

    name: str
    recipe: str
    config: Config

    @property
    def needs_episodes(self) -> bool:
        return self.config.train.method != "online" and not self.config.offline.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process: a run, or a collection of episodes that runs of the same seed wait for."""

    title: str
    command: str
    recipe: str
    settings: tuple[str, ...]
    config: Config  # what recipe and settings come to
    waits_for: str = ""  # the title of another

    @property
    def folder(self) -> Path:
        return Path(self.config.run.dir)

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def collects(self) -> bool:
        return self.command == "collect"

    @property
    def result(self) -> Path:
        """The file that tells how it ended; of a collection we write it ourselves."""
        return self.folder.with_suffix(".json") if self.collects else self.folder / SUMMARY

    @property
    def plays(self) -> bool:
        """Whether it rolls out episodes to learn from, and not only to be evaluated."""
        return self.collects or self.config.train.method == "online"

    @property
    def words(self) -> list[str]:
        return [sys.executable, "-m", "arpo", self.command, self.recipe, *self.settings]


def methods_of(recipes: Sequence[str], settings: Sequence[str]) -> list[Method]:
    """Each recipe under the name of its row: "paper/grpo" is paper-grpo, a file is called by its stem."""
    methods: dict[str, Method] = {}
    for recipe in recipes:
        name = name_of(recipe)
        if name in (BASE, COLLECTED):
            raise UserError(f"{recipe}: {name!r} is taken in a comparison: give the recipe another name")
        if name in methods:
            raise UserError(f"{recipe}: {methods[name].recipe} is called {name!r} too: rename one of them")
        methods[name] = Method(name=name, recipe=recipe, config=load_config(recipe, settings))
    for key in OURS:
        if any(word.partition("=")[0] == f"--{key}" for word in settings):
            raise UserError(
                f"--{key}: every run of a comparison has its own: leave it out, use --out, --seeds"
            )
    return list(methods.values())


def name_of(recipe: str) -> str:
    path = Path(recipe)
    return path.stem if path.is_file() or path.suffix == ".toml" else recipe.replace("/", "-")


def reference_of(against: str | None, names: Sequence[str]) -> str:
    """The row that the others are measured by: the one that is asked for, else the first."""
    reference = names[0] if against is None else name_of(against)
    if reference not in names:
        raise UserError(f"--against {against}: is not compared here{nearest(reference, names)}")
    return reference


def plan(
    methods: Sequence[Method], seeds: int, out: Path, settings: Sequence[str], threads: int
) -> list[Job]:
    """All runs, seed by seed, so that what is done early is of every method. 0 threads: as recipes say."""
    offline = [method for method in methods if method.needs_episodes]
    for method in offline[1:]:
        _check_shared(offline[0], method)
    jobs = []
    for seed in range(seeds):
        source = out / COLLECTED / f"seed-{seed}"
        if offline:
            jobs.append(_job("collect", offline[0], COLLECTED, seed, source, settings, threads))
        for method in methods:
            folder = out / method.name / f"seed-{seed}"
            own = [*settings, *(["--offline.source", str(source)] if method in offline else [])]
            job = _job("train", method, method.name, seed, folder, own, threads)
            jobs.append(replace(job, waits_for=jobs_title(COLLECTED, seed) if method in offline else ""))
    return jobs


def jobs_title(name: str, seed: int) -> str:
    return f"{name}, seed {seed}"


def _job(
    command: str, method: Method, name: str, seed: int, folder: Path, settings: Sequence[str], threads: int
) -> Job:
    own = [*settings, "--run.dir", str(folder), "--run.seed", str(seed)]
    if threads and not method.config.run.threads:
        own += ["--run.threads", str(threads)]
    return Job(
        title=jobs_title(name, seed),
        command=command,
        recipe=method.recipe,
        settings=tuple(own),
        config=load_config(method.recipe, own),
    )


def _check_shared(one: Method, other: Method) -> None:
    """Episodes are collected once for all methods that learn from stored ones."""
    differing = [key for key in changed(one.config, other.config) if _decides_episodes(key)]
    if differing:
        raise UserError(
            f"{other.recipe}: has another {', '.join(differing)} than {one.recipe}, and both learn from the "
            "same collected episodes: make them agree, or give each its offline.source"
        )


def _decides_episodes(key: str) -> bool:
    return key == "train.epochs" or not key.startswith((*MAY_DIFFER, *LEARNING))


def is_finished(job: Job) -> bool:
    """Whether the run is there with its result. One of other settings is refused: it would be no answer."""
    if not job.result.is_file() or not read_json(job.result).get("ended", True):
        return False
    before = load_config(job.folder / RECIPE)
    others = changed(before, job.config)
    if job.collects:
        others = [key for key in others if _decides_episodes(key)]
    else:
        others = [key for key in others if not key.startswith(MAY_DIFFER)]
    if others:
        raise UserError(
            f"{job.folder}: this run was finished with another {', '.join(others)}: give the comparison an "
            "--out of its own, or remove the folder"
        )
    return True


def budget(config: Config) -> int:
    """The episodes that a run plays while it trains. Refuses task lists that no run could use."""
    from arpo.evaluation.evaluate import load_sets  # loads torch, which a report alone does without

    return config.train.epochs * len(load_sets(config)["train"]) * config.rollout.group_size


class Runner:
    """Carries out jobs, several at once, and passes Ctrl-C on to them."""

    def __init__(self, jobs_at_once: int, budgets: Mapping[str, int], display: Display) -> None:
        self.stopping = False
        self._display = display
        self._at_once = jobs_at_once
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._budgets = budgets  # episodes of each job that plays any
        self._seen: dict[str, int] = {}  # those of them that the bar knows of

    async def carry_out(self, jobs: Sequence[Job]) -> list[str]:
        """The titles of those that are not done in the end."""
        left = [job for job in jobs if not is_finished(job)]
        self._seen = dict(self._budgets) | {job.title: _episodes(job.folder) for job in left if job.plays}
        self._display.begin("comparing", sum(self._budgets.values()), sum(self._seen.values()))
        watch = asyncio.create_task(self._watch(left))
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self._stop)
        try:
            return await self._in_order(left)
        finally:
            watch.cancel()
            for signum in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(signum)

    async def _in_order(self, jobs: Sequence[Job]) -> list[str]:
        """Whenever a place is free, the first job takes it that waits for no other."""
        waiting = {job.title: job for job in jobs}
        running: dict[asyncio.Task[bool], str] = {}
        failed: list[str] = []
        while waiting or running:
            for title, job in list(waiting.items()):
                needed = job.waits_for
                if self.stopping:
                    failed.append(waiting.pop(title).title)
                elif needed in failed:
                    self._display.note(f"{title}: left out, since {needed} failed")
                    failed.append(waiting.pop(title).title)
                elif len(running) < self._at_once and needed not in (*waiting, *running.values()):
                    running[asyncio.create_task(self._run(waiting.pop(title)))] = title
            if running:
                ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    title = running.pop(task)
                    failed += [] if task.result() else [title]
        return failed

    async def _run(self, job: Job) -> bool:
        """Whether it ended well."""
        self._display.note(f"{job.title}: {'goes on' if (job.folder / RECIPE).is_file() else 'begins'}")
        code = await self._process(job)
        if job.collects:
            write_atomically(job.result, json.dumps({"ended": code == 0}) + "\n")
        if code == 0:
            self._advance(job, self._budgets.get(job.title, 0))
            self._display.note(f"{job.title}: done{_found(job)}")
        elif self.stopping:
            self._display.note(f"{job.title}: stopped")
        else:
            self._display.note(f"{job.title}: failed: {last_line(job.log)}; all of it is in {job.log}")
        return code == 0

    async def _process(self, job: Job) -> int:
        """Its exit code. It has a session of its own: Ctrl-C is for us, who pass it on once."""
        with _open_log(job.log) as log:
            process = await asyncio.create_subprocess_exec(
                *job.words,
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
                "stopping: the runs finish their batch and save; Ctrl-C again stops them at once"
            )
        self.stopping = True
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)

    async def _watch(self, jobs: Sequence[Job]) -> None:
        """Move the bar by what the runs have written; goes on until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            for job in jobs:
                self._advance(job, _episodes(job.folder))

    def _advance(self, job: Job, played: int) -> None:
        for _ in range(played - self._seen.get(job.title, played)):
            self._display.episode_done()
            self._seen[job.title] += 1


def _open_log(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}: choose another --out") from None


def _end_with_parent() -> None:
    """In the new process: be killed when this one ends in whatever way, or the run would keep its lock."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _episodes(folder: Path) -> int:
    """How many the run has played, by the last of its metrics; unreadable ones are not the bar's business."""
    with suppress(OSError, ValueError):
        lines = (folder / METRICS).read_bytes().split(b"\n")[:-1]
        return int(json.loads(lines[-1]).get("episodes", 0)) if lines else 0
    return 0


def _found(job: Job) -> str:
    """What a finished run has to say in one line: ", train 61.3%, heldout 47.0%, 4:30"."""
    summary = read_json(job.result)
    final = summary.get("success", {}).get("final", {})
    rates = [f", {which} {rate:.1%}" for which, rate in final.items() if rate is not None]
    seconds = seconds_of_collection(job.folder) if job.collects else summary["seconds"]
    return "".join(rates) + f", {format_duration(seconds)}"


def seconds_of_collection(folder: Path) -> float:
    return sum(line.get("rollout", 0.0) for line in read_lines(folder / TIMING))


def last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def run_comparison(
    recipes: Sequence[str],
    seeds: int,
    jobs_at_once: int,
    out: Path,
    against: str | None,
    settings: Sequence[str],
) -> int:
    """`arpo compare`: carry out what is not done yet; 0 if all is, 1 if something failed, 130 if stopped."""
    threads = max(1, _cores() // jobs_at_once) if jobs_at_once > 1 else 0
    methods = methods_of(recipes, settings)
    reference_of(against, [*(method.name for method in methods), BASE])  # refused now, not after the runs
    jobs = plan(methods, seeds, out, settings, threads)
    budgets = {job.title: budget(job.config) for job in jobs if job.plays}
    claimed = lock(out, "comparison", "--out")
    display = open_display(sys.stdout)
    runner = Runner(jobs_at_once, budgets, display)
    try:
        left = asyncio.run(runner.carry_out(jobs))
        if runner.stopping and left:
            display.note(f"{len(left)} of {len(jobs)} runs are left; the same command goes on")
            return 130
        if left:
            display.note(f"{len(left)} of {len(jobs)} runs failed; the same command tries them again")
        return 1 if left else 0
    finally:
        display.close()
        os.close(claimed)


def _cores() -> int:
    """Those that this process may use, where that can be told."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
