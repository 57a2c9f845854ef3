"""Lessons in tool calls: they are read back by the dialect, in about as many tokens as UI-TARS text."""

from dataclasses import replace

import pytest

from arpo.actions import (
    Action,
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
    render,
)  # fmt: skip
from arpo.dialects.registry import choose_dialect
from arpo.envs.desk.random_tasks import rng_for
from arpo.prompts.rendering import Renderer
from arpo.prompts.templates import load_template
from tools.pretrain.ladder import LADDER, QUESTIONS, Stage
from tools.pretrain.language import LANGUAGES
from tools.pretrain.lessons import Lesson, LessonGenerator
from tools.pretrain.tiny import IMAGE_SETTINGS
from tools.pretrain.tokenizer import desk_tokenizer

LANGUAGE = LANGUAGES["tool_calls"]
DIALECT = choose_dialect(LANGUAGE.dialect, "any", None)
BASE, TOKENIZER = desk_tokenizer(), desk_tokenizer(LANGUAGE.phrases)
PLACE = Point(105.0, 63.0)
ACTIONS: list[Action] = [
    Click(point=PLACE),
    DoubleClick(point=PLACE),
    RightClick(point=PLACE),
    Drag(start=PLACE, end=Point(10.0, 20.0)),
    Scroll(point=PLACE, direction=Direction.UP),
    Scroll(point=PLACE, direction=Direction.DOWN),
    Hotkey(keys=("ctrl", "c")),
    Type(text="Anna milk"),
    Type(text="Anna", submit=True),
    Finished(),
    Fail(),
]


def test_a_click_has_as_many_tokens_as_in_ui_tars_text() -> None:
    text = (
        'Thought: Click Save\n<tool_call>\n{"name": "computer_use", "arguments": {"action": "left_click", '
        '"coordinate": [105, 63]}}\n</tool_call>'
    )
    assert LANGUAGE.write([Click(point=PLACE)], "Click Save") == text
    ids = TOKENIZER.encode(text).ids
    assert [TOKENIZER.decode([index]) for index in ids[4:]] == ["105", ", ", "63", "]}}\n</tool_call>"]
    assert len(ids) == len(BASE.encode(render([Click(point=PLACE)], "Click Save")).ids) == 8


@pytest.mark.parametrize("action", ACTIONS)
def test_the_dialect_reads_a_written_action_of_few_tokens(action: Action) -> None:
    text = LANGUAGE.write([action], "Click Save")
    answer = DIALECT.parse(text)
    # Five notches are a scroll of Desk without an amount.
    expected = replace(action, amount=5) if isinstance(action, Scroll) else action
    assert (answer.thought, answer.actions) == ("Click Save", (expected,))
    ui_tars = BASE.encode(render([action], "Click Save")).ids
    assert len(TOKENIZER.encode(text).ids) <= len(ui_tars) + 1
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


def test_the_tokens_of_the_base_model_keep_their_ids() -> None:
    """So stored embeddings fit; a prompt and an answer in UI-TARS text have the same tokens."""
    assert BASE.get_vocab().items() <= TOKENIZER.get_vocab().items()
    assert TOKENIZER.get_vocab_size() == BASE.get_vocab_size() + len(LANGUAGE.phrases)
    for text in ("Delete report, then open Mail", "Thought: a\nAction: click(start_box='(105,63)')"):
        assert TOKENIZER.encode(text).ids == BASE.encode(text).ids


def learned_text(lesson: Lesson) -> str:
    ids = [token for token, learned in zip(lesson.token_ids, lesson.mask, strict=True) if learned]
    return TOKENIZER.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", ["act", "point"])
def test_every_lesson_about_acting_is_in_the_language(kind: str) -> None:
    shares = dict.fromkeys(LADDER[-1].lessons, 0.0) | {kind: 1.0}
    stage = Stage(name=kind, until=1.0, lessons=shares, goals=(1, 1, 1))
    assert kind == "act" or kind in QUESTIONS
    renderer = Renderer(TOKENIZER, IMAGE_SETTINGS)
    generator = LessonGenerator(renderer, load_template("desk"), write=LANGUAGE.write)
    for number in range(3):
        for lesson in generator.lessons(rng_for("pretrain", 700_000 + number), stage):
            *answers, rest = learned_text(lesson).split("<|im_end|>")
            assert answers and not rest
            assert all(len(DIALECT.parse(answer).actions) == 1 for answer in answers)
