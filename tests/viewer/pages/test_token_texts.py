"""Texts of tokens: the shipped tokenizer, characters of several tokens, and damaged tokenizers."""

from importlib.resources import files
from pathlib import Path

from arpo.viewer.pages.tokens import token_texts
from arpo.viewer.run_source import load_tokenizer

SHIPPED = Path(str(files("arpo"))) / "envs" / "desk" / "base_model" / "weights"


def test_the_texts_of_an_answer_join_to_the_answer():
    tokenizer = load_tokenizer(SHIPPED)
    assert tokenizer is not None
    text = "Thought: Click\nAction: wait()"
    assert "".join(token_texts(tokenizer, tokenizer.encode(text).ids)) == text


class Bytes:
    """Tokens are the bytes of UTF-8."""

    def decode(self, ids, skip_special_tokens):
        return bytes(ids).decode("utf-8", "replace")


def test_the_last_token_of_a_character_has_it():
    assert token_texts(Bytes(), list("aé€".encode())) == ["a", "", "é", "", "", "€"]
    assert token_texts(Bytes(), [0xE2, 0x82]) == ["", "\ufffd"]


def test_ids_beyond_the_vocabulary_are_shown_as_unknown():
    assert token_texts(load_tokenizer(SHIPPED), [2**70]) == ["\ufffd"]


def test_a_damaged_or_missing_tokenizer_is_none(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Nonsense"}}')
    assert load_tokenizer(tmp_path) is None and load_tokenizer(tmp_path / "missing") is None


def test_a_folder_that_is_a_link_to_itself_has_no_tokenizer(tmp_path):
    (tmp_path / "model").symlink_to(tmp_path / "model")
    assert load_tokenizer(tmp_path / "model") is None
