"""Data types exchanged between modules.

All types are immutable and complete when constructed. This module needs no torch and reads no files.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from arpo.actions import Action

Json = Mapping[str, Any]

# Limits of screens and screenshots, in pixels.
MIN_SCREEN_SIDE = 8
MAX_SCREEN_SIDE = 16_383  # of WebP, the format of stored screenshots
MAX_SCREEN_PIXELS = 2**25  # an 8K screen (7680x4320) has 33 million
MAX_ASPECT_RATIO = 200  # of Qwen-VL models

# For error messages.
PNG_BYTES = (
    'PNG bytes of a PIL image: `buffer = io.BytesIO(); image.save(buffer, "PNG"); png = buffer.getvalue()`'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task in OSWorld's schema: setup steps, instruction for the model, and checker of the end state.

    `solution` is for `arpo check-env` alone: one answer per step, in the pixels of the screenshots, such as
    "click(start_box='(105,63)')". No model sees it.

    >>> task = Task(
    ...     id="pool-040",
    ...     instruction="Set the language to Greek",
    ...     snapshot="SetLanguage",
    ...     config=({"type": "open", "parameters": {"app": "Conf", "column": 8, "row": 2}},),
    ...     evaluator={"func": "desk_state", "expected": {"rules": {"conf": {"Lang": "Greek"}}}},
    ...     related_apps=("Conf",),
    ...     domain="Conf",
    ... )
    """

    id: str
    instruction: str
    snapshot: str
    config: tuple[Json, ...]
    evaluator: Json
    related_apps: tuple[str, ...] = ()
    domain: str = ""  # its key in a task list {domain: [id, …]}
    solution: tuple[str, ...] = ()

    @property
    def has_evaluator(self) -> bool:
        """False for {"func": "none"}: only a judge can score the task (reward.judge)."""
        return bool(self.evaluator.get("func") != "none")

    @property
    def content(self) -> str:
        """The instruction and the set-up as text: equal for two tasks that differ in their ids only."""
        return json.dumps([self.instruction, self.config], sort_keys=True)


def screen_fault(width: int, height: int) -> str:
    """The violated limit, as in "must have sides of 8 to 16,383 pixels"; "" for an allowed size."""
    short, long = sorted((width, height))
    if short < MIN_SCREEN_SIDE or long > MAX_SCREEN_SIDE:
        return f"must have sides of {MIN_SCREEN_SIDE} to {MAX_SCREEN_SIDE:,} pixels"
    if width * height > MAX_SCREEN_PIXELS:
        return f"must have at most {MAX_SCREEN_PIXELS:,} pixels"
    if long > MAX_ASPECT_RATIO * short:
        return f"must not have one side over {MAX_ASPECT_RATIO} times the other"
    return ""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Screenshot:
    """A lossless image of the screen, identified by the SHA-256 of its PNG bytes.

    >>> Screenshot.of(png).size  # png: bytes of a 1920x1080 image
    (1920, 1080)
    """

    png: bytes = field(repr=False)
    sha256: str

    @classmethod
    def of(cls, png: bytes) -> Screenshot:
        if not isinstance(png, bytes | bytearray | memoryview):
            raise TypeError(f"Screenshot.of takes the bytes of a PNG, not {type(png).__name__}; {PNG_BYTES}")
        return cls(png, hashlib.sha256(png).hexdigest())

    @property
    def size(self) -> tuple[int, int]:
        """(width, height), read from the PNG header."""
        width, height = struct.unpack(">II", self.png[16:24])
        return width, height


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The screen. `instruction` replaces that of the task, if the first observation has one."""

    screenshot: Screenshot
    instruction: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The screen after one answer. `terminated`: the environment has ended the episode."""

    observation: Observation
    terminated: bool = False


