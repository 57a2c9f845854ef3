"""How long environments, vLLM servers and the learner take: the numbers of the simulation.

Sources: M measured (docs/performance.md, one H200, a 7B model), A assumed.

| number | value | source |
| --- | --- | --- |
| start of a virtual machine | 30 to 60 s | A |
| step, evaluation | log-normal with median 3 s and sigma 0.5; 5 s | A |
| hanging step | in 2% of the episodes, until a timeout of 60 s | A |
| answers per episode | 3 to 15, uniform: 9 in the mean | A |
| tokens per answer | log-normal, median 135, sigma 0.45: 150 in the mean | mean M, spread A |
| tokens per screenshot | 2,700 | M, 1920x1080 |
| encoding and prefill | 0.145 s per screenshot and answer | M: 35 s for 240, 69 s for 480 |
| decoding step | 11 ms + 0.31 ms per sequence | M: 16 ms with 16 sequences, 21 ms with 32 |
| cache of keys and values | 1.9 million tokens | 105 GiB, 57,344 bytes per token |
| learning, one GPU | 0.8, 2.3, 8.1 s per episode of 1, 5, 15 screenshots | M |
| learning, several GPUs | efficiency 0.95 in a node of 8, 0.90 beyond | A |
| weights | 15.4 GiB in bfloat16 | M |
| writing and reading weights | 1.8 GiB/s | M: a checkpoint of 46 GiB in 26 s, memory disk |
| sleep, wake | 3 s each, if servers and learner share GPUs | A |

vLLM itself was not measured on a GPU: the servers answer as fast as the in-process engine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

ALL_WEIGHTS = ((1, 0.8), (5, 2.3), (15, 8.1))  # (screenshots, seconds on one H200)
NODE = 8  # GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTimes:
    """Seconds and tokens. The module docstring has the sources."""

    boot: tuple[float, float] = (30.0, 60.0)
    step_median: float = 3.0
    step_sigma: float = 0.5
    evaluation: float = 5.0
    hangs: float = 0.02
    step_timeout: float = 60.0
    answers: tuple[int, int] = (3, 15)
    answer_median: float = 135.0
    answer_sigma: float = 0.45
    screenshot_tokens: int = 2700
    prefill_token: float = 0.145 / (2700 + 150)
    decode_step: float = 0.011
    decode_sequence: float = 0.00031
    cache_tokens: int = 1_900_000
    weights_gib: float = 15.4
    transfer: float = 1.8  # GiB per second
    sleep: float = 3.0
    learning: tuple[tuple[int, float], ...] = ALL_WEIGHTS
    learning_scale: float = 1.0  # factor of the learner's time

    def step(self, random: Random) -> float:
        return random.lognormvariate(math.log(self.step_median), self.step_sigma)

    def answer_tokens(self, random: Random) -> int:
        """A multiple of 10, at least 20."""
        drawn = random.lognormvariate(math.log(self.answer_median), self.answer_sigma)
        return max(20, 10 * round(drawn / 10))

    def decode(self, sequences: float) -> float:
        """Seconds for one token of each of so many sequences."""
        return self.decode_step + self.decode_sequence * sequences

    @property
    def load(self) -> float:
        """Seconds to write or to read the weights."""
        return self.weights_gib / self.transfer

    def learn(self, screenshots: int) -> float:
        """Seconds for one episode on one GPU, interpolated between the measured ones.

        >>> ServiceTimes().learn(10)  # halfway between 5 and 15 screenshots
        5.2
        """
        for (low, fast), (high, slow) in pairwise(self.learning):
            if screenshots <= high or high == self.learning[-1][0]:
                found = fast + (slow - fast) * (screenshots - low) / (high - low)
                return self.learning_scale * round(found, 6)
        raise AssertionError("at least two sizes are measured")

    def update(self, screenshots: Sequence[int], gpus: int) -> float:
        """Seconds for an update with episodes of so many screenshots, spread over GPUs, longest first."""
        loads = [0.0] * gpus
        for seconds in sorted(map(self.learn, screenshots), reverse=True):
            heapq.heapreplace(loads, loads[0] + seconds)
        return max(loads) / learner_efficiency(gpus)


DEFAULT = ServiceTimes()


def learner_efficiency(gpus: int) -> float:
    """Speed-up divided by the number of GPUs."""
    return 1.0 if gpus == 1 else 0.95 if gpus <= NODE else 0.90
