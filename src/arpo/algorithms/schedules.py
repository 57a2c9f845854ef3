"""Learning-rate schedules: the factor by which the learning rate decays after its warm-up."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def decay(schedule: Schedule, *, done: float, total: float, warmup: float) -> float:
    """The factor of the update that follows `done` of `total` updates: 1 during warm-up, 0 after the last.

    With 10 updates, 2 of them warm-up, the factors of updates 0 to 9 are:
    linear: 1, 1, 1, 7/8, 6/8, 5/8, 4/8, 3/8, 2/8, 1/8
    cosine: (1 + cos(π x)) / 2 with x = 0, 0, 0, 1/8, 2/8, …, 7/8
    """
    left = total - warmup
    passed = min(1.0, max(0.0, (done - warmup) / left)) if left > 0 else 0.0
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - passed
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * passed))
