"""The stored episodes of a run, with the facts that the report needs about each: phase, outcome, replay.

The id of an episode begins with its phase: "batch3-0-1" was played in the fourth batch, "eval12-train-0-0" in
the evaluation after 12 batches. In asynchronous training, "group-17-1" belongs to the batch that trained on
group 17, by batches.jsonl.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from arpo.algorithms.replay import ReplayBuffer, replay_rng
from arpo.config import Config
from arpo.envs.task_source import replay_key_of_run
from arpo.storage.codec import BATCH, EVALUATED, GROUP, StoredEpisode
from arpo.storage.run_folder import BATCHES, RunFolderReader
from arpo.types import Completion, Group, Screenshot, Trajectory, Turn

_PHASE = re.compile(rf"({BATCH}|{EVALUATED})(\d+)")
_BATCH_ID = re.compile(rf"{BATCH}(\d+)-(\d+)-\d+")
_GROUP_ID = re.compile(rf"{GROUP}-(\d+)-\d+")
_NO_IMAGE = Screenshot(b"", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One stored episode. `shown`: its screenshots are still stored, so the report can show it."""

    stored: StoredEpisode
    solved: bool
    shown: bool
    replayed_in: tuple[int, ...] = ()  # batches, counted from 1
    trained_in: int | None = None  # batch of an asynchronous run, counted from 0; None: dropped or waiting

    @property
    def id(self) -> str:
        return self.stored.episode_id

    @property
    def task(self) -> str:
        return self.stored.task_id

    @property
    def phase(self) -> str:
        first = self.id.partition("-")[0]
        return f"{BATCH}{self.trained_in}" if first == GROUP and self.trained_in is not None else first


def read_played(store: RunFolderReader, config: Config) -> list[Played]:
    """All stored episodes, in the order of the run."""
    stored = list(store.episodes())
    batches = {
        number: record["step"] - 1 for record in store.read_log(BATCHES) for number in record["groups"]
    }
    replays = find_replays(stored, config, batches)
    return [
        Played(
            stored=episode,
            solved=episode.score >= config.replay.threshold,
            shown=store.has_screenshots(episode),
            replayed_in=tuple(replays.get(episode.episode_id, ())),
            trained_in=(_place(episode.episode_id, batches) or (None,))[0],
        )
        for episode in stored
    ]


def phase_title(phase: str) -> str:
    """eval0: evaluation before training; eval12: evaluation after batch 12; batch0: training batch 1."""
    if phase == GROUP:
        return "training, in no batch"
    match = _PHASE.fullmatch(phase)
    if not match:
        return phase
    number = int(match[2])
    if match[1] == BATCH:
        return f"training batch {number + 1:,}"
    return f"evaluation after batch {number:,}" if number else "evaluation before training"


def phases(played: Iterable[Played], kind: str) -> dict[str, list[Played]]:
    """Episodes by phase, in the order of the run. `kind` is BATCH, EVALUATED, or "" for all phases."""
    found: dict[str, list[Played]] = {}
    for one in played:
        if one.phase.startswith(kind):
            found.setdefault(one.phase, []).append(one)
    return found


def find_replays(
    episodes: Sequence[StoredEpisode], config: Config, batches: Mapping[int, int]
) -> dict[str, list[int]]:
    """For each replayed success: its batches, counted from 1.

    The run folder does not record them. Replay is deterministic, so the same buffer with the same random
    numbers repeats its choices. `batches`: the batch of each group of an asynchronous run, counted from 0.
    """
    buffer = ReplayBuffer(config.replay, key=replay_key_of_run(config))
    used: dict[str, list[int]] = {}
    placed = [(place, one) for one in episodes if (place := _place(one.episode_id, batches))]
    placed.sort(key=lambda pair: pair[0])
    for batch, members in groupby(placed, key=lambda pair: pair[0][0]):
        groups: dict[int, list[Trajectory]] = {}
        for (_, index), one in members:
            groups.setdefault(index, []).append(outline(one))
        played = [
            Group(index=index, task_id=episodes[0].task_id, trajectories=tuple(episodes))
            for index, episodes in groups.items()
        ]
        for group in buffer.rescue(played, replay_rng(config.run.seed, batch), batch):
            for rescue in group.rescues:
                used.setdefault(rescue.stored_episode, []).append(batch + 1)
    return used


def _place(episode_id: str, batches: Mapping[int, int]) -> tuple[int, int] | None:
    """Batch, counted from 0, and index of the group of a training episode; None for all other episodes."""
    if match := _BATCH_ID.fullmatch(episode_id):
        return int(match[1]), int(match[2])
    match = _GROUP_ID.fullmatch(episode_id)
    return (batches[int(match[1])], int(match[1])) if match and int(match[1]) in batches else None


def outline(episode: StoredEpisode) -> Trajectory:
    """The parts of a trajectory that replay reads: ids, outcome, number of turns, policy version."""
    return Trajectory(
        episode_id=episode.episode_id,
        task_id=episode.task_id,
        turns=(_empty_turn(episode.policy_version),) * episode.steps,
        final=_NO_IMAGE,
        score=episode.score,
        malformed=episode.malformed,
        stop=episode.stop,
    )


@lru_cache(64)
def _empty_turn(version: int) -> Turn:
    completion = Completion(token_ids=(), logprobs=(), text="", finish="stop", versions=(version,))
    return Turn(screenshot=_NO_IMAGE, context=(), images=(), restart=True, completion=completion, actions=())


def by_task(played: Iterable[Played]) -> Mapping[str, list[Played]]:
    found: dict[str, list[Played]] = {}
    for one in played:
        found.setdefault(one.task, []).append(one)
    return found
