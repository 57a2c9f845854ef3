"""The tiny model's tokenizer: listed strings are one token, and decoding restores any text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.actions import (
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
    render,
)  # fmt: skip
from tools.pretrain.tokenizer import ACTION_PHRASES, SPECIAL_TOKENS, build_tokenizer, special_ids

WORDS = ["Click", "Save", "ctrl", "c", "Save"]
TOKENIZER = build_tokenizer(ACTION_PHRASES, WORDS, 225)


def pieces(text: str) -> list[str]:
    return [TOKENIZER.decode([index]) for index in TOKENIZER.encode(text).ids]


@pytest.mark.parametrize(
    "text", [*ACTION_PHRASES, *WORDS, " Click", " ctrl", "0", "7", "63", "224", *SPECIAL_TOKENS]
)
def test_listed_strings_are_one_token(text: str) -> None:
    assert len(TOKENIZER.encode(text).ids) == 1


def test_a_click_is_eight_tokens() -> None:
    assert pieces("Thought: Click Save\nAction: click(start_box='(105,63)')") == [
        "Thought: ", "Click", " Save", "\nAction: click(start_box='(", "105", ",", "63", ")')",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("action", "count"),
    [
        (Click(point=Point(105, 63)), 5),
        (DoubleClick(point=Point(105, 63)), 5),
        (RightClick(point=Point(105, 63)), 5),
        (Drag(start=Point(10, 20), end=Point(30, 200)), 9),
        (Scroll(point=Point(112, 84), direction=Direction.DOWN), 5),
        (Type(text="Save"), 3),
        (Type(text="Save", submit=True), 3),
        (Hotkey(keys=("ctrl", "c")), 4),
        (Finished(), 1),
        (Fail(), 1),
        (CallUser(), 1),
        (Wait(), 1),
    ],
)
def test_actions_are_few_tokens(action: Action, count: int) -> None:
    thought = ["Thought: ", "Click"]
    assert pieces(render([action], "Click"))[:2] == thought
    assert len(pieces(render([action], "Click"))) == len(thought) + count


def test_unlisted_strings_are_bytes() -> None:
    assert pieces("Clicks 999 é") == [
        "C",
        "l",
        "i",
        "c",
        "k",
        "s",
        " ",
        "9",
        "9",
        "9",
        " ",
        "\ufffd",
        "\ufffd",
    ]


def test_numbers_are_cut_at_three_digits() -> None:
    assert pieces("19204") == ["192", "0", "4"]


def test_a_phrase_that_ends_in_a_letter_does_not_cut_a_word() -> None:
    tokenizer = build_tokenizer(["the task"], ["tasks"], 0)
    assert [tokenizer.decode([index]) for index in tokenizer.encode("the task").ids] == ["the task"]
    assert [tokenizer.decode([index]) for index in tokenizer.encode("the tasks").ids] == [
        "t",
        "h",
        "e",
        " tasks",
    ]


@given(
    st.text()
    | st.lists(st.sampled_from([*ACTION_PHRASES, *WORDS, " ", "224", "99", "\r\n", "é"])).map("".join)
)
def test_decoding_restores_any_text(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_ids_are_dense_and_the_same_every_time() -> None:
    again = build_tokenizer(ACTION_PHRASES, WORDS, 225)
    assert again.to_str() == TOKENIZER.to_str()
    assert sorted(TOKENIZER.get_vocab().values()) == list(range(TOKENIZER.get_vocab_size()))
    words = 2 * 4 - 1  # each of four in two forms, but a letter alone is already a byte
    numbers = 225 - 10
    assert TOKENIZER.get_vocab_size() == 14 + 256 + len(ACTION_PHRASES) + words + numbers


def test_special_ids() -> None:
    assert special_ids(TOKENIZER)["<|im_end|>"] == TOKENIZER.encode("<|im_end|>").ids[0]


@pytest.mark.parametrize("word", ["", "e-mail", "two words", "é"])
def test_a_word_is_letters(word: str) -> None:
    with pytest.raises(ValueError, match="is not a word"):
        build_tokenizer([], [word], 0)
