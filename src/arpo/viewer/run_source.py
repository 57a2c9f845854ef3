"""A run or a collection in the browser: its logs, groups, episodes, tokens, tasks and recipe."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from arpo.comparison.results import RunResult, run_result
from arpo.config import Config
from arpo.errors import UserError
from arpo.storage.codec import EVALUATED, check_evaluation, check_numbers, check_summary
from arpo.storage.files import damage
from arpo.storage.run_folder import (
    EVALUATIONS,
    FORMAT_FILE,
    LOGS,
    METRICS,
    PACK,
    RECIPE,
    SUMMARY,
    TIMING,
    TRAJECTORIES,
)
from arpo.tasks.screened import Count
from arpo.viewer.files import Log, SafeFolder
from arpo.viewer.index import as_number, read_indexed, storable
from arpo.viewer.outcomes import describe_end
from arpo.viewer.pages.call_times import CallTimes
from arpo.viewer.pages.episodes import COLUMNS, Listing, find_episode, phase_of, replayed_in, row_json
from arpo.viewer.pages.groups import GroupReader
from arpo.viewer.pages.recipe import read_recipe, recipe_json
from arpo.viewer.pages.report import RunFacts, explain_metrics, report_json
from arpo.viewer.pages.steps import run_steps, token_rows
from arpo.viewer.pages.tasks import LABELS, Evaluation, mean, read_evaluation, task_rows
from arpo.viewer.pages.token_values import TokenValues
from arpo.viewer.pages.tokens import load_tokenizer, token_texts
from arpo.viewer.pictures import PackReader, Picture, PixelCache
from arpo.viewer.played import Played, stored_of
from arpo.viewer.run_index import RunIndexer
from arpo.viewer.source import NOT_STORED, Identity, Json, Source, checked_sha256
from arpo.viewer.task_texts import TaskTexts
from arpo.viewer.timeline import ENVIRONMENTS, LANES, STAGES

MODEL = "model"  # folder of the trained model in a run
BASE = "base"  # name of the shipped model in model.path


class RunSource(Source):
    """`identity.kind` is run, or collected: a run folder without training."""

    def __init__(self, identity: Identity, folder: SafeFolder, cache: PixelCache) -> None:
        super().__init__(identity, folder, cache)
        self._config_error, self._opened = "", time.time_ns()
        self._indexed = ""  # state of the files before the last refresh
        self._recipe_read = self._recipe_state()
        try:
            self.config, self.recipe_text = read_recipe(folder)
        except UserError as error:
            self.config, self.recipe_text, self._config_error = Config(), "", str(error)
        self._metrics = Log(folder, METRICS, check_numbers)
        self._timing = Log(folder, TIMING, check_numbers)
        self._evaluations = Log(folder, EVALUATIONS, check_evaluation)
        self._summary: Json = {}
        self._pack = PackReader(folder, self.index, cache)
        self._indexer = RunIndexer(folder, self.index)
        self._call_times = CallTimes(folder, self.index)
        self._token_values = TokenValues(folder, self.index)
        self._texts = TaskTexts(self.config, folder)
        self.listing = Listing(
            index=self.index,
            threshold=self.config.replay.threshold,
            instruction=self._texts.instruction,
            text_of=self._text_of,
        )
        self._groups = GroupReader(
            config=self.config, index=self.index, listing=self.listing, recorded=self._records_groups
        )

    def is_outdated(self) -> bool:
        return self._recipe_state() != self._recipe_read

    def _recipe_state(self) -> tuple[int, int] | None:
        state = self.folder.stat(RECIPE)
        return (state.st_ino, state.st_mtime_ns) if state else None

    def read_logs(self) -> None:
        """Read new lines of the small files. The first page needs no more."""
        for log in (self._metrics, self._timing, self._evaluations):
            log.poll()
        try:
            summary = self.folder.read_json(SUMMARY)
            with damage(self.folder.path(SUMMARY)):
                check_summary(summary or {})
            self._summary = summary or {}
        except UserError:
            self._summary = {}

    def _refresh(self, deadline: float) -> bool:
        found = self._file_states()
        self.read_logs()
        now = time.monotonic()
        episodes = self._indexer.refresh(now + (deadline - now) / 2)
        complete = self._pack.refresh(deadline) and episodes
        self._indexed = found
        return complete

    def _records_groups(self) -> bool:
        """False for a run of an earlier version."""
        return self.folder.stat(FORMAT_FILE) is not None

    def stamp(self) -> str:
        return self._indexed  # not the present state: the pages cannot show it yet

    def _file_states(self) -> str:
        states = [self.folder.stat(name) for name in (*LOGS, PACK, SUMMARY)]
        return " ".join(f"{state.st_size}/{state.st_mtime_ns}" if state else "-" for state in states)

    def facts(self) -> Json:
        logs = (self._metrics, self._timing, self._evaluations)
        steps = [row["step"] for row in self._metrics.rows]
        return {
            "subtitle": self._subtitle(),
            "live": self.identity.kind == "run" and not self._summary and self._is_locked(),
            "finished": bool(self._summary),
            "seed": self.config.run.seed if self.identity.seed is None else self.identity.seed,
            "batches": max(steps, default=0),
            "success": self._success(),
            "share": self._indexer.share,
            "errors": [text for text in (self._config_error,) if text]
            + [text for log in logs for text in log.problems]
            + list(self._indexer.errors.values()),
        }

    def _subtitle(self) -> str:
        config = self.config
        online = "GRPO with replay" if config.replay.enabled else "GRPO without replay"
        method = online if config.train.method == "online" else config.train.method.upper()
        if self.identity.kind == "collected":
            method = "collected episodes"
        return f"{method}, {config.tasks.train}, model {config.model.path}, seed {config.run.seed}"

    def _is_locked(self) -> bool:
        """Whether a process writes this run: it has locked the file .lock. Takes no lock itself."""
        state = self.folder.stat(".lock")
        if state is None:
            return False
        held = f":{state.st_ino} "
        device = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}"
        try:
            locks = Path("/proc/locks").read_text("ascii")
        except (OSError, ValueError):
            return True
        return f"{device}{held}" in locks

    def _success(self) -> Json:
        found = self._read_evaluations()
        if not found:
            return {}
        rates = {"base": _rates(found[0])}
        return rates | ({"final": _rates(found[-1])} if len(found) > 1 else {})

    def metrics(self, start: int) -> Json:
        rows = self._metrics.rows
        explained = explain_metrics(dict.fromkeys(name for row in rows for name in row), self.config)
        generation = f"{self._opened}-{self._metrics.generation}"  # if it changes, so may the earlier rows
        return {**_from(rows, start), "generation": generation, "explained": explained}

    def timeline(self, start: int) -> Json:
        return {**_from(self._timing.rows, start), "environments": dict(ENVIRONMENTS), "stages": dict(STAGES)}

    def recipe(self) -> Json:
        if self._config_error:
            raise UserError(self._config_error)
        return recipe_json(self.config, self.recipe_text)

    def result(self, collection_seconds: float) -> RunResult:
        """This run in a comparison. `collection_seconds`: duration of the collection of its episodes."""
        assert self.identity.method is not None and self.identity.seed is not None
        return run_result(
            self.identity.method,
            self.identity.seed,
            self.config,
            summary=self._summary,
            metrics=self._metrics.rows,
            timing=self._timing.rows,
            evaluations=self._evaluations.rows,
            collection_seconds=collection_seconds if self.config.train.method != "online" else 0.0,
        )

    def rollout_seconds(self) -> float:
        return sum(row.get("rollout", 0.0) for row in self._timing.rows)

    def screening_counts(self) -> dict[str, Count]:
        return self._texts.screening_counts()

    def report(self, episodes: str = "") -> Json:
        """The page "Report". `episodes`: as of `arpo report --episodes`."""
        rows = self.index.rows(f"SELECT {COLUMNS} FROM episodes ORDER BY n")
        facts = RunFacts(
            config=self.config,
            folder=self.identity.shown,
            metrics=self._metrics.rows,
            summary=self._summary,
            evaluations=self._read_evaluations(),
            played=[self._played(row) for row in rows],
            instruction=self._texts.instruction,
            is_infeasible=self._texts.is_infeasible,
            answers=lambda name: self._answers(find_episode(self.index, name)),
        )
        return report_json(facts, episodes)

    def _read_evaluations(self) -> list[Evaluation]:
        return [read_evaluation(row) for row in self._evaluations.rows]

    def _played(self, row: sqlite3.Row) -> Played:
        return Played(
            stored=stored_of(row),
            solved=row["score"] >= self.listing.threshold,
            shown=bool(row["shown"]),
            replayed_in=tuple(replayed_in(row)),
            trained_in=None if row["batch"] is None else row["batch"] - 1,
        )

    def batches(self) -> Json:
        return {"batches": self._groups.batches(self._metrics.rows), "complete": self.complete}

    def batch(self, number: int) -> Json:
        rows = reversed(self._metrics.rows)
        metrics: Json = next((row for row in rows if row["step"] == number), {})
        return {**self._groups.batch(number), "metrics": metrics}

    def group(self, name: str) -> Json:
        group = self._groups.group(name)
        dots = group.pop("dots")
        if not dots:
            raise UserError(f"{name!r}: no such group, or it is not indexed yet")
        return {**group, **self._groups.neighbours(name), "members": [self._member(dot) for dot in dots]}

    def _member(self, dot: Json) -> Json:
        steps = [] if dot["kind"] == "error" else self._steps(find_episode(self.index, dot["episode"]))
        replaced = self._groups.replaced_dot(dot["replaced"]) if dot["replaced"] else None
        return {**dot, "steps_list": steps, "replaced_dot": replaced}

    def episode_details(self, row: sqlite3.Row) -> Json:
        record = self._record(row)
        end, detail = describe_end(
            stored_of(row),
            solved=row["score"] >= self.listing.threshold,
            infeasible=self._texts.is_infeasible(row["task"]),
            limits=self.config.rollout,
        )
        return {
            **self._groups.episode_credit(row),
            "end": end,
            "end_detail": detail,
            "task_set": self._task_sets().get(row["task"]),
            "final": self._shot(str(record.get("final"))),
            **self._call_times.with_times(row["id"], run_steps(record, self._shot)),
        }

    def _steps(self, row: sqlite3.Row) -> list[Json]:
        return run_steps(self._record(row), self._shot)

    def _record(self, row: sqlite3.Row) -> Json:

        def fits(record: Json) -> bool:
            same = storable(str(record.get("episode_id"))) == row["id"]
            return same and isinstance(record.get("turns"), list)

        return read_indexed(self.folder, self.index, TRAJECTORIES, row, fits)

    def _text_of(self, row: sqlite3.Row) -> str:
        return "\n".join(self._answers(row))

    def _answers(self, row: sqlite3.Row) -> list[str]:
        return [step["answer"] for step in run_steps(self._record(row), lambda _: {})]

    def _shot(self, name: str) -> Json:
        shot: Json = {"shot": name, "width": None, "height": None, "url": None, "error": ""}
        try:
            shot["width"], shot["height"] = self._pack.size(checked_sha256(name))
        except (OSError, UserError) as error:
            return {**shot, "error": str(error)}
        return {**shot, "url": shot_url(self.identity.id, name)}

    def picture(self, shot: str) -> Picture:
        return self._pack.picture(checked_sha256(shot))

    def pixels(self, shot: str) -> np.ndarray:
        return self._pack.pixels(checked_sha256(shot))

    def lanes(self, batch: int | None) -> Json:
        return {**self._call_times.lanes(batch), "labels": LANES, "stages": dict(STAGES)}

    def tokens(self, name: str, step: int, trained: int | None = None) -> Json:
        turns = self._record(find_episode(self.index, name))["turns"]
        if not 1 <= step <= len(turns):
            raise UserError(f"step {step}: the episode has {len(turns)} steps")
        with damage(f"{name}: step {step}"):
            rows = token_rows(turns[step - 1]["completion"])
        if self._tokenizer is not None:
            texts = token_texts(self._tokenizer, [row["id"] for row in rows])
            rows = [{**row, "text": text} for row, text in zip(rows, texts, strict=True)]
        with damage(f"{name}: step {step}"):
            updates, values = self._token_values.of_answer(name, step, len(rows), trained)
        if values:
            rows = [{**row, **value} for row, value in zip(rows, values, strict=True)]
        return {
            "step": step,
            "stored": {**dict.fromkeys(NOT_STORED, bool(values)), "logprob": bool(rows)},
            "trained": updates,
            "note": "" if values else self._token_values.note(),
            "tokenizer": self._tokenizer is not None,
            "tokens": rows,
        }

    @cached_property
    def _tokenizer(self) -> Any | None:
        """The tokenizer of the trained model, or of the model of the recipe."""
        shipped = Path(str(files("arpo"))) / "envs" / "desk" / "base_model" / "weights"
        named = shipped if self.config.model.path == BASE else Path(self.config.model.path)
        return load_tokenizer([self.folder.root / MODEL, named])

    def tasks(self) -> Json:
        found = self._read_evaluations()
        rescued = self._rescued_by_task()
        evaluated: dict[str, Json] = {task: {"rescued": count} for task, count in rescued.items()}
        for task, rates in self._history().items():
            evaluated.setdefault(task, {})["history"] = rates
        for row in task_rows(found):
            evaluated.setdefault(row.task, {}).update(
                task_set=row.task_set, before=mean(row.before), after=mean(row.after), change=row.change
            )
        return {
            "evaluations": [{"step": one.step, "landmark": one.landmark} for one in found],
            "complete": self.complete,
            "tasks": self._task_rows(evaluated),
        }

    def _history(self) -> Mapping[str, list[float]]:
        """Success rates of the training episodes of each task, batch by batch."""
        rates: dict[str, list[float]] = {}
        for row in self.index.rows(
            "SELECT task, avg(coalesce(score, 0) >= ?) AS rate FROM episodes "
            "WHERE batch IS NOT NULL GROUP BY task, batch ORDER BY task, batch",
            (self.listing.threshold,),
        ):
            rates.setdefault(row["task"], []).append(row["rate"])
        return rates

    def _rescued_by_task(self) -> Mapping[str, int]:
        rows = self.index.rows("SELECT task, count(*) AS count FROM groups WHERE rescued GROUP BY task")
        return {row["task"]: row["count"] for row in rows}

    def _task_sets(self) -> dict[str, str]:
        sets = {
            task: name
            for row in reversed(self._evaluations.rows)
            for name in row["sets"]
            for task in row["sets"][name]
        }
        return {task: LABELS.get(name, name) for task, name in sets.items()}

    def task(self, name: str) -> Json:
        curve = self.index.rows(
            "SELECT batch, count(*) AS episodes, sum(score >= ?) AS solved FROM episodes "
            "WHERE task = ? AND batch IS NOT NULL GROUP BY batch ORDER BY batch",
            (self.listing.threshold, name),
        )
        evaluations = [(row["step"], row["sets"]) for row in self._evaluations.rows]
        scores = [
            {"step": step, "scores": [score for tasks in sets.values() for score in tasks.get(name, ())]}
            for step, sets in evaluations
        ]
        before, after = self._before_and_after(name)
        return {
            **super().task(name),
            "curve": [{key: row[key] for key in ("batch", "solved", "episodes")} for row in curve],
            "evaluations": [entry for entry in scores if entry["scores"]],
            "before_episode": before,
            "after_episode": after,
        }

    def _before_and_after(self, task: str) -> tuple[Json | None, Json | None]:
        """The first and the last evaluation episode of a task, or else of all its episodes.

        None if both are from the same evaluation or batch.
        """
        for kinds in ("kind = ?", "? IS NOT NULL"):
            rows = [
                self.index.row(
                    f"SELECT {COLUMNS} FROM episodes WHERE task = ? AND {kinds} ORDER BY n {order} LIMIT 1",
                    (task, EVALUATED),
                )
                for order in ("ASC", "DESC")
            ]
            first, last = rows
            if first is not None and last is not None and phase_of(first) != phase_of(last):
                return row_json(self.listing, first), row_json(self.listing, last)
        return None, None


def encode_part(text: str) -> str:
    """A part of a path as encodeURIComponent of JavaScript writes it."""
    return quote(text, safe="!'()*~-_.")


def shot_url(source: str, name: str) -> str:
    return f"/api/s/{encode_part(source)}/shots/{encode_part(name)}"


def _rates(evaluation: Evaluation) -> dict[str, float | None]:
    return {name: as_number(score.rate) for name, score in evaluation.by_set.items()}


def _from(rows: list[Json], start: int) -> Json:
    """The rows from `start` on. If the log has become shorter, all rows, with reset."""
    reset = start > len(rows)
    return {
        "from": 0 if reset else start,
        "next": len(rows),
        "reset": reset,
        "rows": rows[0 if reset else start :],
    }
