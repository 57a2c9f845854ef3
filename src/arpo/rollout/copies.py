"""Plays parts of a batch in copies of this process, one per core: for a small model on a CPU.

Its operations are too short for several threads. A copy has the weights, the environments and the cached
vision features of this process when the batch begins. It sends screenshots (PNG), finished episodes (JSON)
and at last new vision features (safetensors). This process plays all that a copy did not send, because an
episode failed or because the copy ended: so it meets the same error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from arpo.processes.fork import Fork, Send
from arpo.rollout.activity import Activity, EpisodeCalls
from arpo.rollout.agent import OnScreenshot
from arpo.storage.codec import READERS, trajectory_to_json
from arpo.storage.from_json import from_json
from arpo.types import Screenshot, Task, Trajectory

if TYPE_CHECKING:
    from arpo.rollout.scheduler import OnEpisode, Outcome, Scheduler

MAX_PROCESSES = 8  # each has a cache of keys and values
SILENCE = 120.0  # seconds without a step of any episode: such a copy hangs
MIN_EPISODES = 16  # of each process: fewer are played before a copy is ready

_SCREENSHOT, _EPISODE, _CALLS, _FEATURES = b"s", b"e", b"c", b"f"
_NAME = 64  # length of a sha256 in hexadecimal

Tasks = Sequence[tuple[int, Task]]


class Copies:
    """`model` plays. Its vision tower has a feature cache if it is frozen."""

    def __init__(self, model: Any) -> None:
        self.report: Callable[[str], None] = lambda text: None
        self._model = model

    def split(self, tasks: Tasks, group_size: int, parallel: int) -> list[Tasks]:
        """The tasks of each process; the first part is for this one. Part 0, 1, 1, 0, 0, 1, …

        So both of two parts get as many long tasks, also if every second one is long. All processes together
        play `parallel` episodes at a time.
        """
        import torch

        episodes = len(tasks) * group_size
        cores = min(torch.get_num_threads(), MAX_PROCESSES)
        count = min(cores, parallel, len(tasks), episodes // MIN_EPISODES)
        order = [*range(count), *reversed(range(count))] or [0]
        chosen = [order[number % len(order)] for number in range(len(tasks))]
        return [
            [task for task, part in zip(tasks, chosen, strict=True) if part == number]
            for number in range(max(1, count))
        ]

    @asynccontextmanager
    async def playing(
        self,
        scheduler: Scheduler,
        batch: str,
        parts: Sequence[Tasks],
        on_episode: OnEpisode,
        finished: Mapping[str, Trajectory],
        on_screenshot: OnScreenshot,
    ) -> AsyncIterator[dict[str, Trajectory]]:
        """Copies play one part each during the block. At its end, the yielded dict has their episodes by id.

        torch has one thread in every process meanwhile.
        """
        from arpo.models.cores import one_thread_per_operation

        received: dict[str, Trajectory] = {}

        def add(index: int, trajectory: Trajectory) -> None:
            received[trajectory.episode_id] = trajectory
            scheduler.pool.played(dict(tasks)[index])
            on_episode(index, trajectory)

        tasks = [task for part in parts for task in part]
        with one_thread_per_operation(), ExitStack() as running:
            forks = []
            try:
                for part in parts:
                    play = partial(self._play, scheduler, batch, part, finished)
                    forks.append(running.enter_context(Fork(play)))
            except OSError as error:  # the limit of processes, or memory
                self.report(f"cannot copy this process ({error}): its episodes are played here")
            async with asyncio.TaskGroup() as receiving:
                for fork in forks:
                    receiving.create_task(self._receive(fork, scheduler.activity, add, on_screenshot))
                yield received

    @property
    def _features(self) -> Any:
        return getattr(self._model.model.visual, "feature_cache", None)

    def _play(
        self, scheduler: Scheduler, batch: str, part: Tasks, finished: Mapping[str, Trajectory], send: Send
    ) -> None:
        """Runs in the copy."""
        from safetensors.torch import save

        def on_screenshot(screenshot: Screenshot, previous: Screenshot | None) -> None:
            name = previous.sha256 if previous is not None else "-" * _NAME
            send(_SCREENSHOT + name.encode() + screenshot.png)

        def on_episode(index: int, outcome: Outcome) -> None:
            if isinstance(outcome, Trajectory):
                send(_EPISODE + json.dumps([index, trajectory_to_json(outcome)]).encode())

        activity = Activity()
        activity.report = lambda calls: send(_CALLS + json.dumps(asdict(calls)).encode())
        features = self._features
        known = set(features.names() if features is not None else ())
        asyncio.run(
            replace(scheduler, activity=activity).play(
                batch, part, on_episode, finished, on_screenshot=on_screenshot
            )
        )
        names = [] if features is None else [name for name in features.names() if name not in known]
        send(_FEATURES + save({name: features.get(name) for name in names}))

    async def _receive(
        self,
        fork: Fork,
        activity: Activity,
        on_trajectory: Callable[[int, Trajectory], None],
        on_screenshot: OnScreenshot,
    ) -> None:
        from safetensors.torch import load

        screenshots: dict[str, Screenshot] = {}
        readers = {**READERS, Screenshot: screenshots.__getitem__}
        complete = False
        async for message in fork.messages(SILENCE):
            kind, content = message[:1], message[1:]
            if kind == _SCREENSHOT:
                screenshot = Screenshot.of(content[_NAME:])
                on_screenshot(screenshot, screenshots.get(content[:_NAME].decode()))
                screenshots[screenshot.sha256] = screenshot
            elif kind == _EPISODE:
                index, value = json.loads(content)
                on_trajectory(index, from_json(value, Trajectory, readers))
            elif kind == _CALLS:
                activity.add(from_json(json.loads(content), EpisodeCalls))
            else:
                complete = True
                for name, states in load(content).items():
                    self._features.put(name, states)
        if not complete:
            self.report(
                f"a copy of this process ended ({fork.exit_reason()}): its episodes are played here again"
            )
