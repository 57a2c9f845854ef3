"""Asynchronous rollouts: groups are played without a pause while the learner trains (train.max_staleness).

Groups start in the order of their tasks, and batches take them in the same order: with batches of 4, batch 3
trains the groups 8 to 11, whichever ends first. So no group is overtaken, and none becomes too old: group 17
belongs to batch 5, and it starts at the earliest with the weights of S batches before. Its episodes are
"group-17-0", "group-17-1", ….

A new group starts as soon as environments are free. A finished group is stored at once, and waits for its
batch. Everything runs in the event loop; the learner has a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

from arpo.errors import Outage, UserError
from arpo.evaluation.scoring import report_failures
from arpo.rollout.scheduler import Outcome
from arpo.storage.codec import GROUP
from arpo.tasks.order import TaskOrder
from arpo.tasks.sources import TaskIndex
from arpo.training.checkpoints import State, group_to_json
from arpo.training.judged_scores import JudgedScores
from arpo.training.run import Run
from arpo.types import Group, Task


class GroupStream:
    """A source of batches, like `LockStep`."""

    def __init__(self, run: Run, order: TaskOrder, tasks: TaskIndex, scores: JudgedScores) -> None:
        self._run, self._order, self._scores = run, order, scores
        self._tasks = tasks
        self._started = 0  # groups started so far
        self._trained = 0  # groups in the weights of the engine
        self._queue: deque[tuple[int, Task]] = deque()  # of a resumed run: groups to be played again
        self._playing: dict[int, tuple[Task, asyncio.Task[None]]] = {}
        self._episodes = 0  # unfinished ones of the groups in play
        self._finished: dict[int, Group] = {}
        self._metrics: dict[str, float] = {}
        self._open = True
        self._error: Exception | None = None
        self._store_error: Exception | None = None  # a group is stored in part
        self._unsaved = False  # groups have ended since the last checkpoint
        self._changed = asyncio.Event()
        run.on_stop = self._changed.set

    async def __aenter__(self) -> GroupStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Cancel all groups in play and close their environments. Save the finished ones."""
        self._open = False
        jobs = [job for _, job in self._playing.values()]
        try:
            for job in jobs:
                job.cancel()
                await asyncio.sleep(0)  # a thousand environments close
        except asyncio.CancelledError:
            for job in jobs:
                job.cancel()
            raise
        await asyncio.gather(*jobs, return_exceptions=True)
        if self._unsaved and (kind is None or issubclass(kind, Outage)):
            await self._run.save()

    async def next_batch(self) -> list[Group] | None:
        """Wait until all groups of the batch are finished. An error or a stop ends the wait."""
        run = self._run
        run.scheduler.pool.quarantine.begin_batch()
        first, size = run.progress.tasks, run.config.train.tasks_per_batch
        batch = range(first, min(first + size, self._order.total))
        with run.timing.stage("wait"):
            while not self._finished.keys() >= {*batch} and self._error is None and not run.stopping:
                self._start_groups()
                self._changed.clear()
                await self._changed.wait()
        if self._error is not None and not (run.stopping and isinstance(self._error, Outage)):
            raise self._error
        return None if run.stopping else self._take(batch)

    def _take(self, numbers: range) -> list[Group]:
        progress, version = self._run.progress, self._run.learner.weights().version
        batch = [self._finished.pop(number) for number in numbers]
        self._metrics = {**_staleness(batch, version), "waiting": float(len(self._finished))}
        progress.tasks += len(batch)
        progress.episodes += sum(len(group.trajectories) for group in batch)
        report_failures(batch, self._run.display, some_tasks=True)
        return batch

    def trained(self) -> None:
        self._trained = self._run.progress.tasks
        self._start_groups()

    def _start_groups(self) -> None:
        """Start groups while environments are free: one per turn of the event loop.

        A thousand environments at once would block it for a tenth of a second.
        """
        if self._accepts() and (following := self._next_group()) is not None:
            number, task = following
            self._episodes += self._run.config.rollout.group_size
            self._playing[number] = task, asyncio.create_task(self._play(number, task))
            asyncio.get_running_loop().call_soon(self._start_more)

    def _start_more(self) -> None:
        try:
            self._start_groups()
        except Exception as error:  # the boundary of a callback: next_batch raises it
            self._error = self._error or error
            self._changed.set()

    def _accepts(self) -> bool:
        """Whether one more group may start.

        Its batch is at most S after the next one of the engine's weights: (S + 1) batches are untrained.
        """
        run, train = self._run, self._run.config.train
        playing = self._open and self._error is None and not run.stopping
        number = self._queue[0][0] if self._queue else self._started
        in_time = number < self._trained + (train.max_staleness + 1) * train.tasks_per_batch
        return playing and in_time and self._episodes < run.config.env.parallel

    def _next_group(self) -> tuple[int, Task] | None:
        """Number and task of the next group; None if all groups of the run have started."""
        if self._queue:
            return self._queue.popleft()
        tasks = self._order.take(self._started, 1)
        self._started += len(tasks)
        return (self._started - 1, tasks[0]) if tasks else None

    async def _play(self, number: int, task: Task) -> None:
        run = self._run

        def on_episode(_: int, outcome: Outcome) -> None:
            self._episodes -= 1
            self._start_groups()

        try:
            played = await run.scheduler.run(
                GROUP, [(number, task)], on_episode, on_screenshot=run.store.prepare
            )
            [group] = await self._scores.judge(played)
            self._finish(group)
        except Exception as error:  # the boundary of the group: next_batch raises it
            self._error = self._error or error
        finally:
            self._changed.set()

    def _finish(self, group: Group) -> None:
        try:
            self._run.records.store_group(group)
        except Exception as error:
            self._store_error = self._store_error or error
            raise
        self._order.record(group.trajectories)
        del self._playing[group.index]
        self._finished[group.index] = group
        self._unsaved = True
        if not self._run.evaluations.running:  # it has a progress bar of its own
            for _ in range(self._run.config.rollout.group_size):
                self._run.display.episode_done()

    def metrics(self) -> Mapping[str, float]:
        return self._metrics

    def state(self) -> dict[str, Any]:
        """Groups in play are played again by a resumed run, before those that wait for a start.

        Raises the error of a group that is stored in part: a checkpoint would keep this part.
        """
        if self._store_error is not None:
            raise self._store_error
        self._unsaved = False
        unplayed = [(number, task) for number, (task, _) in self._playing.items()] + list(self._queue)
        return {
            "stream": {
                "started": self._started,
                "unplayed": [[number, task.id] for number, task in unplayed],
                "finished": [group_to_json(group) for group in self._finished.values()],
            }
        }

    def restore(self, state: State) -> None:
        stream = state.stream
        if stream is None:
            raise UserError(f"{self._run.store.folder}: a checkpoint of lock step: choose another --run.dir")
        self._started, self._trained = stream.started, state.progress.tasks
        self._queue.extend((number, self._tasks[task_id]) for number, task_id in stream.unplayed)
        self._finished = {group.index: group for group in stream.finished}

    def waiting_episodes(self) -> set[str]:
        return {one.episode_id for group in self._finished.values() for one in group.trajectories}


def _staleness(batch: Sequence[Group], version: int) -> dict[str, float]:
    """Of the sampled tokens of a batch that the learner trains on with this version.

    A token is stale if it or an earlier one of its episode is of an older version, as in `samples`.
    """
    episodes = [
        [sampled_by for turn in trajectory.turns for sampled_by in turn.completion.versions]
        for group in batch
        for trajectory in group.trajectories
    ]
    versions = list(chain(*episodes))
    stale = sum(oldest < version for episode in episodes for oldest in accumulate(episode, min))
    return {
        "staleness_mean": version - sum(versions) / len(versions) if versions else 0.0,
        "staleness_max": float(version - min(versions, default=version)),
        "stale_fraction": stale / len(versions) if versions else 0.0,
    }
