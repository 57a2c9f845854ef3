"""Lessons: exactly the answers are learned, in the tokens of the policy."""

import random

import numpy as np
import pytest

from arpo.envs.desk.base_model.lessons import READ_INSTRUCTION, Lesson, LessonGenerator, list_elements
from arpo.envs.desk.base_model.pretrain import desk_tokenizer
from arpo.envs.desk.base_model.tiny import IMAGE_SETTINGS
from arpo.envs.desk.goals import FAMILIES
from arpo.envs.desk.random_tasks import random_task, rng_for
from arpo.envs.desk.words import vocabulary
from arpo.parsing import parse
from arpo.prompts.conversation import load_template
from arpo.prompts.rendering import Renderer
from desks import click, desk, solution, task_of

TOKENIZER = desk_tokenizer()
RENDERER = Renderer(TOKENIZER, IMAGE_SETTINGS)
GENERATOR = LessonGenerator(RENDERER, load_template("desk"))


@pytest.fixture(scope="module")
def lessons() -> list[Lesson]:
    return [GENERATOR.lesson(rng_for("pretrain", 600_000 + number)) for number in range(250)]


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


def test_every_screen_has_one_answer(lessons: list[Lesson]) -> None:
    slots = GENERATOR._next_screen_ids.count(RENDERER.image_token_id)
    assert slots > 0
    for lesson in lessons:
        assert len(answers(lesson)) == len(lesson.frames)
        assert lesson.token_ids.count(RENDERER.image_token_id) == slots * len(lesson.frames)
        assert all(frame.shape == (168, 224) and frame.dtype == np.uint8 for frame in lesson.frames)
        assert len(lesson.mask) == len(lesson.token_ids)


def test_lessons_read_point_and_do(lessons: list[Lesson]) -> None:
    reading = [lesson for lesson in lessons if instruction(lesson) == READ_INSTRUCTION]
    acting = [lesson for lesson in lessons if instruction(lesson) != READ_INSTRUCTION]
    assert 0.25 < len(reading) / len(lessons) < 0.45
    assert all(len(lesson.frames) == 1 for lesson in reading)
    for lesson in acting:
        assert all(len(parse(answer).actions) == 1 for answer in answers(lesson))
    ends = {answers(lesson)[-1].split("Action: ")[1] for lesson in acting if len(lesson.frames) > 1}
    assert {"finished()", "error_env()"} <= ends


def test_a_solvers_lesson_ends_with_the_task(lessons: list[Lesson]) -> None:
    for lesson in lessons:
        over = [answer.endswith(("finished()", "error_env()")) for answer in answers(lesson)]
        assert not any(over[:-1])
        assert len(over) == 1 or over[-1] or len(over) == 16


def test_the_same_seed_gives_the_same_lesson(lessons: list[Lesson]) -> None:
    again = GENERATOR.lesson(rng_for("pretrain", 600_007))
    assert (again.token_ids, again.mask) == (lessons[7].token_ids, lessons[7].mask)
    assert all(map(np.array_equal, again.frames, lessons[7].frames))


def test_elements_are_listed_in_reading_order_with_coordinates() -> None:
    desktop = desk("Conf")
    click(desktop, "Sound")
    assert list_elements(desktop) == (
        "Conf(63,21)Net(42,35)Look(70,35)Sound on(105,35)User(140,35)Volume(63,63)30(112,63)Volume(84,77)"
        "Mute(84,105)"
    )


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
    for lesson in lessons:
        assert spelled_out(instruction(lesson)) <= {"x"}  # the closing mark of a window
        assert set().union(*map(spelled_out, answers(lesson))) <= {"x"}


def test_answers_come_back_from_their_tokens(lessons: list[Lesson]) -> None:
    for lesson in random.Random(0).sample(lessons, 40):
        for answer in answers(lesson):
            assert RENDERER.decode(RENDERER.encode(answer)) == answer
