"""Lessons for pretraining the base model: questions about a screen, and demonstrations of tasks.

Lessons use the seeds of "pretrain", never those of the task pool or the held-out tasks. Screens stay arrays
of palette indices; no image is encoded.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from arpo.actions import render
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.goals import FEASIBLE, INFEASIBLE, Goal, compatible
from arpo.prompts.rendering import Renderer
from arpo.prompts.templates import PromptTemplate
from arpo.types import Message, Screenshot
from tools.pretrain.carelessness import Carelessness, demonstrate
from tools.pretrain.judging import Judged, judged_episode
from tools.pretrain.ladder import ACT, JUDGE, PAGE, QUESTIONS, SEARCH, Stage
from tools.pretrain.language import Write
from tools.pretrain.pages import PAGE_INSTRUCTION, page_to_search, random_page
from tools.pretrain.reading import Question, Rectangle, rectangle
from tools.pretrain.screens import quiet_desktop, random_desktop
from tools.pretrain.word_canvas import WordCanvas, draw

QUESTIONS_PER_SCREEN = 3  # making a screen takes longer than asking about it
MAX_STEPS = 16  # of a demonstration
_INFEASIBLE = 0.1  # share of the demonstrations


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One training sequence. `mask` marks the learned tokens; `screens` fill the image slots in order.

    For the only screen of a question: `targets` are the cells of what its instruction names, `on` those of
    all elements that are on. None if the lesson does not tell them.
    """

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    screens: tuple[WordCanvas, ...]
    targets: tuple[Rectangle, ...] | None = None
    on: tuple[Rectangle, ...] | None = None


class LessonGenerator:
    """Generates lessons in the prompt and tokens of the policy. `level` is the level of carelessness.

    `write` writes the actions of an answer in the language of the policy.
    """

    def __init__(
        self, renderer: Renderer, template: PromptTemplate, level: float = 0.0, write: Write = render
    ) -> None:
        self._renderer, self._write = renderer, write
        self._system = Message(role="system", text=template.system)
        self._user = template.user
        self._careful, self._careless, self._level = Carelessness.of(0), Carelessness.of(level), level
        # All screens have one size, so a blank one renders to the right number of image slots.
        blank = Screenshot.of(WordCanvas().png())
        self._screen = Message(role="user", screenshot=blank)
        self._next_screen_ids = renderer.continuation(self._screen).token_ids

    def lessons(self, rng: random.Random, stage: Stage) -> list[Lesson]:
        """Random lessons of the stage: a demonstration, a page, or a few questions about one screen."""
        questions = [stage.lessons[kind] for kind in QUESTIONS]
        shares = [stage.lessons.get(kind, 0) for kind in (ACT, JUDGE, PAGE, SEARCH)]
        shares.append(sum(questions) / QUESTIONS_PER_SCREEN)
        [kind] = rng.choices((ACT, JUDGE, PAGE, SEARCH, "questions"), shares)
        if kind == ACT:
            return [self._demonstration(rng, stage)]
        if kind == JUDGE:
            return [self.judgement(judged_episode(rng, stage.goals, self._level))]
        if kind == PAGE:
            return [self.sequence(PAGE_INSTRUCTION, [random_page(rng)])]
        if kind == SEARCH:
            return [self._question(*page_to_search(rng))]
        return self._questions(rng, rng.choices(list(QUESTIONS), questions, k=QUESTIONS_PER_SCREEN))

    def _questions(self, rng: random.Random, kinds: Sequence[str]) -> list[Lesson]:
        desktop = random_desktop(rng)
        screen = draw(desktop)
        asked = [QUESTIONS[kind](rng, desktop) for kind in kinds]  # None if the screen has no such element
        on = tuple(rectangle(element) for element in desktop.visible_elements() if element.on)
        return [replace(self._question(screen, each), on=on) for each in asked if each is not None]

    def _question(self, screen: WordCanvas, question: Question) -> Lesson:
        action = question.action
        answer = self._write([action], question.instruction) if action else question.answer
        lesson = self.sequence(question.instruction, [(screen, answer)])
        return replace(lesson, targets=question.targets or None)

    def _demonstration(self, rng: random.Random, stage: Stage) -> Lesson:
        desktop = quiet_desktop(rng)
        goals = _random_goals(rng, desktop, stage)
        faults = self._careless if stage.careless else self._careful
        turns = demonstrate(rng, desktop, goals, faults, look=draw, max_steps=MAX_STEPS)
        answers = [(screen, self._write([step.action], step.thought)) for screen, step in turns]
        return self.sequence(", then ".join(goal.instruction for goal in goals), answers)

    def judgement(self, judged: Judged) -> Lesson:
        asked = self._renderer.render(judged.question.messages()).token_ids
        answer = (*self._renderer.encode(judged.answer), self._renderer.end_of_turn_id)
        mask = (False,) * len(asked) + (True,) * len(answer)
        return Lesson(token_ids=asked + answer, mask=mask, screens=judged.screens)

    def sequence(self, instruction: str, turns: Sequence[tuple[WordCanvas, str]]) -> Lesson:
        """The lesson with these screens and answers, which are learned."""
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
        screens = tuple(screen for screen, _ in turns)
        return Lesson(token_ids=tuple(token_ids), mask=tuple(mask), screens=screens)


def _random_goals(rng: random.Random, desktop: Desktop, stage: Stage) -> list[Goal]:
    """One to three goals of the current desktop, or one infeasible goal."""
    if rng.random() < _INFEASIBLE:
        return [rng.choice(list(INFEASIBLE.values())).sample(rng, desktop.world)]
    count = rng.choices((1, 2, 3), stage.goals)[0]
    while True:
        families = rng.sample(list(FEASIBLE.values()), count)
        if compatible(families):
            try:
                return [family.sample(rng, desktop.world) for family in families]
            except (IndexError, ValueError):  # random clicks emptied the inbox or the sheet
                continue
