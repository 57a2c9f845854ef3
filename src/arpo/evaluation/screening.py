"""The task filter (`arpo screen`): plays each task several times and keeps the sometimes-solved ones.

The task file OUT lists the kept tasks with their counts. OUT.report.json has the result of every task, and a
later call with the same settings takes the counts from it: another selection plays nothing.
OUT.progress.jsonl gets one line per finished episode and per finished task, so an interrupted screening plays
only the missing episodes. A task whose episodes all failed counts as failed, not as unsolved.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.config import Config
from arpo.engines.factory import model_id
from arpo.errors import UserError
from arpo.evaluation.evaluate import evaluate, require_writable
from arpo.interrupts import run_interruptibly
from arpo.models.hub import pin_model
from arpo.reporting.display import Display, describe_failure, note_cancel, open_display
from arpo.rollout.player import Player, open_player
from arpo.rollout.scheduler import Outcome
from arpo.storage.files import naming, write_atomically
from arpo.tasks.lists import is_shipped
from arpo.tasks.screened import Count, format_selection, learnable, middle
from arpo.tasks.sets import SKIPPED, playable, refuse_desk_tasks, write_skipped
from arpo.tasks.sources import chosen_tasks
from arpo.types import Failure, Screenshot, StopReason, Task, Trajectory

BAR = 40  # characters of the histogram's longest bar
SCREEN = "screen"  # first part of the episode ids
NEVER, ALWAYS, FAILED, CANNOT = "never solved", "always solved", "failed", "cannot run here"
FARTHER = "farther from 50%"  # only with screen.count

Scores = Mapping[str, Mapping[int, float]]  # of finished episodes, by task id and number


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """The result of a screening.

    `counts` has the successes of each played task. `failed` has the first failure of each task without a
    played episode. `skipped` has the reason of each task not playable here. If `count` is above
    0, it is the number of tasks of medium difficulty to keep.
    """

    tasks: Sequence[str]
    settings: Mapping[str, Any]
    counts: Mapping[str, Count]
    failed: Mapping[str, str]
    skipped: Mapping[str, str]
    drop_always: bool
    count: int

    @property
    def kept(self) -> dict[str, Count]:
        in_order = {task: self.counts[task] for task in self.tasks if task in self.counts}
        if self.count:
            return middle(in_order, self.count)
        return learnable(in_order, drop_always=self.drop_always)

    @property
    def histogram(self) -> list[int]:
        """Number of tasks with 0, 1, … successes."""
        tasks = Counter(count.successes for count in self.counts.values())
        return [tasks[successes] for successes in range(self.settings["of"] + 1)]

    def dropped(self, task: str) -> tuple[str, str]:
        """Why a task is not kept: a category and a detail, for example ("failed", "step: timeout")."""
        if task in self.skipped:
            return CANNOT, self.skipped[task]
        if task in self.failed:
            return FAILED, self.failed[task]
        count = self.counts[task]
        if not count.successes:
            return NEVER, ""
        category = ALWAYS if count.successes == count.rollouts else FARTHER
        return category, "screen.count" if self.count else "screen.drop_always"

    def totals(self) -> dict[str, Any]:
        kept = self.kept
        reasons = Counter(self.dropped(task)[0] for task in self.tasks if task not in kept)
        categories = (NEVER, ALWAYS, FAILED, CANNOT, *([FARTHER] if self.count else []))
        return {
            "tasks": len(self.tasks),
            "kept": len(kept),
            "dropped": {category: reasons[category] for category in categories},
            "rollouts": sum(count.rollouts for count in self.counts.values()),
            "solved": _rate(self.counts),
            "solved_of_kept": _rate(kept),
        }

    def report(self) -> dict[str, Any]:
        """The content of OUT.report.json."""
        kept = self.kept
        rows: dict[str, dict[str, Any]] = {}
        for task in self.tasks:
            count = self.counts.get(task, Count(successes=0, rollouts=0))
            rows[task] = {"successes": count.successes, "rollouts": count.rollouts, "kept": task in kept}
            if task not in kept:
                category, detail = self.dropped(task)
                rows[task]["reason"] = f"{category}: {detail}" if detail else category
        return {
            "terms": dict(self.settings),
            "totals": self.totals(),
            "histogram": self.histogram,
            "tasks": rows,
        }


def run_screening(config: Config, tasks: str, rollouts: int, out: Path, drop_always: bool) -> int:
    """`arpo screen`: count the successes of every task, and write the kept tasks and the report."""
    examples = config.tasks.examples
    refuse_desk_tasks(config, {"train": tasks})
    pool = {task.id: task for task in chosen_tasks(tasks, config)}
    _, skipped = playable(config, {"named": tuple(pool.values())})
    require_writable(out)
    config = pin_model(config)
    progress, report = (out.with_name(f"{out.name}.{end}") for end in ("progress.jsonl", "report.json"))
    settings = screening_settings(config, rollouts)
    counts, scores = _read_progress(progress, settings, pool)
    failed: dict[str, str] = {}
    display = open_display(sys.stdout)
    try:
        counts = _read_report(report, settings, pool, display) | counts
        write_skipped(out.with_name(f"{out.name}.{SKIPPED}"), skipped, display)
        done = counts.keys() | skipped.keys()
        if left := {index: task for index, task in enumerate(pool.values()) if task.id not in done}:
            with closing(open_player(config)) as player:
                failed = run_interruptibly(
                    _screen(player, config, left, rollouts, progress, counts, scores, display),
                    on_cancel=lambda: note_cancel(display),
                )
        screening = Screening(
            tasks=list(pool),
            settings={"source": tasks} | settings,
            counts=counts,
            failed=failed,
            skipped=skipped,
            drop_always=drop_always,
            count=config.screen.count,
        )
        write_atomically(report, json.dumps(screening.report(), indent=1, ensure_ascii=False) + "\n")
        for line in _describe(screening):
            display.note(line)
        display.note(f"result of each task: {report}")
    finally:
        display.close()
    _refuse_nothing(screening, tasks, config.env.name)
    folder = out.resolve().parent
    source = tasks if is_shipped(tasks) else os.path.relpath(tasks, folder)
    write_atomically(
        out, format_selection(source, screening.kept, examples and os.path.relpath(examples, folder))
    )
    progress.unlink(missing_ok=True)
    print(f"written to {out}")
    return 0


def _refuse_nothing(screening: Screening, tasks: str, env: str) -> None:
    if not screening.counts:
        first = next(iter(screening.failed.values()), "")
        reason = f" First failure: {first}." if first else ""
        raise UserError(f"{tasks}: no task could be run in {env}.{reason} Try `arpo check-env`")
    if not any(count.successes for count in screening.counts.values()):
        rollouts = screening.settings["of"]
        raise UserError(f"{tasks}: no task was solved in {rollouts} rollouts. Screen with a better model")
    if not screening.kept:
        setting = "screen.count = 0" if screening.count else "screen.drop_always = false"
        raise UserError(f"{tasks}: each task was solved always or never. Set {setting}")
    if (found := len(screening.kept)) < screening.count:
        raise UserError(
            f"{tasks}: {found} of {len(screening.counts)} tasks were solved sometimes, but not always; "
            f"screen.count = {screening.count} needs more. Screen more tasks, raise screen.rollouts "
            f"({screening.settings['of']}), or set screen.count to {found}"
        )


async def _screen(
    player: Player,
    config: Config,
    tasks: Mapping[int, Task],
    rollouts: int,
    progress: Path,
    counts: dict[str, Count],
    scores: Scores,
    display: Display,
) -> dict[str, str]:
    """Play the tasks, given by index, without the episodes in `scores`.

    Writes each finished episode and task to the progress file, and adds the tasks to `counts`. Failed
    episodes do not count as rollouts. Returns the first failure of each task without a played episode.
    """
    settings = screening_settings(config, rollouts)
    finished = _finished(tasks, scores, rollouts)
    outcomes: dict[int, list[Outcome]] = {index: [] for index in tasks}
    for index, outcome in finished.values():
        outcomes[index].append(outcome)
    failed: dict[str, str] = {}
    reported = False  # one failure is shown, not all of them
    display.begin("screening", len(tasks) * rollouts, len(finished))
    with progress.open("a", encoding="utf-8") as file:
        with naming(progress):
            print(file=file, flush=True)  # completes a torn last line

        def write(line: Mapping[str, Any]) -> None:
            with naming(progress):
                print(json.dumps({**line, **settings}), file=file, flush=True)

        def on_episode(index: int, outcome: Outcome) -> None:
            nonlocal reported
            display.episode_done()
            if isinstance(outcome, Failure) and not reported:
                reported = True
                display.note(f"an episode failed: {describe_failure(outcome)}")
            name = tasks[index].id
            if isinstance(outcome, Trajectory):
                number = int(outcome.episode_id.rpartition("-")[2])
                write({"id": name, "episode": number, "score": outcome.score})
            outcomes[index].append(outcome)
            end_task(index)

        def end_task(index: int) -> None:
            """Count the task if all of its episodes have ended."""
            if len(outcomes[index]) < rollouts:
                return
            name, played = tasks[index].id, outcomes.pop(index)
            count = _count(played, config.replay.threshold)
            if count.rollouts:
                counts[name] = count
                write({"id": name, "successes": count.successes, "rollouts": count.rollouts})
            else:
                failed[name] = next(describe_failure(one) for one in played if isinstance(one, Failure))

        for index in tasks:  # a kill may have come between the lines of the last episode and of the task
            end_task(index)
        async with player.started(display) as scheduler:
            await evaluate(
                scheduler,
                list(tasks.items()),
                name=SCREEN,
                rollouts=rollouts,
                temperature=config.rollout.temperature,
                on_episode=on_episode,
                finished={episode: outcome for episode, (_, outcome) in finished.items()},
            )
    return failed


def _finished(tasks: Mapping[int, Task], scores: Scores, rollouts: int) -> dict[str, tuple[int, Trajectory]]:
    """The stored episodes of unfinished tasks by episode id, each with the index of its task.

    They have no turns: screening reads only the scores.
    """
    return {
        (name := f"{SCREEN}-{index}-{number}"): (
            index,
            Trajectory(
                episode_id=name,
                task_id=task.id,
                turns=(),
                final=Screenshot(b"", ""),
                score=score,
                malformed=False,
                stop=StopReason.FINISHED,
            ),
        )
        for index, task in tasks.items()
        for number, score in scores.get(task.id, {}).items()
        if number < rollouts
    }


def screening_settings(config: Config, rollouts: int) -> dict[str, str | int | float]:
    """The settings that two runs must share to continue one screening."""
    return {
        "of": rollouts,
        "model": model_id(config),
        "temperature": config.rollout.temperature,
        "max_steps": config.rollout.max_steps,
        "max_images": config.rollout.max_images,
        "max_answer_tokens": config.rollout.max_answer_tokens,
        "max_pixels": config.model.max_pixels,
        "prompt": config.model.prompt,
        "screen": f"{config.env.width}x{config.env.height}",
        "threshold": config.replay.threshold,
        "env": config.env.name,
        "seed": config.run.seed,
    }


def _count(outcomes: list[Outcome], threshold: float) -> Count:
    played = [outcome for outcome in outcomes if isinstance(outcome, Trajectory)]
    return Count(successes=sum(t.score >= threshold for t in played), rollouts=len(played))


def _read_progress(
    path: Path, settings: Mapping[str, object], pool: Mapping[str, Task]
) -> tuple[dict[str, Count], Scores]:
    """The finished tasks and episodes of an interrupted screening with the same settings.

    Ignores a torn last line.
    """
    counts: dict[str, Count] = {}
    scores: dict[str, dict[int, float]] = {}
    if not path.is_file():
        return counts, scores
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
            name = row["id"]
            if "episode" in row:
                scores.setdefault(name, {})[int(row["episode"])] = float(row["score"])
            else:
                counts[name] = Count(successes=row["successes"], rollouts=row["rollouts"])
            alike = all(row.get(key) == value for key, value in settings.items()) and name in pool
        except (ValueError, KeyError, TypeError):
            continue
        if not alike:
            raise UserError(
                f"{path}: belongs to a screening with other settings. Remove it, or choose another --out"
            )
    return counts, scores


def _read_report(
    path: Path, settings: Mapping[str, object], pool: Mapping[str, Task], display: Display
) -> dict[str, Count]:
    """The counts of a finished screening with the same settings; none if the report is missing or damaged."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        others = [
            f"{key}: {report['terms'].get(key)}"
            for key in settings
            if report["terms"].get(key) != settings[key]
        ]
        counts = {
            task: Count(successes=row["successes"], rollouts=row["rollouts"])
            for task, row in report["tasks"].items()
            if task in pool and 0 <= row["successes"] <= row["rollouts"] > 0
        }
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    if others:
        display.note(f"{path}: has other settings ({', '.join(others)}); all tasks are played")
        return {}
    if counts:
        display.note(f"{path}: has the counts of {len(counts)} tasks; they are not played again")
    return counts


def _rate(counts: Mapping[str, Count]) -> float:
    return sum(c.successes for c in counts.values()) / max(1, sum(c.rollouts for c in counts.values()))


def _describe(screening: Screening) -> list[str]:
    totals, histogram = screening.totals(), screening.histogram
    widest, most = len(str(len(histogram) - 1)), max(1, *histogram)
    bars = [
        f"{successes:>{widest}} {'█' * math.ceil(BAR * tasks / most)} {tasks}"
        for successes, tasks in enumerate(histogram)
    ]
    return [
        f"solved {totals['solved']:.1%} of all rollouts, {totals['solved_of_kept']:.1%} on the "
        f"{totals['kept']} tasks that are kept",
        "dropped: " + ", ".join(f"{count} {why}" for why, count in totals["dropped"].items()),
        f"tasks by successes in {len(histogram) - 1} rollouts:",
        *bars,
    ]
