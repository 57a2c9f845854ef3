"""Tokens of an answer: texts, and entropy, ratio and clipping."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from arpo.errors import UserError
from arpo.storage.run_folder import RunFolder
from arpo.viewer.library import Library
from arpo.viewer.pages.tokens import token_texts
from arpo.viewer.run_source import load_tokenizer
from trajectories import trajectory, turn
from viewed_runs import make_run

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


def opened(folder: Path) -> Library:
    library = Library([folder])
    while not library.refresh(5.0):
        pass
    return library


def tokens(library: Library, episode: str, step: str, **query: str) -> dict:
    return library.answer(["s", "desk", "episodes", episode, "tokens", step], query)


def test_the_newest_update_is_shown_unless_another_one_is_chosen(tmp_path: Path) -> None:
    """batch-1-0-0 was trained in batch 1, and again in batch 2, where replay used it."""
    make_run(tmp_path / "desk")
    library = opened(tmp_path / "desk")
    found = tokens(library, "batch-1-0-0", "1")
    assert found["stored"] == {"logprob": True, "entropy": True, "ratio": True, "clipped": True}
    assert [token["ratio"] for token in found["tokens"]] == [1.0, 1.5, 0.9, 1.0]
    assert [token["clipped"] for token in found["tokens"]] == [False, True, False, False]
    assert found["trained"] == [
        {"batch": 1, "update": 1, "replayed": False, "shown": False},
        {"batch": 2, "update": 1, "replayed": True, "shown": True},
    ]
    assert found["note"] == ""
    first = tokens(library, "batch-1-0-0", "1", trained="0")
    assert [token["ratio"] for token in first["tokens"]] == [1.0] * 4
    assert [token["entropy"] for token in first["tokens"]] == [0.5, 2.0, 0.1, 0.0]


def test_an_untrained_answer_and_a_run_without_values_say_why(tmp_path: Path) -> None:
    make_run(tmp_path / "desk")
    library = opened(tmp_path / "desk")
    found = tokens(library, "batch-1-1-0", "1")
    assert found["note"] == "No update has trained this answer: it has no entropy, ratio and clipping."
    assert found["stored"] == {"logprob": True, "entropy": False, "ratio": False, "clipped": False}
    (tmp_path / "desk" / "token_stats.jsonl").write_text("")
    found = tokens(opened(tmp_path / "desk"), "batch-1-0-0", "1")
    assert found["note"].endswith("Train with --store.token_stats true to store them.")
    assert found["trained"] == [] and found["tokens"][0]["ratio"] is None


def test_the_answer_of_a_teacher_has_tokens_without_log_probabilities(tmp_path: Path) -> None:
    make_run(tmp_path / "desk")
    store = RunFolder(tmp_path / "desk")
    given = turn([1], [3, 4], restart=True)
    given = replace(given, completion=replace(given.completion, logprobs=(), versions=()))
    store.add_trajectory(trajectory(1.0, given, name="collect-0-0"))
    store.close()
    found = tokens(opened(tmp_path / "desk"), "collect-0-0", "1")
    assert not found["stored"]["logprob"]
    shown = [(token["id"], token["logprob"], token["version"]) for token in found["tokens"]]
    assert shown == [(3, None, None), (4, None, None)]


def test_other_likely_tokens_have_texts_and_log_probabilities(tmp_path: Path) -> None:
    make_run(tmp_path / "desk")
    tokenizer = load_tokenizer(SHIPPED)
    assert tokenizer is not None
    (tmp_path / "desk" / "model").symlink_to(SHIPPED)
    [wait, end] = (tokenizer.encode(text).ids[0] for text in ("wait", "end"))
    store = RunFolder(tmp_path / "desk")
    played = turn([1], [wait, end], restart=True)
    played = replace(played, completion=replace(played.completion, alternatives=(((end, -1.5),), ())))
    store.add_trajectory(trajectory(1.0, played, name="batch-9-0-0"))
    store.close()
    found = [
        token["alternatives"] for token in tokens(opened(tmp_path / "desk"), "batch-9-0-0", "1")["tokens"]
    ]
    assert found == [[{"id": end, "logprob": -1.5, "text": tokenizer.decode([end])}], []]


def test_values_of_another_number_of_tokens_are_an_error(tmp_path: Path) -> None:
    make_run(tmp_path / "desk")
    store = RunFolder(tmp_path / "desk")
    line = {"step": 1, "update": 1, "episode": "batch-1-2-0", "turn": 1, "replayed": False}
    store.log_token_stats({**line, "entropy": [1.0], "ratio": [1.0], "clipped": [0]})
    store.close()
    with pytest.raises(UserError, match="batch-1-2-0: step 1: damaged"):
        tokens(opened(tmp_path / "desk"), "batch-1-2-0", "1")


def test_the_newest_updates_of_an_answer_are_offered(tmp_path: Path) -> None:
    """After those of batches 1 and 2, batches 3 to 301 replay the answer: batches 102 to 301 are offered."""
    make_run(tmp_path / "desk")
    store = RunFolder(tmp_path / "desk")
    line = {"update": 1, "episode": "batch-1-0-0", "turn": 1, "replayed": True, "entropy": [0.0] * 4}
    for step in range(3, 302):
        store.log_token_stats({**line, "step": step, "ratio": [float(step)] * 4, "clipped": [0] * 4})
    store.close()
    found = tokens(opened(tmp_path / "desk"), "batch-1-0-0", "1")
    assert [update["batch"] for update in found["trained"]] == list(range(102, 302))
    assert found["trained"][-1]["shown"] and found["tokens"][0]["ratio"] == 301.0
