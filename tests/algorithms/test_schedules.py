import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from arpo.algorithms.schedules import Schedule, decay


def factors(schedule: Schedule, total: int, warmup: int) -> list[float]:
    return [decay(schedule, done=done, total=total, warmup=warmup) for done in range(total)]


def test_a_constant_rate_is_exactly_the_same_number() -> None:
    assert factors("constant", 5, 2) == [1.0] * 5


def test_the_rate_falls_from_the_end_of_the_warm_up_to_0_after_the_last_update() -> None:
    assert factors("linear", 10, 2) == pytest.approx([1, 1, 1, *(left / 8 for left in range(7, 0, -1))])
    assert factors("cosine", 4, 0) == pytest.approx([1, 0.8535534, 0.5, 0.1464466])
    assert decay("linear", done=10, total=10, warmup=2) == 0
    assert decay("cosine", done=2.5, total=5, warmup=0) == pytest.approx(0.5)


def test_a_warm_up_longer_than_the_run_leaves_nothing_to_decay() -> None:
    assert factors("cosine", 3, 3) == factors("linear", 3, 7) == [1.0] * 3
    assert decay("linear", done=11, total=10, warmup=0) == 0


@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.parametrize(
    ("schedule", "of_transformers"),
    [("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)],
)
def test_after_the_warm_up_the_schedules_are_those_of_transformers(
    schedule: Schedule, of_transformers: object, warmup: int
) -> None:
    assert callable(of_transformers)
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = of_transformers(optimiser, num_warmup_steps=warmup, num_training_steps=40)
    rates = []
    for _ in range(40):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        theirs.step()
    assert factors(schedule, 40, warmup)[warmup:] == pytest.approx(rates[warmup:], abs=1e-12)
