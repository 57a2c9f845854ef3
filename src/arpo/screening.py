"""The task filter: rollouts of each task with one model, and a task file of those that it sometimes solves.

What is counted is written down task by task beside the output, so a screening that was stopped goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from arpo.assembly import assemble
from arpo.config import Config
from arpo.display import Display, open_display
from arpo.errors import UserError
from arpo.evaluate import SKIPPED, evaluate, make_room, playable, write_skipped
from arpo.scheduler import Outcome, reason
from arpo.store import write_atomically
from arpo.tasks import Count, choose, is_shipped, keep, load_tasks, selection
from arpo.types import Failure, Task, Trajectory


def run_screening(config: Config, tasks: str, rollouts: int, out: Path, drop_always: bool) -> int:
    """`arpo screen`: count successes of every task, then write those worth training on."""
    examples = config.tasks.examples
    pool = {task.id: task for task in choose(load_tasks(tasks, examples), config.tasks)}
    _, skipped = playable(config, {"named": tuple(pool.values())})
    make_room(out)
    progress = out.with_name(f"{out.name}.progress.jsonl")
    counts = _read_progress(progress, terms(config, rollouts), pool)
    display = open_display(sys.stdout)
    try:
        write_skipped(out.with_name(f"{out.name}.{SKIPPED}"), skipped, display)
        done = counts.keys() | skipped.keys()
        if left := {place: task for place, task in enumerate(pool.values()) if task.id not in done}:
            counts |= asyncio.run(_screen(config, left, rollouts, progress, display))
        in_order = {name: counts[name] for name in pool if name in counts}
        kept = keep(in_order, drop_always=drop_always)
        if not counts:
            raise UserError(f"{tasks}: no task could be run in {config.env.name}: try `arpo check-env`")
        if not kept:
            raise UserError(f"{tasks}: no task was solved in {rollouts} rollouts: screen a better model")
        folder = out.resolve().parent
        source = tasks if is_shipped(tasks) else os.path.relpath(tasks, folder)
        write_atomically(out, selection(source, kept, examples and os.path.relpath(examples, folder)))
        for line in _describe(in_order, kept, rollouts, len(pool)):
            display.note(line)
    finally:
        display.close()
    progress.unlink(missing_ok=True)
    print(f"written to {out}")
    return 0


async def _screen(
    config: Config, tasks: Mapping[int, Task], rollouts: int, progress: Path, display: Display
) -> dict[str, Count]:
    """Tasks, by their place in the list, are counted and written down as they complete.

    Failed episodes are not among the rollouts.
    """
    scheduler = assemble(config).scheduler
    outcomes: dict[int, list[Outcome]] = {}
    counts: dict[str, Count] = {}
    failed: list[int] = []  # the first place only: one reason is told
    display.begin("screening", len(tasks) * rollouts)
    with progress.open("a", encoding="utf-8") as file:
        print(file=file, flush=True)  # ends a line that was torn

        def on_episode(index: int, outcome: Outcome) -> None:
            display.episode_done()
            if isinstance(outcome, Failure) and not failed:
                failed.append(index)
                display.note(f"an episode failed: {reason(outcome)}")
            outcomes.setdefault(index, []).append(outcome)
            if len(outcomes[index]) == rollouts:
                name, count = tasks[index].id, _count(outcomes.pop(index), config.replay.threshold)
                if count.rollouts:
                    counts[name] = count
                    line = {"id": name, "successes": count.successes, "rollouts": count.rollouts}
                    print(json.dumps(line | terms(config, rollouts)), file=file, flush=True)

        await evaluate(
            scheduler,
            list(tasks.items()),
            name="screen",
            rollouts=rollouts,
            temperature=config.rollout.temperature,
            on_episode=on_episode,
        )
    return counts


def terms(config: Config, rollouts: int) -> dict[str, str | int | float]:
    """What two countings must share to be one screening."""
    return {
        "of": rollouts,
        "model": config.model.path,
        "temperature": config.rollout.temperature,
        "env": config.env.name,
        "seed": config.run.seed,
    }


def _count(outcomes: list[Outcome], threshold: float) -> Count:
    played = [outcome for outcome in outcomes if isinstance(outcome, Trajectory)]
    return Count(successes=sum(t.score >= threshold for t in played), rollouts=len(played))


def _read_progress(path: Path, terms: Mapping[str, object], pool: Mapping[str, Task]) -> dict[str, Count]:
    """What an earlier call counted, if it was a screening like this one; a torn last line is left out."""
    if not path.is_file():
        return {}
    counts = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
            name, count = row["id"], Count(successes=row["successes"], rollouts=row["rollouts"])
            alike = all(row.get(key) == value for key, value in terms.items()) and name in pool
        except (ValueError, KeyError, TypeError):
            continue
        if not alike:
            raise UserError(f"{path}: is of another screening: remove it, or choose another --out")
        counts[name] = count
    return counts


def _describe(counts: Mapping[str, Count], kept: Mapping[str, Count], rollouts: int, total: int) -> list[str]:
    histogram = Counter(count.successes for count in counts.values())
    rate = sum(c.successes for c in counts.values()) / max(1, sum(c.rollouts for c in counts.values()))
    kept_rate = sum(c.successes for c in kept.values()) / sum(c.rollouts for c in kept.values())
    never = sum(count.successes == 0 for count in counts.values())
    return [
        f"solved {rate:.1%} of all rollouts, {kept_rate:.1%} on the {len(kept)} tasks that are kept",
        f"dropped: {never} never solved, {len(counts) - never - len(kept)} always solved, "
        f"{total - len(counts)} could not be run",
        "tasks by successes: " + ", ".join(f"{n}: {histogram[n]}" for n in range(rollouts + 1)),
    ]
