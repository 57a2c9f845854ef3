"""Lessons for pretraining the base model: read a screen, click an element, solve a task.

Lessons use the seeds of "pretrain", never those of the task pool or the held-out tasks. Screens stay arrays
of palette indices; no image is encoded.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arpo.actions import Click, Fail, Finished, Point, render
from arpo.envs.desk.apps import APPS
from arpo.envs.desk.canvas import LAYOUT_HEIGHT, LAYOUT_WIDTH, Canvas
from arpo.envs.desk.desktop import Desktop, Element
from arpo.envs.desk.env import act
from arpo.envs.desk.goals import FEASIBLE, INFEASIBLE, Goal, compatible, next_step
from arpo.envs.desk.random_tasks import random_windows, random_world
from arpo.prompts.conversation import PromptTemplate
from arpo.prompts.rendering import Renderer
from arpo.types import Message, Screenshot

READ_INSTRUCTION = "Read the screen"
_UNLISTED_KINDS = ("app", "close")  # identical on every screen
_MAX_LISTED = 24
_MAX_STEPS = 16
_RANDOM_CLICKS = (0, 0, 0, 1, 2, 3, 5)  # before the lesson begins; one is drawn
_GOAL_COUNTS = (1, 1, 1, 1, 1, 1, 2, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One training sequence. `mask` marks the learned tokens; `frames` fill the image slots in order."""

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    frames: tuple[NDArray[np.uint8], ...]


class LessonGenerator:
    """Generates lessons in the prompt and tokens of the policy."""

    def __init__(self, renderer: Renderer, template: PromptTemplate) -> None:
        self._renderer = renderer
        self._system = Message(role="system", text=template.system)
        self._user = template.user
        # All screens have one size, so a blank one renders to the right number of image slots.
        blank = Screenshot.of(Canvas(LAYOUT_WIDTH, LAYOUT_HEIGHT).png())
        self._screen = Message(role="user", screenshot=blank)
        self._next_screen_ids = renderer.continuation(self._screen).token_ids

    def lesson(self, rng: random.Random) -> Lesson:
        """35% read the screen, 20% click one element, 45% solve a task."""
        desktop = _random_desktop(rng)
        kind = rng.random()
        if kind < 0.35:
            return self._lesson(READ_INSTRUCTION, [(_draw(desktop), list_elements(desktop))])
        if kind < 0.55:
            return self._click_lesson(rng, desktop)
        return self._task_lesson(rng, desktop)

    def _click_lesson(self, rng: random.Random, desktop: Desktop) -> Lesson:
        elements = desktop.visible_elements()
        labels = [element.label for element in elements]
        element = rng.choice([each for each in elements if each.label and labels.count(each.label) == 1])
        instruction = f"Click {_label_words(element)}"
        answer = render([Click(point=Point(*element.centre))], instruction)
        return self._lesson(instruction, [(_draw(desktop), answer)])

    def _task_lesson(self, rng: random.Random, desktop: Desktop) -> Lesson:
        goals = _random_goals(rng, desktop)
        turns = []
        for _ in range(_MAX_STEPS):
            step = next_step(desktop, goals)
            turns.append((_draw(desktop), render([step.action], step.thought)))
            act(desktop, step.action)
            if isinstance(step.action, Finished | Fail):
                break
        return self._lesson(", then ".join(goal.instruction for goal in goals), turns)

    def _lesson(self, instruction: str, turns: Sequence[tuple[Canvas, str]]) -> Lesson:
        user = Message(role="user", text=self._user.format(instruction=instruction))
        token_ids = list(self._renderer.render((self._system, user, self._screen)).token_ids)
        mask = [False] * len(token_ids)
        for i, (_, text) in enumerate(turns):
            if i:
                token_ids += self._next_screen_ids
                mask += [False] * len(self._next_screen_ids)
            answer = (*self._renderer.encode(text), self._renderer.end_of_turn_id)
            token_ids += answer
            mask += [True] * len(answer)
        return Lesson(
            token_ids=tuple(token_ids), mask=tuple(mask), frames=tuple(canvas.pixels for canvas, _ in turns)
        )


def _draw(desktop: Desktop) -> Canvas:
    return desktop.draw(LAYOUT_WIDTH, LAYOUT_HEIGHT)


def list_elements(desktop: Desktop) -> str:
    """The labels in the windows with their centres, in reading order: "Conf(63,21)Net(42,35)"."""
    elements = desktop.visible_elements()
    listed = [element for element in elements if element.label and element.kind not in _UNLISTED_KINDS]
    return "".join(_list_element(element) for element in listed[:_MAX_LISTED])


def _list_element(element: Element) -> str:
    x, y = element.centre
    return f"{_label_words(element)}{' on' if element.on else ''}({x},{y})"


def _label_words(element: Element) -> str:
    return " ".join(element.label.split())


def _random_desktop(rng: random.Random) -> Desktop:
    """A desktop with open windows, after some random clicks."""
    desktop = Desktop(random_world(rng), APPS)
    for window in random_windows(rng, rng.choice(list(APPS))):
        desktop.launch(**window)
    for _ in range(rng.choice(_RANDOM_CLICKS)):
        x, y = rng.choice(desktop.visible_elements()).centre
        rng.choice((desktop.click, desktop.click, desktop.click, desktop.double_click, desktop.right_click))(
            x, y
        )
    return desktop


def _random_goals(rng: random.Random, desktop: Desktop) -> list[Goal]:
    """One to three goals of the current desktop; in one case of ten, one infeasible goal."""
    if rng.random() < 0.1:
        return [rng.choice(list(INFEASIBLE.values())).sample(rng, desktop.world)]
    while True:
        families = rng.sample(list(FEASIBLE.values()), rng.choice(_GOAL_COUNTS))
        if compatible(families):
            try:
                return [family.sample(rng, desktop.world) for family in families]
            except (IndexError, ValueError):  # random clicks emptied the inbox or the sheet
                continue
