"""Lessons for a judge: the question of `arpo judge` about an episode of a careless demonstrator.

The tasks have only goals and applications of desk:fresh. The model has acted on all others, but never judged
them. The reason of an answer is the solver's next step at the end of the episode:

    REASON: Click Save is left.
    VERDICT 0a1b2c3d: FAILURE
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from arpo.actions import (
    TERMINAL,
    Action,
    CallUser,
    Click,
    Direction,
    DoubleClick,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Point,
    RightClick,
    Scroll,
    Type,
    Wait,
)
from arpo.envs.desk.env import perform, set_up, task_score
from arpo.envs.desk.fresh import GoalMix
from arpo.envs.desk.goals import FAMILIES, from_json, next_step
from arpo.envs.desk.goals.base import Step
from arpo.envs.desk.heldout import TRAINING_APPLICATIONS, TRAINING_FAMILIES
from arpo.envs.desk.random_tasks import random_task, to_task
from arpo.prompts.judge_question import Question
from arpo.types import Completion, Screenshot, StopReason, Task, Trajectory, Turn
from tools.pretrain.carelessness import Carelessness, demonstrate
from tools.pretrain.word_canvas import WordCanvas, draw

SCREENSHOTS = 6  # as `arpo judge` shows by default
_MAX_STEPS = 15
_LEVELS = (0.0, 0.5, 1.0, 1.5)  # times the level of carelessness
_NO_ANSWER = Completion(token_ids=(), logprobs=(), text="", finish="stop", versions=())
_FIXED_LETTERS = 5  # of a phrase at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A question, its right answer, and the screens that it shows."""

    question: Question
    answer: str
    screens: tuple[WordCanvas, ...]


def judged_episode(rng: random.Random, goals: Sequence[float], level: float) -> Judged:
    """`goals`: relative frequencies of tasks with one, two, … goals. `level`: of carelessness."""
    [number] = rng.choices(range(1, len(goals) + 1), goals)
    families = [FAMILIES[name] for name in _mix(number).draw(rng)]
    task = to_task(random_task(rng, families, "judged", TRAINING_APPLICATIONS))
    faults, solution = Carelessness.of(level * rng.choice(_LEVELS)), from_json(task.evaluator["solution"])
    turns = demonstrate(rng, set_up(task), solution, faults, look=lambda _: None, max_steps=_MAX_STEPS)
    return judged(task, [step for _, step in turns])


@cache
def _mix(goals: int) -> GoalMix:
    return GoalMix(TRAINING_FAMILIES, (goals,))


def judged(task: Task, steps: Sequence[Step]) -> Judged:
    """The episode with these steps, performed again on the task's own desktop."""
    desktop, goals = set_up(task), from_json(task.evaluator["solution"])
    shots: list[Screenshot] = []
    canvases: dict[str, WordCanvas] = {}

    def look() -> Screenshot:
        canvas = draw(desktop)
        shot = Screenshot.of(canvas.png())
        canvases[shot.sha256] = canvas
        return shot

    for step in steps:
        shots.append(look())
        perform(desktop, step.action)
    success = task_score(task, desktop.world, steps[-1].action) == 1
    try:
        following = next_step(desktop, goals)
        left = "" if isinstance(following.action, TERMINAL) else following.thought
    except (AssertionError, IndexError, KeyError, StopIteration):  # a fault has removed its target
        left = ""
    episode = _episode(task.id, shots, [step.action for step in steps], look())
    question = Question(instruction=task.instruction, episode=episode, screenshots=SCREENSHOTS)
    shown = [
        part for message in question.messages() for part in message.parts if isinstance(part, Screenshot)
    ]
    return Judged(
        question=question,
        answer=_answer(question.mark, success, left),
        screens=tuple(canvases[shot.sha256] for shot in shown),
    )


def _answer(mark: str, success: bool, left: str) -> str:
    if success:
        return f"REASON: Nothing is left to do.\nVERDICT {mark}: SUCCESS"
    return f"REASON: {f'{left} is left' if left else 'The end is wrong'}.\nVERDICT {mark}: FAILURE"


def _episode(
    task_id: str, shots: Sequence[Screenshot], actions: Sequence[Action], final: Screenshot
) -> Trajectory:
    turns = [
        Turn(
            screenshot=shot,
            context=(),
            images=(),
            restart=False,
            completion=_NO_ANSWER,
            actions=(action,),
        )
        for shot, action in zip(shots, actions, strict=True)
    ]
    return Trajectory(
        episode_id="judged",
        task_id=task_id,
        turns=tuple(turns),
        final=final,
        score=0.0,  # not part of the question
        malformed=False,
        stop=StopReason.FINISHED,
    )


def question_phrases() -> tuple[str, ...]:
    """The fixed parts of every question and answer. With a token for each, a question has 600 tokens less."""
    shot, point = Screenshot.of(WordCanvas().png()), Point(0, 0)
    actions: tuple[Action, ...] = (
        Click(point=point), DoubleClick(point=point), RightClick(point=point), Drag(start=point, end=point),
        *(Scroll(point=point, direction=way) for way in Direction), Type(text="", submit=True),
        Hotkey(keys=("a",)), Wait(), Finished(), Fail(), CallUser(),
    )  # fmt: skip
    episode = _episode("", [shot] * len(actions), actions, shot)
    question = Question(instruction="", episode=episode, screenshots=1)
    answers = [_answer(question.mark, success, "") for success in (True, False)]
    parts = [part for message in question.messages() for part in message.parts if isinstance(part, str)]
    # With one screenshot, the question names only the last moment.
    texts = (*parts, "\nThe screen before step 1:\n", *answers)
    return tuple(dict.fromkeys(each for text in texts for each in _fixed_parts(text, question.mark)))


def _fixed_parts(text: str, mark: str) -> Iterator[str]:
    """The parts of a text without its mark, numbers and quoted text."""
    for part in re.split(rf'{mark}|[0-9]+|"[^"]*"', text):
        for line in part.splitlines(keepends=True):
            if sum(map(str.isalpha, line)) >= _FIXED_LETTERS:
                yield line
