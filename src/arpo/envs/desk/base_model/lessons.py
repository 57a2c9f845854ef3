"""What the base model learns from: screens to read, things to point at, and solvers' episodes.

Every lesson comes from Desk's own seeds for this purpose, never from those of the task pool or the held-out
tasks. Screens stay arrays of palette indices; nothing here is encoded as a picture.
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

READ = "Read the screen"
_PLAIN = ("app", "close")  # the same on every screen
_MOST_READ = 24
_MOST_STEPS = 16
_WANDER = (0, 0, 0, 1, 2, 3, 5)  # clicks at random before the lesson begins
_GOALS = (1, 1, 1, 1, 1, 1, 2, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One sequence: tokens, which of them are learned, and the screens in its image slots."""

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    frames: tuple[NDArray[np.uint8], ...]


class LessonGenerator:
    """Makes lessons in the words and tokens that the policy itself will use."""

    def __init__(self, renderer: Renderer, template: PromptTemplate) -> None:
        self._renderer = renderer
        self._system = Message(role="system", text=template.system)
        self._user = template.user
        # Every screen has one size, so any picture of that size renders to the right number of slots.
        blank = Screenshot.of(Canvas(LAYOUT_WIDTH, LAYOUT_HEIGHT).png())
        self._look = Message(role="user", screenshot=blank)
        self._next_look = renderer.continuation(self._look).token_ids

    def lesson(self, rng: random.Random) -> Lesson:
        """A third each: read everything, point at one thing, do a task."""
        desktop = _some_desktop(rng)
        kind = rng.random()
        if kind < 0.35:
            return self._sequence(READ, [(desktop.draw(LAYOUT_WIDTH, LAYOUT_HEIGHT), listing(desktop))])
        if kind < 0.55:
            return self._pointing(rng, desktop)
        return self._doing(rng, desktop)

    def _pointing(self, rng: random.Random, desktop: Desktop) -> Lesson:
        labels = [part.label for part in desktop.visible_elements()]
        parts = [part for part in desktop.visible_elements() if part.label and labels.count(part.label) == 1]
        part = rng.choice(parts)
        answer = render([Click(point=Point(*part.centre))], f"Click {_words(part)}")
        return self._sequence(f"Click {_words(part)}", [(desktop.draw(LAYOUT_WIDTH, LAYOUT_HEIGHT), answer)])

    def _doing(self, rng: random.Random, desktop: Desktop) -> Lesson:
        goals = _some_goals(rng, desktop)
        turns = []
        for _ in range(_MOST_STEPS):
            step = next_step(desktop, goals)
            turns.append((desktop.draw(LAYOUT_WIDTH, LAYOUT_HEIGHT), render([step.action], step.thought)))
            act(desktop, step.action)
            if isinstance(step.action, Finished | Fail):
                break
        return self._sequence(", then ".join(goal.instruction for goal in goals), turns)

    def _sequence(self, instruction: str, turns: Sequence[tuple[Canvas, str]]) -> Lesson:
        user = Message(role="user", text=self._user.format(instruction=instruction))
        token_ids = list(self._renderer.render((self._system, user, self._look)).token_ids)
        mask = [False] * len(token_ids)
        for i, (_, text) in enumerate(turns):
            if i:
                token_ids += self._next_look
                mask += [False] * len(self._next_look)
            answer = (*self._renderer.encode(text), self._renderer.end_of_turn_id)
            token_ids += answer
            mask += [True] * len(answer)
        return Lesson(
            token_ids=tuple(token_ids), mask=tuple(mask), frames=tuple(canvas.pixels for canvas, _ in turns)
        )


def listing(desktop: Desktop) -> str:
    """What the windows show, with its place, in reading order."""
    named = [part for part in desktop.visible_elements() if part.label and part.kind not in _PLAIN][
        :_MOST_READ
    ]
    return "".join(_entry(part) for part in named)


def _entry(part: Element) -> str:
    x, y = part.centre
    return f"{_words(part)}{' on' if part.on else ''}({x},{y})"


def _words(part: Element) -> str:
    return " ".join(part.label.split())


def _some_desktop(rng: random.Random) -> Desktop:
    """A desktop in some state that a user could have left it in."""
    desktop = Desktop(random_world(rng), APPS)
    for window in random_windows(rng, rng.choice(list(APPS))):
        desktop.launch(**window)
    for _ in range(rng.choice(_WANDER)):
        x, y = rng.choice(desktop.visible_elements()).centre
        rng.choice((desktop.click, desktop.click, desktop.click, desktop.double_click, desktop.right_click))(
            x, y
        )
    return desktop


def _some_goals(rng: random.Random, desktop: Desktop) -> list[Goal]:
    """Goals that the desktop as it stands admits."""
    if rng.random() < 0.1:
        return [rng.choice(list(INFEASIBLE.values())).sample(rng, desktop.world)]
    while True:
        families = rng.sample(list(FEASIBLE.values()), rng.choice(_GOALS))
        if compatible(families):
            try:
                return [family.sample(rng, desktop.world) for family in families]
            except (IndexError, ValueError):  # an inbox or a sheet that wandering left empty
                continue