class StopReason(StrEnum):
    """Reason why an episode ended normally. If the environment or the engine fails, there is a Failure."""

    FINISHED = "finished"  # the model called finished(), or its agent program ended
    FAIL = "fail"  # the model called error_env(): it judged the task infeasible
    CALL_USER = "call_user"  # the model called call_user()
    TERMINATED = "terminated"  # the environment ended the episode
    MAX_STEPS = "max_steps"
    PARSE_ERROR = "parse_error"  # the answer is not in the action language
    LENGTH = "length"  # the answer reached its token limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the conversation. For a sampled answer, `token_ids` are its exact tokens.

    The screenshot follows the text, or comes before it (`image_first`). `more` follows both.
    """

    role: str  # system | user | assistant
    text: str = ""
    screenshot: Screenshot | None = None
    token_ids: tuple[int, ...] | None = None
    image_first: bool = False
    more: tuple[str | Screenshot, ...] = ()

    @property
    def parts(self) -> tuple[str | Screenshot, ...]:
        """Texts and screenshots in the order of the prompt."""
        shown = () if self.screenshot is None else (self.screenshot,)
        return (*shown, self.text, *self.more) if self.image_first else (self.text, *shown, *self.more)

    @property
    def images(self) -> tuple[Screenshot, ...]:
        return tuple(part for part in self.parts if isinstance(part, Screenshot))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The model's input for one answer, as tokens with images and as messages. An engine uses either form.

    >>> prompt = Prompt(
    ...     episode_id="batch-3-0-1",  # batch 3, group 0, episode 1
    ...     token_ids=(1, 5, 9, 9, 6),  # 9: image token; this image has two
    ...     images=(shot,),
    ...     messages=(Message(role="user", text="Set the language to Greek", screenshot=shot),),
    ... )
    """

    episode_id: str
    token_ids: tuple[int, ...]
    images: tuple[Screenshot, ...]  # in the order of their tokens in token_ids
    messages: tuple[Message, ...]
    instruction: str = ""  # of the task, without the prompt around it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Parameters for sampling one answer. Its random numbers depend on `seed` alone."""

    temperature: float
    max_tokens: int
    seed: int
    alternatives: int = 0  # so many other tokens are returned with each sampled one


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled answer. Training uses exactly these tokens.

    `logprobs` are the engine's log-probabilities of the tokens at the sampling temperature. `versions` are
    the policy versions that sampled them: the weights may change within an answer. Both are empty if another
    model gave the answer (a teacher: `arpo collect` with a chat server). If finish is "stop", the
    last token is the end-of-turn token; `text` does not contain it. `alternatives` has the most likely other
    tokens for each token, with their log-probabilities; it is empty if the sampling asked for none.

    >>> completion = Completion(
    ...     token_ids=(21, 22, 2),  # 2: end of turn
    ...     logprobs=(-0.1, -0.7, -0.01),
    ...     text="Action: wait()",
    ...     finish="stop",
    ...     versions=(3, 3, 4),
    ... )
    >>> completion.policy_version
    3
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: str  # stop | length
    versions: tuple[int, ...]
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()

    @property
    def policy_version(self) -> int:
        """The oldest version of its tokens; 0 without tokens."""
        return min(self.versions, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One screenshot and the model's answer to it.

    `context`: prompt tokens since the previous answer; `images`: the screenshots in it. If `restart` is true,
    a new sequence begins with this context: in the first turn, and when old screenshots leave the window.
    Otherwise the sequence of the previous turn continues, or that of turn number `after`: an agent program
    may go on with an older one. Such a program may also ask the model without a screenshot or without acting.

    >>> first = Turn(
    ...     screenshot=shot,
    ...     context=(1, 5, 9, 9, 6),
    ...     images=(shot,),
    ...     restart=True,
    ...     completion=completion,  # tokens (21, 22, 2)
    ...     actions=(Wait(),),
    ... )
    >>> second = replace(first, context=(5, 9, 9, 6), restart=False)
    """

    screenshot: Screenshot  # the newest one in the prompt; of an agent program: the current one
    context: tuple[int, ...]
    images: tuple[Screenshot, ...]
    restart: bool
    completion: Completion
    actions: tuple[Action, ...]  # empty when the answer did not parse
    error: str = ""  # message of the ParseError
    after: int = 0  # counted from 1; 0: the previous turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One complete episode.

    `score`: result of the task's checker, in [0, 1]. `malformed`: an answer did not parse or was cut.

    >>> trajectory = Trajectory(
    ...     episode_id="batch-3-0-1",
    ...     task_id="pool-040",
    ...     turns=(first, second),  # 3 sampled tokens each
    ...     final=shot,
    ...     score=1.0,
    ...     malformed=False,
    ...     stop=StopReason.MAX_STEPS,
    ... )
    >>> trajectory.policy_version, trajectory.sampled_tokens
    (3, 6)
    """

    episode_id: str
    task_id: str
    turns: tuple[Turn, ...]
    final: Screenshot
    score: float
    malformed: bool
    stop: StopReason
    instruction: str = ""  # of the environment, in place of the task's
    evaluated: float | None = None  # with reward.judge: the evaluator's own score, if the task has one

    @property
    def policy_version(self) -> int:
        """The oldest policy version of its tokens."""
        return min(turn.completion.policy_version for turn in self.turns)

    @property
    def sampled_tokens(self) -> int:
        return sum(len(turn.completion.token_ids) for turn in self.turns)

    def sequences(self) -> list[list[int]]:
        """The token sequences in the order of their first turns, each as the indices of its turns.

        Raises ValueError if a turn continues one that is not the last of its sequence.
        """
        by_end: dict[int, list[int]] = {}
        found: list[list[int]] = []
        for index, turn in enumerate(self.turns):
            if turn.restart:
                found.append([])
                by_end[index] = found[-1]
            elif (end := turn.after - 1 if turn.after else index - 1) in by_end:
                by_end[index] = by_end.pop(end)
            else:
                raise ValueError(f"turn {index + 1} continues turn {end + 1}, which ends no sequence")
            by_end[index].append(index)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An episode that an environment or engine fault ended. It is counted and never becomes a reward.

    >>> failure = Failure(
    ...     episode_id="batch-3-0-3",
    ...     task_id="pool-040",
    ...     kind="EnvTimeout",
    ...     where="step",
    ...     message="no answer within 60 s",
    ...     attempts=3,
    ...     place="my_env.py:14",
    ...     host="http://10.0.0.7:8700",
    ... )
    """

    episode_id: str
    task_id: str
    kind: str  # the error's class name
    where: str  # start | step | evaluate | close | generate | agent | judge
    message: str
    attempts: int
    place: str = ""  # file and line in the user's code
    host: str = ""  # address of the environment host or server; "": this machine

    def ended_by(self, fault: type[Exception]) -> bool:
        """Whether an error of exactly this class ended the episode."""
        return self.kind == fault.__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """One replacement by replay: a stored success took the position of a failed episode in its group.

    >>> rescue = Rescue(
    ...     index=1,
    ...     replaced_episode="batch-6-0-1",
    ...     stored_episode="batch-3-0-1",
    ...     age=3,
    ... )
    """

    index: int  # position in Group.trajectories
    replaced_episode: str
    stored_episode: str
    age: int  # current policy version minus version of the stored episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The episodes of one task in one batch. Failed ones are not in `trajectories`.

    >>> group = Group(
    ...     index=0,
    ...     task_id="pool-040",
    ...     trajectories=(trajectory, replace(trajectory, episode_id="batch-3-0-2", score=0.0)),
    ...     failures=(failure,),
    ... )
    """

    index: int  # position in the batch
    task_id: str
    trajectories: tuple[Trajectory, ...]
    failures: tuple[Failure, ...] = ()
    rescues: tuple[Rescue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Position of sampled tokens: which answer of which episode, and how many tokens it has."""

    episode_id: str
    turn: int  # counted from 1
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training sequence. `mask` is 1 at sampled tokens; `behaviour_logprobs` has one value for each.

    It has none if another model gave some of the answers.

    The successful trajectory of the group above, with loss.advantage = "grpo":

    >>> sample = Sample(
    ...     token_ids=(1, 5, 9, 9, 6, 21, 22, 2, 5, 9, 9, 6, 21, 22, 2),
    ...     mask=bytes((0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1)),
    ...     images=(shot, shot),
    ...     behaviour_logprobs=(-0.1, -0.7, -0.01, -0.1, -0.7, -0.01),
    ...     advantage=1.0,
    ...     weight=1 / 12,  # 1 group in the update, 2 trajectories in the group, 6 sampled tokens
    ...     replayed=False,
    ...     kl_weight=1 / 12,
    ...     answers=tuple(Answer(episode_id="batch-3-0-1", turn=turn, tokens=3) for turn in (1, 2)),
    ... )
    """

    token_ids: tuple[int, ...]
    mask: Sequence[int]  # bytes, for long sequences
    images: tuple[Screenshot, ...]
    behaviour_logprobs: tuple[float, ...]  # the engine's, as in Completion
    advantage: float
    weight: float  # factor of each sampled token in the objective, all normalisation included
    replayed: bool
    kl_weight: float = 0.0  # the same in the KL term; 0 if replayed
    teacher_weight: float = 0.0  # the same in the loss of a teacher's sample, whose `weight` is 0
    staleness: tuple[int, ...] = ()  # learner's version minus the oldest up to each sampled token; (): all 0
    answers: tuple[Answer, ...] = ()  # of the sampled tokens, in order; the learner does not need them

    @property
    def sampled_tokens(self) -> int:
        return self.mask.count(1)
