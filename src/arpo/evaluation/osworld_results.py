"""Results in OSWorld's own folder layout, readable by its tools:

    DIR/pyautogui/screenshot/MODEL/TRIAL/DOMAIN/TASK/
        result.txt         the score
        traj.jsonl         one line per answer
        step_N_TIME.png    the screenshot after step N; step_0 is the start
    DIR/pyautogui/screenshot/MODEL/TRIAL/args.json and failures.jsonl, MODEL/summary.json

The published runner has the trial at the same position. Give "MODEL/TRIAL" as the model to tools without
trials. An episode is written to a temporary folder and renamed when complete. A failed episode has no result:
it is logged and played again. Results of other settings are refused, never mixed in.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from arpo.actions import TERMINAL, Action, Finished, Wait
from arpo.envs.pyautogui_program import program
from arpo.errors import UserError
from arpo.storage.files import escapes_folder, lock_folder, parse_json
from arpo.storage.from_json import from_json
from arpo.storage.run_folder import write_atomically
from arpo.types import Failure, StopReason, Task, Trajectory

ACTION_SPACE, OBSERVATION = "pyautogui", "screenshot"
RESULT, STEPS, ARGS, FAILURES, SUMMARY = (
    "result.txt", "traj.jsonl", "args.json", "failures.jsonl", "summary.json"
)  # fmt: skip
_PARTIAL = ".partial"
CONTEXT = "context"  # stop reason of an episode whose conversation exceeded the context

TaskKey = tuple[str, str]  # (domain, task id)


def task_key(task: Task) -> TaskKey:
    """The subfolders of a task's results. Tasks without a domain get the domain "tasks"."""
    return task.domain or "tasks", task.id


