"""A run or a collection: its logs, index, screenshots, recipe and tasks."""

from __future__ import annotations

import os
import re
import time
from dataclasses import asdict
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from arpo.config import Config
from arpo.config.changes import Change
from arpo.config.recipe import parse_recorded
from arpo.errors import UserError
from arpo.evaluation.scoring import change_intervals, over_same_tasks, read_scores
from arpo.reporting.gap import Gap
from arpo.storage.codec import check_evaluation, check_numbers, check_summary, parse_changes
from arpo.storage.files import damage
from arpo.storage.from_json import from_json
from arpo.storage.judgements import read_vote
from arpo.storage.run_folder import (
    CHANGES,
    EVALUATIONS,
    FORMAT_FILE,
    GAP,
    JUDGEMENTS,
    LOGS,
    METRICS,
    PACK,
    RECIPE,
    SUMMARY,
    TIMING,
    TRAJECTORIES,
)
from arpo.viewer.files import Log, SafeFolder
from arpo.viewer.index import Outdated, as_number, read_indexed, storable
from arpo.viewer.pictures import PackReader, Picture, PixelCache
from arpo.viewer.run_index import RunIndexer
from arpo.viewer.source import Identity, Json, Source
from arpo.viewer.steps import MAX_STEPS, answer_text, run_steps
from arpo.viewer.task_texts import TaskTexts

MODEL = "model"  # folder of the trained model in a run
BASE = "base"  # name of the shipped model in model.path
TOKENIZER = "tokenizer.json"
MAX_TOKENIZER_BYTES = 64 << 20


