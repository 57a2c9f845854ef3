"""Service times without any chance, for durations that can be computed by hand."""

from __future__ import annotations

from simulation.service_times import ServiceTimes

# An episode takes 10 + 2 * (1 + 3) + 5 = 23 s, and 1 s of learning. Writing or reading weights takes 1 s.
TIMES = ServiceTimes(
    boot=(10.0, 10.0),
    step_sigma=0.0,
    hangs=0.0,
    answers=(2, 2),
    answer_median=100.0,
    answer_sigma=0.0,
    prefill_token=0.0,
    decode_step=0.01,
    decode_sequence=0.0,
    weights_gib=1.0,
    transfer=1.0,
    learning=((1, 0.5), (2, 1.0)),
)
