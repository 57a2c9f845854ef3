"""The shipped base model matches the current screens, tokens and prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from arpo.models.loading import resolve_model
from tools.pretrain.card import CARD, card, fingerprint, read_fingerprint
from tools.pretrain.settings import Settings
from tools.pretrain.tokenizer import desk_tokenizer


@pytest.mark.slow
def test_the_shipped_base_model_matches_the_current_screens_tokens_and_prompt() -> None:
    assert read_fingerprint(resolve_model("base")) == fingerprint("ui_tars")


def test_the_shipped_tokenizer_equals_the_current_one() -> None:
    shipped = (resolve_model("base") / "tokenizer.json").read_text(encoding="utf-8")
    assert shipped.strip() == desk_tokenizer().to_str(pretty=True).strip()


def test_the_shipped_base_model_is_at_most_eight_megabytes() -> None:
    assert sum(path.stat().st_size for path in resolve_model("base").iterdir()) <= 8_000_000


def test_a_card_gives_back_its_fingerprint_and_a_folder_without_one_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.pretrain.card.fingerprint", lambda _: "0123abcd" * 8)
    assert read_fingerprint(tmp_path) == ""
    (tmp_path / CARD).write_text(
        card(Settings(), step=3, parameters=1000, arithmetic="bfloat16 arithmetic"), encoding="utf-8"
    )
    assert read_fingerprint(tmp_path) == "0123abcd" * 8
