"""Asynchronous rollouts: groups are played without a pause while the learner trains (train.max_staleness).

`Admission` decides which groups may start and which are too old. A new group starts as soon as environments
are free. A finished group is stored at once, and waits for a batch. A group that is too old is cancelled, and
its task is played again before all others. Everything runs in the event loop; the learner has a thread.

Numbers of groups only grow. The episodes of group 17 are "group-17-0", "group-17-1", ….
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arpo.algorithms.admission import Admission
from arpo.errors import Outage, UserError
from arpo.evaluation.scoring import report_failures
from arpo.rollout.scheduler import Outcome
from arpo.storage.codec import GROUP
from arpo.tasks.order import TaskOrder
from arpo.tasks.sources import TaskIndex
from arpo.training.checkpoints import State, group_to_json
from arpo.training.run import Run
from arpo.types import Failure, Group, Task, Turn


@dataclass(slots=True, kw_only=True)
class _Playing:
    """A group in play."""

    number: int
    task: Task
    ended: list[Outcome] = field(default_factory=list)
    job: asyncio.Task[None] | None = None


class GroupStream:
    """A source of batches, like `LockStep`."""

    def __init__(self, run: Run, order: TaskOrder, tasks: TaskIndex) -> None:
        self._run, self._order = run, order
        self._tasks = tasks
        train = run.config.train
        self._admission = Admission(
            batch_size=train.tasks_per_batch,
            max_staleness=train.max_staleness,
            version=run.learner.weights().version,
        )
        self._taken = 0  # tasks taken from the order
        self._numbers = 0  # groups numbered so far
        self._queue: deque[tuple[int, Task]] = deque()  # to be played before the next task of the order
        self._playing: dict[int, _Playing] = {}
        self._episodes = 0  # unfinished ones of the groups in play
        self._finished: dict[int, Group] = {}
        self._closing: set[asyncio.Task[None]] = set()  # cancelled groups whose environments close
        self._dropped: list[int] = []  # numbers, since the last batch
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
        jobs = [one.job for one in self._playing.values() if one.job is not None]
        try:
            for job in jobs:
                job.cancel()
                await asyncio.sleep(0)  # a thousand environments close
        except asyncio.CancelledError:
            for job in jobs:
                job.cancel()
            raise
        await asyncio.gather(*jobs, *self._closing, return_exceptions=True)
        if self._unsaved and (kind is None or issubclass(kind, Outage)):
            await self._run.save()

    async def next_batch(self) -> list[Group] | None:
        """Wait until enough groups are finished. The end of a group, an error or a stop ends the wait."""
        run = self._run
        run.scheduler.pool.quarantine.begin_batch()
        size = min(run.config.train.tasks_per_batch, self._order.total - run.progress.tasks)
        with run.timing.stage("wait"):
            while self._admission.finished < size and self._error is None and not run.stopping:
                self._start_groups()
                self._changed.clear()
                await self._changed.wait()
        if self._error is not None and not (run.stopping and isinstance(self._error, Outage)):
            raise self._error
        return None if run.stopping else self._take(size)

    def _take(self, size: int) -> list[Group]:
        progress, version = self._run.progress, self._admission.version
        batch = [self._finished.pop(number) for number in self._admission.take(size)]
        self._run.store.log_dropped(progress.batch + 1, (f"{GROUP}-{number}" for number in self._dropped))
        self._metrics = {
            **_staleness(batch, version),
            "dropped_groups": float(len(self._dropped)),
            "dropped_episodes": float(len(self._dropped) * self._run.config.rollout.group_size),
            "waiting": float(self._admission.finished),
        }
        self._dropped = []
        progress.tasks += len(batch)
        progress.episodes += sum(len(group.trajectories) for group in batch)
        report_failures(batch, self._run.display, some_tasks=True)
        self._drop_stale()
        return batch

    def trained(self) -> None:
        self._admission.trained()
        self._start_groups()

    def _start_groups(self) -> None:
        """Start groups while environments are free and admission allows it: one per turn of the event loop.

        A thousand environments at once would block it for a tenth of a second.
        """
        if self._accepts() and (following := self._next_group()) is not None:
            number, task = following
            playing = self._playing[number] = _Playing(number=number, task=task)
            self._episodes += self._run.config.rollout.group_size
            self._admission.start(number)
            playing.job = asyncio.create_task(self._play(playing))
            asyncio.get_running_loop().call_soon(self._start_more)

    def _start_more(self) -> None:
        try:
            self._start_groups()
        except Exception as error:  # the boundary of a callback: next_batch raises it
            self._error = self._error or error
            self._changed.set()

    def _accepts(self) -> bool:
        playing = self._open and self._error is None and not self._run.stopping
        return playing and self._episodes < self._run.config.env.parallel and self._admission.may_start

    def _next_group(self) -> tuple[int, Task] | None:
        """Number and task of the next group; None if all tasks of the run are taken."""
        if self._queue:
            return self._queue.popleft()
        tasks = self._order.take(self._taken, 1)
        self._taken += len(tasks)
        return (self._new_number(), tasks[0]) if tasks else None

    def _new_number(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    async def _play(self, playing: _Playing) -> None:
        run = self._run

        def on_turn(turn: Turn) -> None:
            version = turn.completion.policy_version
            if playing.number in self._playing and self._admission.sampled(playing.number, version):
                self._drop_stale()

        def on_episode(_: int, outcome: Outcome) -> None:
            playing.ended.append(outcome)
            self._episodes -= playing.number in self._playing
            self._start_groups()

        try:
            [group] = await run.scheduler.run(
                GROUP,
                [(playing.number, playing.task)],
                on_episode,
                on_screenshot=run.store.prepare,
                on_turn=on_turn,
            )
            if playing.number in self._playing:
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
        self._admission.finish(group.index, _oldest(group))
        self._unsaved = True
        if not self._run.evaluations.running:  # it has a progress bar of its own
            for _ in range(self._run.config.rollout.group_size):
                self._run.display.episode_done()
        self._drop_stale()

    def _drop_stale(self) -> None:
        for number in self._admission.stale():
            self._drop(number)
        self._start_groups()

    def _drop(self, number: int) -> None:
        """Drop a group. Its task is played again before all others, as a group of another number."""
        progress = self._run.progress
        self._admission.forget(number)
        if (playing := self._playing.pop(number, None)) is not None:
            task = playing.task
            self._episodes -= self._run.config.rollout.group_size - len(playing.ended)
            for failure in (one for one in playing.ended if isinstance(one, Failure)):
                self._run.records.store_failure(failure)
            self._cancel(playing)
        else:
            task = self._tasks[self._finished.pop(number).task_id]
        self._queue.appendleft((self._new_number(), task))
        self._dropped.append(number)
        self._unsaved = True
        progress.dropped_groups += 1
        progress.dropped_episodes += self._run.config.rollout.group_size

    def _cancel(self, playing: _Playing) -> None:
        assert playing.job is not None
        playing.job.cancel()
        self._closing.add(playing.job)
        playing.job.add_done_callback(self._closing.discard)

    def metrics(self) -> Mapping[str, float]:
        return self._metrics

    def state(self) -> dict[str, Any]:
        """Groups in play are played again by a resumed run, before those that wait for a start.

        Raises the error of a group that is stored in part: a checkpoint would keep this part.
        """
        if self._store_error is not None:
            raise self._store_error
        self._unsaved = False
        unplayed = [(one.number, one.task) for one in self._playing.values()] + list(self._queue)
        return {
            "stream": {
                "taken": self._taken,
                "numbers": self._numbers,
                "unplayed": [[number, task.id] for number, task in unplayed],
                "finished": [group_to_json(group) for group in self._finished.values()],
                "dropped": self._dropped,
            }
        }

    def restore(self, state: State) -> None:
        stream = state.stream
        if stream is None:
            raise UserError(f"{self._run.store.folder}: a checkpoint of lock step: choose another --run.dir")
        self._taken, self._numbers = stream.taken, stream.numbers
        self._dropped = list(stream.dropped)
        self._queue.extend((number, self._tasks[task_id]) for number, task_id in stream.unplayed)
        for group in stream.finished:
            self._finished[group.index] = group
            self._admission.start(group.index)
            self._admission.finish(group.index, _oldest(group))
        for number in self._admission.stale():  # if train.max_staleness was lowered
            self._drop(number)

    def waiting_episodes(self) -> set[str]:
        return {one.episode_id for group in self._finished.values() for one in group.trajectories}


def _oldest(group: Group) -> int | None:
    """Version of the oldest token; None without episodes."""
    return min((one.policy_version for one in group.trajectories), default=None)


def _staleness(batch: Sequence[Group], version: int) -> dict[str, float]:
    """Mean and maximum over the sampled tokens of a batch that the learner trains on with this version."""
    trajectories = [trajectory for group in batch for trajectory in group.trajectories]
    versions = [
        sampled_by for one in trajectories for turn in one.turns for sampled_by in turn.completion.versions
    ]
    return {
        "staleness_mean": version - sum(versions) / len(versions) if versions else 0.0,
        "staleness_max": float(version - min(versions, default=version)),
    }
