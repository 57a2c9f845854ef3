"""Results in OSWorld's own layout, so that its tools read them:

    DIR/pyautogui/screenshot/MODEL/TRIAL/DOMAIN/TASK/
        result.txt         the score
        traj.jsonl         one line for each answer
        step_N_WHEN.png    the screen after it; step_0: at the start
    DIR/pyautogui/screenshot/MODEL/TRIAL/args.json and failures.jsonl, MODEL/summary.json

The trial stands where the published runner has it; a tool that knows no trials takes "MODEL/TRIAL" as the
model. An episode is written to one side and renamed when it is whole. A failure is no result: it is noted,
and played again. Results of other settings are never mixed in.
"""

from __future__ import annotations

import fcntl
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
from arpo.envs.task_files import escapes_folder
from arpo.errors import UserError
from arpo.storage.run_folder import write_atomically
from arpo.types import Failure, StopReason, Task, Trajectory

ACTION_SPACE, OBSERVATION = "pyautogui", "screenshot"
RESULT, STEPS, ARGS, FAILURES, SUMMARY = (
    "result.txt", "traj.jsonl", "args.json", "failures.jsonl", "summary.json"
)  # fmt: skip
_PARTIAL = ".partial"
CONTEXT = "context"  # why an episode ended before its last step: the conversation did not fit any more

Place = tuple[str, str]  # a task's domain and id


def place_of(task: Task) -> Place:
    """Where a task's results lie; a list without domains is one domain."""
    return task.domain or "tasks", task.id


def model_folder(root: Path, model: str) -> Path:
    return root / ACTION_SPACE / OBSERVATION / _safe(model, "server.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One episode as it is written, with the times of its calls and the steps that it might have had."""

    trajectory: Trajectory
    times: tuple[datetime, ...]  # of the start, of each step, of the verdict
    max_steps: int

    @property
    def stop(self) -> str:
        early = len(self.trajectory.turns) < self.max_steps
        return (
            CONTEXT if early and self.trajectory.stop == StopReason.MAX_STEPS else self.trajectory.stop.value
        )


class Trial:
    """One trial's folder, held by this process alone: `with Trial(…) as trial`."""

    def __init__(self, root: Path, model: str, name: str) -> None:
        self.name = name
        self.folder = model_folder(root, model) / _safe(name, "eval.trials")
        self._aside = root / _PARTIAL / model / name
        self._lock = -1

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"{self.folder}: results cannot be written there: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UserError(
                f"{self.folder}: another process plays this trial; choose another --trial-id"
            ) from None
        shutil.rmtree(self._aside, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._aside, ignore_errors=True)
        with suppress(OSError):  # others have something there
            os.removedirs(self._aside.parent)
        os.close(self._lock)

    def begin(self, terms: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Note what this trial is played with. Results that were played with something else are refused."""
        known = read_terms(self.folder)
        if scores(self.folder) and known != dict(terms):
            changed = [
                f"{name} {known.get(name)!r}, now {terms[name]!r}"
                for name in terms
                if known.get(name) != terms[name]
            ]
            told = "; ".join(changed) if known else "arpo did not write them"
            raise UserError(
                f"{self.folder}: holds results of another evaluation ({told}): "
                "choose another --trial-id or --result-dir"
            )
        text = json.dumps({**arguments, "terms": dict(terms)}, indent=4, ensure_ascii=False)
        write_atomically(self.folder / ARGS, f"{text}\n")

    def add(self, place: Place, played: Played) -> None:
        target = self.folder / _safe(place[0], "a task's domain") / _safe(place[1], "a task's id")
        aside = self._aside / place[0] / place[1]
        try:
            aside.mkdir(parents=True)
            for name, content in _files(played):
                (aside / name).write_bytes(content)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():  # a runner that was stopped left it without a result
                shutil.rmtree(target)
            os.replace(aside, target)
        except OSError as error:
            raise UserError(f"{target}: cannot be written: {error.strerror}") from error

    def add_failure(self, place: Place, failure: Failure) -> None:
        line = json.dumps({"domain": place[0], **asdict(failure)}, ensure_ascii=False)
        with (self.folder / FAILURES).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def trials(folder: Path) -> list[str]:
    """The trials of a model's folder that arpo wrote."""
    return sorted(path.parent.name for path in folder.glob(f"*/{ARGS}"))


def read_terms(folder: Path) -> dict[str, Any]:
    """What a trial was played with; empty where arpo did not write it."""
    try:
        return dict(json.loads((folder / ARGS).read_text("utf-8"))["terms"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def scores(folder: Path) -> dict[Place, float]:
    """The score of every task that a trial has a result of."""
    found = {}
    for path in sorted(folder.glob(f"*/*/{RESULT}")):
        try:
            found[path.parts[-3], path.parts[-2]] = float(path.read_text("utf-8"))
        except ValueError:
            raise UserError(
                f"{path}: is not a score: remove its folder, and the task is played again"
            ) from None
    return found


def failures(folder: Path) -> dict[Place, dict[str, Any]]:
    """The last failure of every task that has no result; a line that was torn is left out."""
    found: dict[Place, dict[str, Any]] = {}
    path = folder / FAILURES
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
            found[record["domain"], record["task_id"]] = record
        except (ValueError, KeyError, TypeError):
            continue
    done = scores(folder)
    return {place: record for place, record in found.items() if place not in done}


def stops(folder: Path) -> dict[Place, str]:
    """Why the episodes of a trial ended, where that was noted."""
    found = {}
    for path in sorted(folder.glob(f"*/*/{STEPS}")):
        lines = path.read_text("utf-8").splitlines()
        try:
            found[path.parts[-3], path.parts[-2]] = str(json.loads(lines[-1])["info"]["stop"])
        except (IndexError, ValueError, KeyError, TypeError):
            continue
    return found


def _files(played: Played) -> Iterator[tuple[str, bytes]]:
    """Every file of an episode, the score last."""
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
    """One answer's actions as OSWorld takes them: a pyautogui program, or WAIT, DONE, FAIL."""
    if not actions:
        return ""
    acting = [action for action in actions if not isinstance(action, TERMINAL)]
    words = []
    if acting:
        words.append("WAIT" if all(isinstance(action, Wait) for action in acting) else program(acting))
    if isinstance(actions[-1], TERMINAL):
        words.append("DONE" if isinstance(actions[-1], Finished) else "FAIL")
    return "\n".join(words)


def _safe(name: str, what: str) -> str:
    """A name that stays a path within its folder and is not hidden there."""
    if not name or escapes_folder(name) or any(part.startswith(".") for part in name.split("/")):
        raise UserError(f"{what}: {name!r} cannot name a folder of results")
    return name
