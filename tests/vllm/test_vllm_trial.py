"""The request of `arpo doctor`, to a real server on the CPU."""

from __future__ import annotations

import re

import pytest

from arpo.cli.vllm_trial import request_tokens, trial_config
from real_vllm import PYTHON


def test_a_server_answers_the_request() -> None:
    if not PYTHON.exists():
        pytest.fail("vLLM is not installed: make vllm")
    notes: list[str] = []
    said = request_tokens(
        trial_config(f"--engine.python={PYTHON}", "--model.dtype=float32", "--model.device=cpu"), notes.append
    )
    assert re.match(r"[1-9]\d? tokens in \d+\.\d s, after a start of \d+ s; compile caches: /", said)
    assert [note.rpartition(" ")[2] for note in notes[1:]] == ["ready"]
