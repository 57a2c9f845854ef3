"""Lessons: exactly the answers are learned, in the tokens of the policy."""

import random

import numpy as np
import pytest

from arpo.envs.desk.goals import FAMILIES
from arpo.envs.desk.random_tasks import random_task, rng_for
from arpo.envs.desk.words import vocabulary
from arpo.prompts.rendering import Renderer
from arpo.prompts.templates import load_template
from desks import solution, task_of
from tools.pretrain.ladder import LADDER, Stage
from tools.pretrain.lessons import Lesson, LessonGenerator
from tools.pretrain.reading import KIND_WORDS
from tools.pretrain.tiny import IMAGE_SETTINGS
from tools.pretrain.tokenizer import desk_tokenizer

TOKENIZER = desk_tokenizer()
RENDERER = Renderer(TOKENIZER, IMAGE_SETTINGS)
GENERATOR = LessonGenerator(RENDERER, load_template("desk"), level=1.0)
_, READ, ACT, CARELESS = LADDER


def some_lessons(stage: Stage, number: int) -> list[Lesson]:
    return GENERATOR.lessons(rng_for("pretrain", 600_000 + number), stage)


@pytest.fixture(scope="module")
def lessons() -> list[Lesson]:
    return [lesson for number in range(120) for lesson in some_lessons(LADDER[1 + number % 3], number)]


def answers(lesson: Lesson) -> list[str]:
    """The learned spans, without their end-of-turn tokens."""
    found: list[list[int]] = []
    before = False
    for token, learned in zip(lesson.token_ids, lesson.mask, strict=True):
        if learned and not before:
            found.append([])
        if learned:
            found[-1].append(token)
        before = learned
    assert all(ids[-1] == RENDERER.end_of_turn_id for ids in found)
    return [RENDERER.decode(ids) for ids in found]


def instruction(lesson: Lesson) -> str:
    ids = [token for token in lesson.token_ids if token != RENDERER.image_token_id]
    return TOKENIZER.decode(ids, skip_special_tokens=False).split("user\n")[1].split("<|im_end|>")[0]


@pytest.mark.slow
def test_every_screen_has_one_answer(lessons: list[Lesson]) -> None:
    slots = GENERATOR._next_screen_ids.count(RENDERER.image_token_id)
    assert slots > 0
    for lesson in lessons:
        assert len(answers(lesson)) == len(lesson.screens)
        assert lesson.token_ids.count(RENDERER.image_token_id) == slots * len(lesson.screens)
        assert all(screen.pixels.shape == (168, 224) for screen in lesson.screens)
        assert len(lesson.mask) == len(lesson.token_ids)


def test_a_screen_has_three_questions_and_a_demonstration_its_own_screens() -> None:
    asked = [len(found) for number in range(60) if len(found := some_lessons(READ, number)) > 1]
    assert set(asked) <= {2, 3} and asked.count(3) > 0.8 * len(asked)
    several = next(found for number in range(60) if len(found := some_lessons(READ, number)) == 3)
    assert all(lesson.screens[0] is several[0].screens[0] for lesson in several)


def is_demonstration(lesson: Lesson) -> bool:
    return answers(lesson)[-1].endswith(("finished()", "error_env()")) or len(lesson.screens) > 1


@pytest.mark.slow
def test_shares_of_the_ladder_are_shares_of_lessons() -> None:
    """48 of 100 lessons of the second stage are demonstrations."""
    found = [lesson for number in range(200) for lesson in some_lessons(ACT, number)]
    assert sum(map(is_demonstration, found)) / len(found) == pytest.approx(0.48, abs=0.08)


@pytest.mark.slow
def test_careful_demonstrations_end_with_the_task_and_careless_ones_often_too_early() -> None:
    """A task without faults ends with Done after at least one step. Giving up at once is a fault."""
    careful = [lesson for number in range(60) for lesson in some_lessons(ACT, number)]
    careless = [lesson for number in range(60) for lesson in some_lessons(CARELESS, number)]
    for lesson in careful:
        over = [answer.endswith(("finished()", "error_env()")) for answer in answers(lesson)]
        assert not any(over[:-1])
        assert len(over) == 1 or over[-1] or len(over) == 16

    def gave_up_at_once(found: list[Lesson]) -> int:
        first = [answers(lesson)[0] for lesson in found if is_demonstration(lesson)]
        return sum(answer.endswith("error_env()") and "then" not in answer for answer in first)

    assert gave_up_at_once(careless) > gave_up_at_once(careful)


def test_the_same_seed_gives_the_same_lessons() -> None:
    one, other = some_lessons(ACT, 7), some_lessons(ACT, 7)
    assert [(each.token_ids, each.mask) for each in one] == [(each.token_ids, each.mask) for each in other]
    for first, second in zip(one, other, strict=True):
        for left, right in zip(first.screens, second.screens, strict=True):
            assert np.array_equal(left.pixels, right.pixels)


def spelled_out(text: str) -> set[str]:
    """Letters of `text` encoded one by one, because their word is not in the vocabulary."""
    pieces = [TOKENIZER.decode([token]) for token in RENDERER.encode(text)]
    return {piece for piece in pieces if len(piece) == 1 and piece.isalpha() and piece not in vocabulary()}


def test_a_word_that_is_not_listed_is_noticed() -> None:
    assert spelled_out("Delete the file report") == set()
    assert spelled_out("Delete the zebra") == set("zebr")  # "a" is a word


@pytest.mark.parametrize("purpose", ["pool", "heldout", "pretrain"])
def test_instructions_and_answers_are_made_of_listed_words(purpose: str) -> None:
    for number, family in enumerate(FAMILIES.values()):
        for repeat in range(6):
            task = task_of(random_task(rng_for(purpose, 100 * number + repeat), [family], "words"))
            thoughts = " ".join(thought for thought, _ in solution(task))
            assert spelled_out(task.instruction) == set(), task.instruction
            assert spelled_out(thoughts) == set(), thoughts


def test_lessons_are_made_of_listed_words(lessons: list[Lesson]) -> None:
    """Names of kinds are spelled, so is the closing mark of a window."""
    kinds = {letter for word in KIND_WORDS.values() if word not in vocabulary() for letter in word}
    for lesson in lessons:
        assert spelled_out(instruction(lesson)) <= {"x", *kinds}
        assert set().union(*map(spelled_out, answers(lesson))) <= {"x", *kinds}


def test_answers_come_back_from_their_tokens(lessons: list[Lesson]) -> None:
    for lesson in random.Random(0).sample(lessons, 40):
        for answer in answers(lesson):
            assert RENDERER.decode(RENDERER.encode(answer)) == answer
