"""Episodes of the training tasks by one model as it is, into a folder to learn from offline (`offline`).

As many as an online run of the same recipe would play. Each is stored when it ends, so a collection that was
stopped in any way goes on with what is missing; an episode that failed is counted, and stays what it is.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from arpo.algorithms.rewards import is_example
from arpo.config import INCIDENTAL, LEARNING, Config
from arpo.errors import UserError
from arpo.evaluation.evaluate import evaluate, sets_of_run, tell_failures
from arpo.reporting.display import Display, open_display
from arpo.rollout.scheduler import Outcome
from arpo.storage import checkpoint
from arpo.storage.run_folder import FAILURES, TRAJECTORIES, RunFolder
from arpo.training.build import assemble
from arpo.training.run import COLLECTED, Timing, check_recipe
from arpo.types import Task, Trajectory


def run_collection(config: Config) -> int:
    """`arpo collect`: begin the collection in run.dir or go on with it, and say what it holds."""
    store = RunFolder(Path(config.run.dir))
    display = open_display(sys.stdout)
    try:
        if (store.folder / checkpoint.CHECKPOINTS).is_dir():
            raise UserError(f"{store.folder}: holds a training run: collect into a --run.dir of its own")
        ended = _ended(store)
        if ended:
            check_recipe(store, config, lambda key: key.startswith((*INCIDENTAL, *LEARNING)))
        places = _places(config, sets_of_run(config, store.folder, bool(ended), display)["train"])
        if others := sorted(ended - places.keys()):
            raise UserError(
                f"{store.folder}: holds episodes that are not of these {len(places)}, {others[0]} for one: "
                "give train.epochs as before or more, or collect into a --run.dir of its own"
            )
        store.write_recipe(config)
        left = [(number, task) for number, (name, task) in enumerate(places.items()) if name not in ended]
        if left:
            asyncio.run(_collect(config, left, len(places), store, display))
        display.note(_describe(store, config.replay.threshold))
        return 0
    finally:
        display.close()
        store.close()


def _places(config: Config, tasks: Sequence[Task]) -> dict[str, Task]:
    """Every episode's name and task: each pass over the tasks plays every one of them group_size times."""
    epochs, copies = config.train.epochs, config.rollout.group_size
    played = [task for _ in range(epochs) for task in tasks for _ in range(copies)]
    return {f"{COLLECTED}-{number}-0": task for number, task in enumerate(played)}


async def _collect(
    config: Config, left: Sequence[tuple[int, Task]], of: int, store: RunFolder, display: Display
) -> None:
    scheduler = assemble(config).scheduler
    display.begin("collecting", of, of - len(left))

    def on_episode(index: int, outcome: Outcome) -> None:
        display.episode_done()
        if isinstance(outcome, Trajectory):
            store.add_trajectory(outcome)

    # As many at once as an online run holds in memory.
    at_once, timing = config.train.tasks_per_batch * config.rollout.group_size, Timing()
    for start in range(0, len(left), at_once):
        with timing.stage("rollout"):
            groups = await evaluate(
                scheduler,
                left[start : start + at_once],
                name=COLLECTED,
                rollouts=1,
                temperature=config.rollout.temperature,
                on_episode=on_episode,
            )
        tell_failures(groups, display)
        for failure in (failure for group in groups for failure in group.failures):
            store.add_failure(failure)
        done = of - len(left) + min(start + at_once, len(left))
        step = -(-done // at_once)
        store.log_metrics(step, {"episodes": done})  # `arpo compare` follows it
        store.log_timing(step, timing.taken(len(groups)))


def _ended(store: RunFolder) -> set[str]:
    return {*store.episode_ids(), *(failure["episode_id"] for failure in store.read_log(FAILURES))}


def _describe(store: RunFolder, threshold: float) -> str:
    """512 episodes, 143 successes, 3 could not be played; 19 of 32 tasks were both solved and not"""
    outcomes: dict[str, list[bool]] = {}
    for record in store.read_log(TRAJECTORIES):
        success = is_example(record["score"], record["malformed"], threshold)
        outcomes.setdefault(record["task_id"], []).append(success)
    episodes, successes = (sum(map(count, outcomes.values())) for count in (len, sum))
    both = sum(any(each) and not all(each) for each in outcomes.values())
    failed = sum(1 for _ in store.read_log(FAILURES))
    return (
        f"{store.folder}: {episodes} episodes, {successes} successes"
        + (f", {failed} could not be played" if failed else "")
        + f"; {both} of {len(outcomes)} tasks were both solved and not"
    )
