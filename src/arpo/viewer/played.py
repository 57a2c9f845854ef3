"""The stored episodes of a run, with the facts that the report needs about each: phase, outcome, replay.

The id of an episode begins with its phase: "batch3-0-1" was played in the fourth batch, "eval12-train-0-0" in
the evaluation after 12 batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from arpo.algorithms.replay import ReplayBuffer, replay_rng
from arpo.config import Config, ReplayConfig
from arpo.storage.codec import BATCH, EVALUATED, StoredEpisode
from arpo.storage.run_folder import RunFolderReader
from arpo.types import Completion, Group, Screenshot, Trajectory, Turn

_PHASE = re.compile(rf"({BATCH}|{EVALUATED})(\d+)")
_BATCH_ID = re.compile(rf"{BATCH}(\d+)-(\d+)-\d+")
_NO_IMAGE = Screenshot(b"", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One stored episode. `shown`: its screenshots are still stored, so the report can show it."""

    stored: StoredEpisode
    solved: bool
    shown: bool
    replayed_in: tuple[int, ...] = ()  # batches, counted from 1

    @property
    def id(self) -> str:
        return self.stored.episode_id

    @property
    def task(self) -> str:
        return self.stored.task_id

    @property
    def phase(self) -> str:
        return self.id.partition("-")[0]


def read_played(store: RunFolderReader, config: Config) -> list[Played]:
    """All stored episodes, in the order of the run."""
    stored = list(store.episodes())
    replays = find_replays(stored, config.replay, config.run.seed)
    return [
        Played(
            stored=episode,
            solved=episode.score >= config.replay.threshold,
            shown=store.has_screenshots(episode),
            replayed_in=tuple(replays.get(episode.episode_id, ())),
        )
        for episode in stored
    ]


def phase_title(phase: str) -> str:
    """eval0: evaluation before training; eval12: evaluation after batch 12; batch0: training batch 1."""
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


def find_replays(episodes: Sequence[StoredEpisode], config: ReplayConfig, seed: int) -> dict[str, list[int]]:
    """For each success that replay used: the batches that used it, counted from 1.

    The run folder does not record them. Replay is deterministic, so the same buffer with the same random
    numbers repeats its choices.
    """
    buffer, used = ReplayBuffer(config), dict[str, list[int]]()
    numbered = [(match, one) for one in episodes if (match := _BATCH_ID.fullmatch(one.episode_id))]
    for batch, members in groupby(numbered, key=lambda pair: int(pair[0][1])):
        groups: dict[int, list[Trajectory]] = {}
        for match, one in members:
            groups.setdefault(int(match[2]), []).append(_outline(one))
        played = [
            Group(index=index, task_id=episodes[0].task_id, trajectories=tuple(episodes))
            for index, episodes in groups.items()
        ]
        for group in buffer.rescue(played, replay_rng(seed, batch), batch):
            for rescue in group.rescues:
                used.setdefault(rescue.stored_episode, []).append(batch + 1)
    return used


def _outline(episode: StoredEpisode) -> Trajectory:
    """The parts of a trajectory that replay reads: ids, outcome, number of turns, policy version."""
    completion = Completion(
        token_ids=(), logprobs=(), text="", finish="stop", versions=(episode.policy_version,)
    )
    turn = Turn(screenshot=_NO_IMAGE, context=(), images=(), restart=True, completion=completion, actions=())
    return Trajectory(
        episode_id=episode.episode_id,
        task_id=episode.task_id,
        turns=(turn,) * episode.steps,
        final=_NO_IMAGE,
        score=episode.score,
        malformed=episode.malformed,
        stop=episode.stop,
    )


def by_task(played: Iterable[Played]) -> Mapping[str, list[Played]]:
    found: dict[str, list[Played]] = {}
    for one in played:
        found.setdefault(one.task, []).append(one)
    return found