class RunSource(Source):
    """`identity.kind` is run; or collected or played: a run folder without training."""

    def __init__(self, identity: Identity, folder: SafeFolder, cache: PixelCache) -> None:
        super().__init__(identity, folder, cache)
        self.opened = time.time_ns()
        self._indexed = ""  # state of the files before the last refresh
        self._recipe_read = self._recipe_state()
        self.recipe_error = ""
        try:
            self.config, self.recipe_text = read_recipe(folder)
        except UserError as error:
            self.config, self.recipe_text, self.recipe_error = Config(), "", str(error)
        self.changes = _read_changes(folder)  # a resumed run writes its recipe after them
        self.threshold = self.config.replay.threshold
        self.metrics = Log(folder, METRICS, check_numbers)
        self.timing = Log(folder, TIMING, check_numbers)
        self._evaluations = Log(folder, EVALUATIONS, check_evaluation)
        self.judgements = Log(folder, JUDGEMENTS, read_vote)
        self.summary: Json = {}  # until the run has ended
        self.texts = TaskTexts(self.config, folder)
        self._pack = PackReader(folder, self.index, cache)
        self._indexer = RunIndexer(folder, self.index)
        self._read_logs()

    def is_outdated(self) -> bool:
        return self._recipe_state() != self._recipe_read

    def _recipe_state(self) -> tuple[int, int] | None:
        state = self.folder.stat(RECIPE)
        return (state.st_ino, state.st_mtime_ns) if state else None

    def _read_logs(self) -> None:
        """Read new lines of the small files. The first page needs no more."""
        for log in (self.metrics, self.timing, self._evaluations, self.judgements):
            log.poll()
        try:
            summary = self.folder.read_json(SUMMARY)
            with damage(self.folder.path(SUMMARY)):
                check_summary(summary or {})
            self.summary = summary or {}
        except UserError:
            self.summary = {}

    def evaluations(self) -> list[Json]:
        return self._evaluations.rows

    def _refresh(self, deadline: float) -> bool:
        found = self._file_states()
        self._read_logs()
        now = time.monotonic()
        episodes = self._indexer.refresh(now + (deadline - now) / 2)
        complete = self._pack.refresh(deadline) and episodes
        self._indexed = found
        if complete:
            self.texts.load()  # before the first page needs them
        return complete

    def records_groups(self) -> bool:
        """False for a run of an earlier version."""
        return self.folder.stat(FORMAT_FILE) is not None

    def stamp(self) -> str:
        return self._indexed  # not the present state: the pages cannot show it yet

    def _file_states(self) -> str:
        states = [self.folder.stat(name) for name in (*LOGS, PACK, SUMMARY, JUDGEMENTS)]
        return " ".join(f"{state.st_size}/{state.st_mtime_ns}" if state else "-" for state in states)

    def facts(self) -> Json:
        logs = (self.metrics, self.timing, self._evaluations, self.judgements)
        return {
            "subtitle": self._subtitle(),
            "live": self.identity.kind in ("run", "played") and not self.summary and self._is_locked(),
            "finished": bool(self.summary),
            "seed": self.config.run.seed if self.identity.seed is None else self.identity.seed,
            "batches": max((row["step"] for row in self.metrics.rows), default=0),
            "success": self._success(),
            "share": self._indexer.share,
            "errors": [text for text in (self.recipe_error,) if text]
            + [text for log in logs for text in log.problems]
            + list(self._indexer.errors.values()),
        }

    def is_partial(self) -> bool:
        """Whether the only episode of the folder has no end yet."""
        return self.identity.kind == "played" and not self.summary

    def _subtitle(self) -> str:
        config = self.config
        online = "GRPO with replay" if config.replay.enabled else "GRPO without replay"
        method = online if config.train.method == "online" else config.train.method.upper()
        method = {"collected": "collected episodes", "played": "played episode"}.get(
            self.identity.kind, method
        )
        return f"{method}, {config.tasks.train}, model {config.model.path}, seed {config.run.seed}"

    def _is_locked(self) -> bool:
        """Whether a process writes this run: it has locked the file .lock. Takes no lock itself."""
        state = self.folder.stat(".lock")
        if state is None:
            return False
        device = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}"
        try:
            locks = Path("/proc/locks").read_text("ascii")
        except (OSError, ValueError):
            return True
        return f"{device}:{state.st_ino} " in locks

    def _success(self) -> Json:
        """Success rates by task set in the first and in the newest evaluation; intervals of the change."""
        rows = self._evaluations.rows
        found = {"base": read_scores(rows[0])} if rows else {}
        intervals = {}
        if len(rows) > 1:
            found["base"], found["final"] = over_same_tasks(found["base"], read_scores(rows[-1]))
            intervals = change_intervals(found["base"], found["final"])
        rates = {
            when: {name: as_number(score.rate) for name, score in scores.items()}
            for when, scores in found.items()
        }
        return {**rates, "intervals": intervals} if rates else {}

    def gap(self) -> Json | None:
        """What `arpo doctor --gap RUN` found. None if it was not called, or its file is damaged."""
        try:
            if (read := self.folder.read_json(GAP)) is None:
                return None
            with damage(self.folder.path(GAP)):
                gap = from_json(read, Gap)
        except UserError:
            return None
        return {**asdict(gap), "conclusion": gap.conclusion}

    def instruction(self, task: str) -> str:
        return self.texts.instruction(task)

    def kinds(self, task: str) -> tuple[str, ...]:
        return self.texts.kinds(task)

    def steps(self, episode: str) -> tuple[list[Json], Json | None]:
        record = self.record(episode)
        return run_steps(record, self.shot), self.shot(str(record.get("final")))

    def answers(self, episode: str) -> list[str]:
        return [answer_text(turn) for turn in self.record(episode)["turns"][:MAX_STEPS]]

    def record(self, episode: str) -> Json:
        """The line of trajectories.jsonl of an indexed episode."""

        def fits(record: Json) -> bool:
            same = storable(str(record.get("episode_id"))) == episode
            return same and isinstance(record.get("turns"), list)

        row = self.index.row("SELECT at, size FROM episodes WHERE id = ?", (episode,))
        if row is None:
            raise Outdated(f"{episode!r}: no such episode, or it is not indexed yet")
        return read_indexed(self.folder, self.index, TRAJECTORIES, row, fits)

    def size(self, shot: str) -> tuple[int, int]:
        return self._pack.size(_checked_sha256(shot))

    def picture(self, shot: str) -> Picture:
        return self._pack.picture(_checked_sha256(shot))

    def pixels(self, shot: str) -> np.ndarray:
        return self._pack.pixels(_checked_sha256(shot))

    @cached_property
    def tokenizer(self) -> Any | None:
        """The tokenizer of the trained model, or of the model of the recipe. None without a readable one."""
        shipped = Path(str(files("arpo"))) / "envs" / "desk" / "base_model" / "weights"
        named = shipped if self.config.model.path == BASE else Path(self.config.model.path)
        return load_tokenizer(self.folder.root / MODEL) or load_tokenizer(named)


def _read_changes(folder: SafeFolder) -> tuple[Change, ...]:
    """The settings that were changed on resume. None if the file is damaged."""
    try:
        found = folder.read_json(CHANGES) or {}
        with damage(folder.path(CHANGES)):
            return parse_changes(found)
    except UserError:
        return ()


def read_recipe(folder: SafeFolder) -> tuple[Config, str]:
    """The settings and the text of recipe.toml. Keys and values of other versions are left out.

    Follows no path in a recipe. Raises UserError if there is no readable recipe.
    """
    try:
        text = folder.read(RECIPE).decode("utf-8", "replace")
        return parse_recorded(text)[0], text
    except UserError as error:
        raise UserError(f"{folder.path(RECIPE)}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder.path(RECIPE)}: cannot be read as TOML: {error}") from None


def load_tokenizer(folder: Path) -> Any | None:
    """The tokenizer in a folder of a model. No network, and no code of the model."""
    import tokenizers

    try:
        content = SafeFolder(folder).read(TOKENIZER, MAX_TOKENIZER_BYTES)
    except (OSError, RuntimeError, UserError):  # RuntimeError: a link to itself
        return None
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except BaseException as error:  # a panic of the library is a BaseException
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return None


def _checked_sha256(name: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", name):
        raise UserError("a screenshot is named by 64 hexadecimal digits")
    return name
