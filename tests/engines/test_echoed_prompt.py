"""The prompt in a response, compared as text: the same verdict as that of parsed JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.engines.echoed_prompt import cut_prompt

TOKENS = st.lists(st.sampled_from([0, 7, 12, 151655]), min_size=1, max_size=12)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": ")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"prompt_token_ids":[7,9,9],"choices":[]}', ('{"prompt_token_ids":[],"choices":[]}', True)),
        ('{"prompt_token_ids": [7, 9, 9]}', ('{"prompt_token_ids": []}', True)),
        ('{"prompt_token_ids":[7,9,9,9]}', ('{"prompt_token_ids":[7,9,9,9]}', False)),
        ('{"prompt_token_ids":[7,9,91]}', ('{"prompt_token_ids":[7,9,91]}', False)),
        ('{"prompt_token_ids":[7,9]}', ('{"prompt_token_ids":[7,9]}', False)),
        ('{"prompt_token_ids":[]}', ('{"prompt_token_ids":[]}', False)),
        ('{"prompt_token_ids":[7, 9,9]}', ('{"prompt_token_ids":[7, 9,9]}', False)),
        ("[7,9,9]", ("[7,9,9]", False)),
    ],
)
def test_only_the_same_tokens_are_cut(text: str, expected: tuple[str, bool]) -> None:
    assert cut_prompt(text, np.array([7, 9, 9])) == expected


@given(own=TOKENS, read=TOKENS, separators=SEPARATORS)
def test_the_verdict_is_that_of_parsed_json(
    own: list[int], read: list[int], separators: tuple[str, str]
) -> None:
    response = {"model": "m", "prompt_token_ids": read, "choices": [{"token_ids": own}]}
    text, same = cut_prompt(json.dumps(response, separators=separators), np.array(own))
    assert same == (own == read)
    assert json.loads(text) == response | {"prompt_token_ids": [] if same else read}