def model_folder(root: Path, model: str) -> Path:
    return root / ACTION_SPACE / OBSERVATION / _safe(model, "server.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode to write, with the times of its calls and the step limit."""

    trajectory: Trajectory
    times: tuple[datetime, ...]  # of start, of each step, of evaluate
    max_steps: int

    @property
    def stop(self) -> str:
        early = len(self.trajectory.turns) < self.max_steps
        return (
            CONTEXT if early and self.trajectory.stop == StopReason.MAX_STEPS else self.trajectory.stop.value
        )


class Trial:
    """The folder of one trial, locked by this process: `with Trial(…) as trial`."""

    def __init__(self, root: Path, model: str, name: str) -> None:
        self.name = name
        self.folder = model_folder(root, model) / _safe(name, "--trial-id")
        self._aside = root / _PARTIAL / model / name
        self._lock = -1

    def __enter__(self) -> Self:
        self._lock = lock_folder(self.folder, "trial", "--trial-id or --result-dir")
        shutil.rmtree(self._aside, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._aside, ignore_errors=True)
        with suppress(OSError):  # not empty: another trial uses it
            os.removedirs(self._aside.parent)
        os.close(self._lock)

    def begin(self, settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Write the settings of this trial. Raises UserError if its results have other settings."""
        known = read_settings(self.folder)
        if scores(self.folder) and known != dict(settings):
            changed = [
                f"{name} {known.get(name)!r}, now {settings[name]!r}"
                for name in settings
                if known.get(name) != settings[name]
            ]
            detail = "; ".join(changed) if known else "arpo did not write them"
            raise UserError(
                f"{self.folder}: holds results of another evaluation ({detail}). "
                "Choose another --trial-id or --result-dir"
            )
        text = json.dumps({**arguments, "terms": dict(settings)}, indent=4, ensure_ascii=False)
        write_atomically(self.folder / ARGS, f"{text}\n")

    def add(self, key: TaskKey, played: Played) -> None:
        target = self.folder / _safe(key[0], "task domain") / _safe(key[1], "task id")
        aside = self._aside / key[0] / key[1]
        try:
            aside.mkdir(parents=True)
            for name, content in _files(played):
                (aside / name).write_bytes(content)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():  # an interrupted runner left it without a result
                shutil.rmtree(target)
            os.replace(aside, target)
        except OSError as error:
            raise UserError(f"{target}: cannot write: {error.strerror}") from error

    def add_failure(self, key: TaskKey, failure: Failure) -> None:
        line = json.dumps({"domain": key[0], **asdict(failure)}, ensure_ascii=False)
        with (self.folder / FAILURES).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Args:
    terms: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    domain: str
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Info:
    stop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    info: _Info


def trials(folder: Path) -> list[str]:
    """Names of the trials in a model's folder, without those that arpo did not write."""
    return sorted(path.parent.name for path in folder.glob(f"*/{ARGS}"))


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of a trial. Empty if arpo did not write it."""
    try:
        return from_json(parse_json((folder / ARGS).read_bytes()), _Args).terms
    except (OSError, ValueError):
        return {}


def scores(folder: Path) -> dict[TaskKey, float]:
    """The scores of a trial, by (domain, task id)."""
    found = {}
    for path in sorted(folder.glob(f"*/*/{RESULT}")):
        try:
            found[path.parts[-3], path.parts[-2]] = float(path.read_text("utf-8"))
        except ValueError:
            raise UserError(
                f"{path}: is not a score. Remove its folder; then the task is played again"
            ) from None
    return found


def failures(folder: Path) -> dict[TaskKey, dict[str, Any]]:
    """The last failure of each task without a result. Ignores a torn line."""
    found: dict[TaskKey, dict[str, Any]] = {}
    path = folder / FAILURES
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            record = from_json(parse_json(line), dict[str, Any])
            key = from_json(record, _Key)
        except ValueError:
            continue
        found[key.domain, key.task_id] = record
    done = scores(folder)
    return {key: record for key, record in found.items() if key not in done}


def stops(folder: Path) -> dict[TaskKey, str]:
    """The stop reason of each episode of a trial, if recorded."""
    found = {}
    for path in sorted(folder.glob(f"*/*/{STEPS}")):
        lines = path.read_bytes().splitlines() or [b""]
        with suppress(ValueError):
            found[path.parts[-3], path.parts[-2]] = from_json(parse_json(lines[-1]), _Step).info.stop
    return found


def _files(played: Played) -> Iterator[tuple[str, bytes]]:
    """The files of an episode as (name, content). The score comes last."""
    trajectory = played.trajectory
    stamps = [when.strftime("%Y%m%d@%H%M%S%f") for when in played.times]
    names = [f"step_{number}_{stamp}.png" for number, stamp in enumerate(stamps)]
    views = [*(turn.screenshot for turn in trajectory.turns), trajectory.final]
    lines = []
    for number, turn in enumerate(trajectory.turns, start=1):
        last = number == len(trajectory.turns)
        info = {"error": turn.error} if turn.error else {}
        line = {
            "step_num": number,
            "action_timestamp": stamps[number],
            "action": action_text(turn.actions),
            "response": turn.completion.text,
            "reward": 0,
            "done": last and trajectory.stop != StopReason.MAX_STEPS,
            "info": info | ({"stop": played.stop} if last else {}),
            "screenshot_file": names[number],
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    yield from ((name, view.png) for name, view in zip(names, views, strict=False))
    yield STEPS, "".join(lines).encode()
    yield RESULT, f"{trajectory.score}\n".encode()


def action_text(actions: Sequence[Action]) -> str:
    """The actions of one answer in OSWorld's form: a pyautogui program, or WAIT, DONE, FAIL."""
    if not actions:
        return ""
    acting = [action for action in actions if not isinstance(action, TERMINAL)]
    words = []
    if acting:
        words.append("WAIT" if all(isinstance(action, Wait) for action in acting) else program(acting))
    if isinstance(actions[-1], TERMINAL):
        words.append("DONE" if isinstance(actions[-1], Finished) else "FAIL")
    return "\n".join(words)


def _safe(name: str, kind: str) -> str:
    """The name, if it is a relative path without ".." and hidden parts. Otherwise raises UserError."""
    if not name or escapes_folder(name) or any(part.startswith(".") for part in name.split("/")):
        raise UserError(f"{kind}: {name!r} cannot be the name of a results folder")
    return name
