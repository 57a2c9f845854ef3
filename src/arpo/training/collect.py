"""Plays the training tasks with a fixed model and stores the episodes for offline training (`arpo collect`).

Teachers may play: a chat server (engine.name = "openai") or a person. Their answers are stored as tokens of
model.path.

It plays as many episodes as an online run of the same recipe. Each episode is stored when it ends, so an
interrupted collection resumes with the missing ones. An episode that the environment failed, or that the
server refuses because of its content, is logged and not played again. After another fault of the engine it is
missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from arpo.algorithms.rewards import is_example
from arpo.config import LEARNING, Config
from arpo.config.changes import find_changes
from arpo.engines.factory import TEXT_ONLY
from arpo.errors import UserError
from arpo.evaluation.evaluate import evaluate
from arpo.evaluation.scoring import LASTING, report_failures
from arpo.interrupts import run_interruptibly
from arpo.models.hub import pin_model
from arpo.reporting.display import Display, count_noun, note_cancel, open_display
from arpo.rollout.player import Player, open_player
from arpo.rollout.scheduler import Outcome
from arpo.storage import checkpoint
from arpo.storage.codec import COLLECTED
from arpo.storage.files import RESTORE_OR_LEAVE
from arpo.storage.run_folder import PACK, RunFolder
from arpo.tasks.sets import require_evaluators, sets_of_run
from arpo.training.checkpoints import check_recipe, note_changes
from arpo.training.reporting import (
    OF_ENGINE,
    CallLog,
    Timing,
    logged_seconds,
    most_frequent,
    report_failed_episodes,
)
from arpo.types import Failure, Task, Trajectory

_SHOWN = 5  # missing episodes on the screen


def run_collection(config: Config) -> int:
    """`arpo collect`: start or resume the collection in run.dir, and print its counts."""
    store = RunFolder(Path(config.run.dir))
    display = open_display(sys.stdout)
    try:
        if (store.folder / checkpoint.CHECKPOINTS).is_dir():
            raise UserError(f"{store.folder}: holds a training run. Choose another --run.dir")
        config = pin_model(config, store.folder, teaching=True)
        ended, recorded = _ended(store), config
        if ended:
            _check_screenshots(store)
            recorded = check_recipe(store, config, LEARNING) or config
            _check_teacher(store, recorded, config)
        tasks = sets_of_run(config, store.folder, bool(ended), display)["train"]
        require_evaluators(tasks, "`arpo collect` asks no judge: leave them out of tasks.train")
        total = config.planned_tasks(len(tasks)) * config.rollout.group_size
        numbers = {_name(number): number for number in range(total)}
        if others := sorted(ended - numbers.keys()):
            length = "train.tasks" if config.train.tasks else "train.epochs"
            raise UserError(
                f"{store.folder}: holds episodes beyond these {len(numbers)}, for example {others[0]}. Set "
                f"{length} at least as high as before, or choose another --run.dir"
            )
        store.rewind(store.offsets())  # removes what a kill left incomplete
        batch = len(ended) // _episodes_per_batch(config) + 1
        changes = find_changes(recorded, config, batch, LEARNING)
        note_changes(store, display, changes, batch, resumed=bool(ended))
        store.write_recipe(config)
        left = [number for name, number in numbers.items() if name not in ended]
        missing: list[Failure] = []
        if left:
            with closing(open_player(config, teaching=True)) as player:
                missing = run_interruptibly(
                    _collect(player, config, tasks, left, len(numbers), store, display),
                    on_cancel=lambda: note_cancel(display),
                )
        display.note(_describe(store, config.replay.threshold))
        code = report_failed_episodes(store, display)
        if missing:
            names = ", ".join(failure.episode_id for failure in missing[:_SHOWN])
            more = ", …" if len(missing) > _SHOWN else ""
            display.note(
                f"missing because of the engine: {count_noun(len(missing), 'episode')} ({names}{more}), most "
                f"often {most_frequent(missing)}. Run the same command again"
            )
        return 1 if missing else code
    finally:
        display.close()
        store.close()


def _episodes_per_batch(config: Config) -> int:
    return config.train.tasks_per_batch * config.rollout.group_size


def _name(number: int) -> str:
    return f"{COLLECTED}-{number}-0"


async def _collect(
    player: Player,
    config: Config,
    tasks: Sequence[Task],
    left: Sequence[int],
    total: int,
    store: RunFolder,
    display: Display,
) -> list[Failure]:
    """Play the episodes with these numbers. Consecutive ones have the same task, group_size each.

    Returns those that the engine failed: the next call may play them.
    """
    missing: list[Failure] = []
    player.scheduler.activity.report = CallLog(store, logged_seconds(store)).add_episode
    display.begin("collecting", total, total - len(left))

    def index_of(number: int) -> int:
        return number // config.rollout.group_size % len(tasks)

    def on_episode(index: int, outcome: Outcome) -> None:
        display.episode_done()
        if isinstance(outcome, Trajectory):
            store.add_trajectory(outcome)

    # An online run holds one batch in memory; a collection does the same.
    at_once, timing, answered = _episodes_per_batch(config), Timing(), False
    async with player.started(display) as scheduler:
        for start in range(0, len(left), at_once):
            numbers = left[start : start + at_once]
            indices = {index: tasks[index] for index in sorted({index_of(number) for number in numbers})}
            batch = [(number, indices[index_of(number)]) for number in numbers]
            scheduler.pool.quarantine.begin_batch()
            with timing.stage("rollout"):
                groups = await evaluate(
                    scheduler,
                    batch,
                    name=COLLECTED,
                    rollouts=1,
                    temperature=config.rollout.temperature,
                    on_episode=on_episode,
                    on_screenshot=store.prepare,
                )
            some_tasks = indices.keys() != {index_of(number) for number in left}
            report_failures(groups, display, some_tasks=some_tasks, answered=answered)
            answered = any(group.trajectories for group in groups)
            for failure in (failure for group in groups for failure in group.failures):
                if failure.where not in OF_ENGINE or any(map(failure.ended_by, LASTING)):
                    store.add_failure(failure)
                else:
                    missing.append(failure)
            done = total - len(left) + min(start + at_once, len(left))
            step = -(-done // at_once)
            store.log_metrics(step, {"episodes": done})  # `arpo compare` reads it for its progress bar
            store.log_timing(step, timing.take(len(groups)))
            store.offsets()  # flushes the files
    return missing


def _ended(store: RunFolder) -> set[str]:
    return {*store.episode_ids(), *(failure.episode_id for failure in store.failures())}


def _check_teacher(store: RunFolder, recorded: Config, config: Config) -> None:
    """Refuse to mix the episodes of two teachers, or of a teacher and the model."""
    before, now = _teacher(recorded), _teacher(config)
    if before != now:
        raise UserError(
            f"{store.folder}: {before} has played its episodes, not {now}. Resume with the engine.name and "
            "server.model of before, or choose another --run.dir"
        )


def _teacher(config: Config) -> str:
    if config.engine.name == "openai":
        return f"the server model {config.server.model}"
    return TEXT_ONLY.get(config.engine.name, "the model of model.path")


def _check_screenshots(store: RunFolder) -> None:
    """Refuse a damaged pack: the next screenshots would overwrite everything after the damage."""
    for episode in store.episodes():
        if not store.has_screenshots(episode):
            raise UserError(
                f"{store.folder / PACK}: damaged, the screenshots of episode {episode.episode_id!r} are "
                f"missing: {RESTORE_OR_LEAVE}"
            )


def _describe(store: RunFolder, threshold: float) -> str:
    """512 episodes, 143 successes, 3 could not be played; 19 of 32 tasks were both solved and not"""
    outcomes: dict[str, list[bool]] = {}
    for episode in store.episodes():
        success = is_example(episode.score, episode.malformed, threshold)
        outcomes.setdefault(episode.task_id, []).append(success)
    episodes, successes = (sum(map(count, outcomes.values())) for count in (len, sum))
    both = sum(any(each) and not all(each) for each in outcomes.values())
    failed = sum(1 for _ in store.failures())
    return (
        f"{store.folder}: {episodes} episodes, {successes} successes"
        + (f", {failed} could not be played" if failed else "")
        + f"; {both} of {len(outcomes)} tasks were both solved and not"
    )
