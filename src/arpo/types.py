"""The vocabulary of the house: what crosses the walls between its rooms.

Values only: frozen, made once, complete from the start. Nothing here acts, reads a file or knows torch.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from arpo.actions import Action

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thing to do, in OSWorld's schema: how to set it up, what to ask for, how to judge the end state."""

    id: str
    instruction: str
    snapshot: str
    config: tuple[Json, ...]
    evaluator: Json
    related_apps: tuple[str, ...] = ()
    domain: str = ""  # the heading that a list gives it


@dataclass(frozen=True, slots=True)
class Screenshot:
    """A lossless picture of the screen, named by its content."""

    png: bytes = field(repr=False)
    sha256: str

    @classmethod
    def of(cls, png: bytes) -> Screenshot:
        return cls(png, hashlib.sha256(png).hexdigest())

    @property
    def size(self) -> tuple[int, int]:
        """(width, height), read from the PNG header."""
        width, height = struct.unpack(">II", self.png[16:24])
        return width, height


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    screenshot: Screenshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What an environment shows after one answer. `terminated`: the environment itself ended the episode."""

    observation: Observation
    terminated: bool = False


class StopReason(StrEnum):
    """Why an episode ended: the model's doing or the rules'. A fault is a Failure instead."""

    FINISHED = "finished"  # the model said so: finished()
    FAIL = "fail"  # the model judged the task infeasible: error_env()
    CALL_USER = "call_user"  # the model asked for a person
    TERMINATED = "terminated"  # the environment ended it
    MAX_STEPS = "max_steps"
    PARSE_ERROR = "parse_error"  # the answer is not in the action language
    LENGTH = "length"  # the answer was cut at its token limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the conversation. `token_ids` is a sampled answer itself, never tokenised again."""

    role: str  # system | user | assistant
    text: str = ""
    screenshot: Screenshot | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Everything the model sees before one answer. An engine uses the form that it understands."""

    episode_id: str
    token_ids: tuple[int, ...]
    images: tuple[Screenshot, ...]  # one for each image slot in token_ids, in order
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample one answer. `seed` alone decides the draws: no generator is shared between requests."""

    temperature: float
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer as it was sampled: these tokens are the ones that are trained.

    logprobs are the engine's, of each sampled token, at the sampling temperature. The end-of-turn token is
    part of the answer when finish is "stop"; `text` is the answer without it.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: str  # stop | length
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One look and one answer.

    `context` are the tokens between the previous answer and this one, and `images` the screenshots whose
    slots are in it. Where `restart` is true the sequence begins anew with this context (the first turn, and
    each turn after the window of screenshots slid); else it continues the turn before.
    """

    screenshot: Screenshot  # what the model looked at, newest
    context: tuple[int, ...]
    images: tuple[Screenshot, ...]
    restart: bool
    completion: Completion
    actions: tuple[Action, ...]  # empty when the answer did not parse
    error: str = ""  # why it did not parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One whole episode. `score` is the checker's verdict in [0, 1]; `malformed`: an answer did not parse."""

    episode_id: str
    task_id: str
    turns: tuple[Turn, ...]
    final: Screenshot
    score: float
    malformed: bool
    stop: StopReason

    @property
    def policy_version(self) -> int:
        """The oldest policy that took part."""
        return min(turn.completion.policy_version for turn in self.turns)

    @property
    def sampled_tokens(self) -> int:
        return sum(len(turn.completion.token_ids) for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An episode that could not be carried out. Data, counted, never a reward."""

    episode_id: str
    task_id: str
    kind: str  # the error's class name
    where: str  # start | step | evaluate | close | generate
    message: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """One place of a group that replay took: from whom, for which stored success, how many versions old."""

    index: int
    replaced_episode: str
    stored_episode: str
    age: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The episodes of one task in one batch. Failures leave it smaller; `rescues` tell what replay did."""

    index: int  # place in the batch
    task_id: str
    trajectories: tuple[Trajectory, ...]
    failures: tuple[Failure, ...] = ()
    rescues: tuple[Rescue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training sequence: `mask` is true exactly at sampled tokens.

    `behaviour_logprobs` are the engine's, at mask positions in order.
    """

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    images: tuple[Screenshot, ...]
    behaviour_logprobs: tuple[float, ...]
    advantage: float
    weight: float  # of each sampled token's term in the update's objective, normalisation included
    replayed: bool
