"""The model card names the method of its run and contains its prompt, as code that Python reads back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from arpo.config.recipe import load_config
from arpo.training.model_card import model_card


def card(*settings: str, step: int | None = 1, adapters: bool = False) -> str:
    return model_card(
        "agent",
        load_config("desk", settings),
        step=step,
        summary={},
        dtype="float32",
        adapters=adapters,
        processor="Qwen3VLProcessor",
    )


def method(*settings: str) -> str:
    return next(line for line in card(*settings).splitlines() if line.startswith("- Method: "))


def prompt(text: str) -> tuple[str, str]:
    """SYSTEM and PROMPT in the code of a card."""
    (code,) = re.findall(r"^(`{3,})python\n(.*?)^\1$", text, re.DOTALL | re.MULTILINE)
    values = {
        line.targets[0].id: line.value.value
        for line in ast.parse(code[1]).body
        if isinstance(line, ast.Assign)
        and isinstance(line.targets[0], ast.Name)
        and isinstance(line.value, ast.Constant)
    }
    return str(values["SYSTEM"]), str(values["PROMPT"])


def test_the_card_names_the_method() -> None:
    assert method() == "- Method: ARPO (GRPO with a replay buffer of each task's successes)"
    assert method("--replay.enabled=false") == "- Method: GRPO"


def test_the_card_contains_the_prompt(tmp_path: Path) -> None:
    assert prompt(card()) == ("You use a computer.", "{instruction}")
    text = 'Answer:\n````\nAction: type(content="a\\n\\t")\n````\n"""{x: 1}""" Task: {instruction}\n\n'
    (tmp_path / "own.txt").write_text(text)
    own = f"--model.prompt={tmp_path / 'own.txt'}"
    assert prompt(card(own)) == prompt(card(own, adapters=True)) == ("You are a helpful assistant.", text)
    assert str(tmp_path) not in card(own)
    plain = ("You are a helpful assistant.", "{instruction}")
    assert prompt(card(own, step=None)) == plain
    (tmp_path / "own.txt").unlink()
    assert prompt(card(own)) == plain
    assert '"""  # insert the text of own.txt\n' in card(own)
