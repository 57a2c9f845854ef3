"""The model card names the method of its run."""

from __future__ import annotations

from arpo.config.recipe import load_config
from arpo.training.model_card import model_card


def method(*settings: str) -> str:
    card = model_card(
        "agent", load_config("desk", settings), step=1, summary={}, dtype="float32", adapters=False
    )
    return next(line for line in card.splitlines() if line.startswith("- Method: "))


def test_the_card_names_the_method() -> None:
    assert method() == "- Method: ARPO (GRPO with a replay buffer of each task's successes)"
    assert method("--replay.enabled=false") == "- Method: GRPO"
