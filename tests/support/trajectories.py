"""Small literal episodes for the tests of learning: tokens and log-probabilities as written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arpo.algorithms.samples import build_updates
from arpo.config import LossConfig
from arpo.types import Completion, Failure, Group, Sample, Screenshot, StopReason, Trajectory, Turn

Updates = tuple[tuple[Sample, ...], ...]
SCREEN = Screenshot.of(b"not a picture, but named by its content")


def turn(
    context: Sequence[int],
    sampled: Sequence[int],
    logprobs: Sequence[float] | None = None,
    *,
    restart: bool = False,
    images: Sequence[Screenshot] = (SCREEN,),
    version: int = 0,
    versions: Sequence[int] = (),
) -> Turn:
    """`versions` are those of the tokens; without them, all have `version`."""
    return Turn(
        screenshot=SCREEN,
        context=tuple(context),
        images=tuple(images),
        restart=restart,
        completion=Completion(
            token_ids=tuple(sampled),
            logprobs=tuple(logprobs or [-1.0] * len(sampled)),
            text="",
            finish="stop",
            versions=tuple(versions) or (version,) * len(sampled),
        ),
        actions=(),
    )


def trajectory(
    score: float,
    *turns: Turn,
    name: str = "e",
    task: str = "t",
    malformed: bool = False,
    version: int = 0,
) -> Trajectory:
    """Without turns: one turn of two sampled tokens."""
    return Trajectory(
        episode_id=name,
        task_id=task,
        turns=turns or (turn([1, 2], [3, 4], restart=True, version=version),),
        final=SCREEN,
        score=score,
        malformed=malformed,
        stop=StopReason.PARSE_ERROR if malformed else StopReason.FINISHED,
    )


def group(*trajectories: Trajectory, index: int = 0, task: str = "t", failures: int = 0) -> Group:
    failed = Failure(episode_id="f", task_id=task, kind="EnvError", where="step", message="gone", attempts=3)
    return Group(index=index, task_id=task, trajectories=trajectories, failures=(failed,) * failures)


def scored(*scores: float, index: int = 0, task: str = "t", version: int = 0) -> Group:
    """A group of plain episodes named by task, group index and place: "t-0-1"."""
    return group(
        *(
            trajectory(score, name=f"{task}-{index}-{place}", task=task, version=version)
            for place, score in enumerate(scores)
        ),
        index=index,
        task=task,
    )


def all_updates(groups: Sequence[Group], loss: LossConfig, **settings: Any) -> Updates:
    """All samples of `build_updates`."""
    return tuple(map(tuple, build_updates(groups, loss, **settings)))
