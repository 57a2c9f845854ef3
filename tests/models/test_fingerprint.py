"""The fingerprint of weights: equal for equal weights, another one after a change of one bit."""

from __future__ import annotations

import torch
from torch import nn

from arpo.models.fingerprint import fingerprint


def test_one_bit_changes_the_fingerprint() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model, same = nn.Linear(8, 4, dtype=dtype), nn.Linear(8, 4, dtype=dtype)
        same.load_state_dict(model.state_dict())
        assert fingerprint(same) == fingerprint(model)
        with torch.no_grad():
            bits = same.weight.view(torch.int32 if dtype == torch.float32 else torch.int16)
            bits[3, 5] ^= 1
        assert fingerprint(same) != fingerprint(model)
