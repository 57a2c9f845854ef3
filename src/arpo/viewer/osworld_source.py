"""OSWorld results of any agent in the browser: one folder per task with traj.jsonl, result.txt and PNG files.

The layout is a convention, so everything is optional: a folder with either file is an episode. The episode id
is its path below the source, for example chrome/bb5e4c0d. Mouse actions are read from the pyautogui text.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np

from arpo.actions import Action, Click, Direction, DoubleClick, Drag, Hover, Point, RightClick, Scroll
from arpo.config import Config
from arpo.config.task_set_names import OVERALL
from arpo.errors import UserError
from arpo.evaluation.osworld_results import RESULT, STEPS
from arpo.png import decode
from arpo.storage.screenshots import MAX_PICTURE_BYTES
from arpo.tasks.lists import load_tasks
from arpo.viewer.files import MAX_LINE, SafeFolder, parse_shallow
from arpo.viewer.index import add_problems, insert, storable
from arpo.viewer.pictures import Picture, PixelCache, checked_png
from arpo.viewer.source import Identity, Json, Source
from arpo.viewer.steps import MAX_STEPS, answer_json, empty_step

KIND = "osworld"
MAX_DEPTH = 4  # folders between a source and its episodes
_NUMBER = r"(-?\d{1,6}(?:\.\d{1,6})?)"
_CALL = re.compile(rf"pyautogui\.(\w{{1,20}})\(\s*(?:x\s*=\s*)?{_NUMBER}\s*,\s*(?:y\s*=\s*)?{_NUMBER}")
_SCROLL = re.compile(rf"pyautogui\.(scroll|hscroll)\(\s*{_NUMBER}")
_POINTED: Mapping[str, type[Click | DoubleClick | RightClick | Hover]] = {
    "click": Click,
    "doubleClick": DoubleClick,
    "rightClick": RightClick,
    "moveTo": Hover,
}
_STAMP = re.compile(r"(\d{8})@(\d{6})(\d{0,6})")
_RESCAN_SECONDS = 3.0
_State = tuple[int, int]  # time of change and bytes
_SHIPPED = ("osworld:train", "osworld:heldout", "osworld:published_128")


class OSWorldSource(Source):
    """Episodes are found by listing folders, again every few seconds."""

    def __init__(self, identity: Identity, folder: SafeFolder, cache: PixelCache) -> None:
        super().__init__(identity, folder, cache)
        self.threshold = Config().replay.threshold
        self._next_scan, self._generation = 0.0, -1  # of the index at the last scan
        self._new: deque[tuple[str, _State]] = deque()  # found by the last scan, not indexed yet

    def instruction(self, task: str) -> str:
        return self._instructions.get(task, "")

    @cached_property
    def _instructions(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in _SHIPPED:
            try:
                found.update((task.id, task.instruction) for task in load_tasks(source))
            except UserError:
                continue
        return found

    def _refresh(self, deadline: float) -> bool:
        due = not self._new and time.monotonic() > self._next_scan
        if due or self._generation != self.index.generation:
            self._new = self._changed()
            self._generation = self.index.generation
            self._next_scan = time.monotonic() + _RESCAN_SECONDS
        while self._new:
            self._add(*self._new.popleft())
            if time.monotonic() > deadline:
                return not self._new
        return True

    def _changed(self) -> deque[tuple[str, _State]]:
        """The episodes that are new or have changed since they were indexed."""
        known = {
            row["id"]: (row["at"], row["size"])
            for row in self.index.rows("SELECT id, at, size FROM episodes")
        }
        found = dict(self._scan())
        if not found.keys() >= known.keys():
            self.index.rebuild()
            known = {}
        return deque((name, state) for name, state in found.items() if known.get(name) != state)

    def _scan(self, name: str = "", depth: int = 0) -> Iterator[tuple[str, _State]]:
        """(episode, (time of change, bytes) of its files) of all task folders."""
        folders, names = self.folder.list(name)
        if depth and {RESULT, STEPS} & set(names):
            states = [self.folder.stat(f"{name}/{file}") for file in (STEPS, RESULT)]
            changed = sum(state.st_mtime_ns for state in states if state) >> 10
            yield name, (changed, sum(state.st_size for state in states if state))
        elif depth < MAX_DEPTH:
            for folder in folders:
                yield from self._scan(f"{name}/{folder}" if name else folder, depth + 1)

    def _add(self, name: str, state: _State) -> None:
        problems: list[str] = []
        score = self._score(name, problems)
        steps = list(self._lines(name, problems))
        last = steps[-1] if steps else {}
        ended = "finished" if last.get("done") else "max_steps" if steps else "unknown"

        def change(connection: sqlite3.Connection) -> None:
            # A changed episode becomes the newest one: full-text search cannot replace the text of a number.
            (number,) = connection.execute("SELECT coalesce(max(n), 0) + 1 FROM episodes").fetchone()
            connection.execute("DELETE FROM episodes WHERE id = ?", (storable(name),))
            connection.execute("DELETE FROM problems WHERE instr(text, ?)", (storable(f"{name}/"),))
            insert(
                connection,
                "episodes",
                n=number,
                id=name,
                task=name.rpartition("/")[2],
                kind=KIND,
                group_id=name,
                score=score,
                malformed=0,
                stop=_info(last, "stop")[:40] or ended,
                steps=len(steps),
                tokens=0,
                version=0,
                error=_info(last, "error"),
                at=state[0],
                size=state[1],
            )
            insert(connection, "words", rowid=number, body="\n".join(map(_answer, steps)))
            add_problems(connection, problems)

        self.index.write(change)

    def _score(self, name: str, problems: list[str]) -> float | None:
        """The number in result.txt; None without one."""
        try:
            text = self.folder.read(f"{name}/{RESULT}", 1 << 12).decode("utf-8", "replace").strip()
            score = {"true": 1.0, "false": 0.0}.get(text.lower())
            score = float(text) if score is None else score
            if not -1e9 < score < 1e9:
                raise ValueError
            return score
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            problems.append(
                str(error) if isinstance(error, UserError) else f"{name}/{RESULT}: is not a score"
            )
            return None

    def _lines(self, name: str, problems: list[str]) -> Iterator[Json]:
        """The records of traj.jsonl, or of the JSON list of some agents."""
        try:
            content = self.folder.read(f"{name}/{STEPS}", MAX_LINE)
        except FileNotFoundError:
            return
        except (OSError, UserError) as error:
            problems.append(str(error))
            return
        for number, line in enumerate(content.splitlines()[:MAX_STEPS], 1):
            if line.strip():
                try:
                    yield parse_shallow(line, f"{self.folder.path(f'{name}/{STEPS}')}: line {number}")
                except UserError as error:
                    problems.append(str(error))

    def stamp(self) -> str:
        row = self.index.row("SELECT count(*) AS count, coalesce(sum(at), 0) AS at FROM episodes")
        return f"{row['count']} {row['at']}" if row else ""

    def facts(self) -> Json:
        row = self.index.row("SELECT avg(score) AS rate FROM episodes")
        rate = row["rate"] if row else None
        return {
            "subtitle": f"OSWorld results in {self.identity.shown}",
            "live": False,
            "finished": True,
            "batches": 0,
            "success": {} if rate is None else {"final": {OVERALL: rate}},
            "share": 0.0,
            "errors": [],
        }

    def steps(self, episode: str) -> tuple[list[Json], Json | None]:
        shots = self._screenshots(episode)
        return self._steps(episode, shots), self.shot(f"{episode}/{shots[-1]}") if shots else None

    def answers(self, episode: str) -> list[str]:
        return [_answer(record) for record in self._lines(episode, [])]

    def _steps(self, name: str, shots: list[str]) -> list[Json]:
        records = list(self._lines(name, []))
        times = [_time(record) for record in records]
        # With one picture more than steps, the first one is the start. Otherwise a step names its next one.
        named = [None, *(record.get("screenshot_file") for record in records)]
        shown = shots if len(shots) > len(records) else [file if file in shots else None for file in named]
        return [
            {
                **empty_step(number),
                **answer_json(_answer(record), list(_actions(record))),
                "action_text": _action_text(record),
                "shot": self.shot(f"{name}/{shot}") if shot else None,
                "error": _info(record, "error"),
                "seconds": after - before if before is not None and after is not None else None,
            }
            for number, (record, shot, before, after) in enumerate(
                zip(records, shown, [None, *times], times, strict=False), 1
            )
        ]

    def _screenshots(self, name: str) -> list[str]:
        """The PNG files of an episode in the order of its steps."""
        found = [file for file in self.folder.list(name)[1] if file.lower().endswith(".png")]
        return sorted(found, key=lambda file: (_step_number(file), file))[: MAX_STEPS + 1]

    def size(self, shot: str) -> tuple[int, int]:
        return checked_png(self._read_picture(shot))

    def picture(self, shot: str) -> Picture:
        content = self._read_picture(shot)
        checked_png(content)
        return Picture(content=content, media_type="image/png")

    def pixels(self, shot: str) -> np.ndarray:
        key = f"{self.folder.path(shot)} {self.stamp()}"
        return self._cache.get(key, lambda: np.asarray(decode(self._read_picture(shot))))

    def _read_picture(self, shot: str) -> bytes:
        """Only PNG files of an indexed episode are served."""
        episode, _, file = shot.rpartition("/")
        known = self.index.row("SELECT 1 FROM episodes WHERE id = ?", (episode,))
        if known is None or not file.lower().endswith(".png"):
            raise UserError("no such screenshot")
        return self.folder.read(shot, MAX_PICTURE_BYTES)


def _info(record: Mapping[str, Any], name: str) -> str:
    """A text of the field "info" of a step, "" without it."""
    info = record.get("info")
    return str(info.get(name, ""))[:2000] if isinstance(info, Mapping) else ""


def _answer(record: Mapping[str, Any]) -> str:
    """The text of the model, under the names of several agents."""
    for name in ("response", "thought", "raw_response", "model_response"):
        found = record.get(name)
        if isinstance(found, str) and found:
            return found
        if isinstance(found, Mapping | list) and found:
            return str(found)[:20_000]
    return _action_text(record)


def _action_text(record: Mapping[str, Any]) -> str:
    action = record.get("action", record.get("actions", ""))
    if isinstance(action, Mapping):
        action = action.get("command", action.get("action", action))
    return action if isinstance(action, str) else str(action)[:20_000]


def _actions(record: Mapping[str, Any]) -> Iterator[Action]:
    """The mouse actions in a pyautogui text.

    >>> list(_actions({"action": "pyautogui.click(3, 4)"}))
    [Click(point=Point(x=3.0, y=4.0))]
    """
    position: Point | None = None
    text = _action_text(record)[:20_000]
    for match in _CALL.finditer(text):
        point = Point(float(match[2]), float(match[3]))
        if match[1] == "dragTo":
            yield Drag(start=position or point, end=point)
        elif match[1] in _POINTED:
            yield _POINTED[match[1]](point=point)
        position = point
    for match in _SCROLL.finditer(text):
        amount = float(match[2])
        across = (
            (Direction.LEFT, Direction.RIGHT) if match[1] == "hscroll" else (Direction.DOWN, Direction.UP)
        )
        yield Scroll(point=position, direction=across[amount > 0])


def _step_number(file: str) -> int:
    match = re.search(r"step_(\d{1,6})", file)
    return int(match[1]) if match else -1


def _time(record: Mapping[str, Any]) -> float | None:
    """Seconds of the stamp 20260131@235959123456 of a step."""
    match = _STAMP.fullmatch(str(record.get("action_timestamp")))
    if not match:
        return None
    try:
        whole = datetime.strptime(match[1] + match[2], "%Y%m%d%H%M%S")
    except ValueError:
        return None
    return whole.timestamp() + float(f"0.{match[3] or 0}")
