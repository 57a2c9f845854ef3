"""Stochastic rounding keeps small updates of bfloat16 weights on average, and every step is reproducible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arpo.learner import adamw
from arpo.learner.adamw import (
    RoundingAdamW,
    clip_gradients,
    fastest_update,
    plain_update,
    random_16_bits,
    round_stochastically,
)

BF16, F32 = torch.bfloat16, torch.float32


def optimiser(
    parameters: Sequence[nn.Parameter],
    *,
    lr: float = 0.5,
    betas: tuple[float, float] = (0.9, 0.99),
    decay: float = 0.0,
    moments: torch.dtype = BF16,
    seed: int = 0,
    offsets: Mapping[nn.Parameter, int] = MappingProxyType({}),
) -> RoundingAdamW:
    groups = [{"params": list(parameters), "weight_decay": decay}]
    return RoundingAdamW(groups, lr=lr, betas=betas, moments=moments, seed=seed, offsets=offsets)


def filled(value: float, count: int, dtype: torch.dtype = BF16) -> nn.Parameter:
    return nn.Parameter(torch.full((count,), value, dtype=dtype))


def step(one: RoundingAdamW, *gradients: Tensor | None) -> None:
    parameters = [parameter for group in one.param_groups for parameter in group["params"]]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.to(parameter.dtype)
    one.step()


def neighbours(value: Tensor) -> tuple[Tensor, Tensor]:
    """The two bfloat16 numbers around each value, the one nearer to zero first."""
    below = (value.view(torch.int32) & -65536).view(F32)
    above = ((value.view(torch.int32) & -65536) + 65536).view(F32)
    return below, torch.where(below == value, value, above)


def key(number: int) -> Tensor:
    return torch.tensor(number, dtype=torch.int32)


def test_worked_numbers() -> None:
    """The first step has the size of the rate, against the sign of the gradient, after the decay."""
    weight = filled(2.0, 1, F32)
    one = optimiser([weight], lr=0.5, decay=0.1, moments=F32)
    step(one, torch.tensor([3.0]))
    assert weight.item() == pytest.approx(2 * 0.95 - 0.5)
    step(one, torch.tensor([-1.0]))
    mean, square = 0.9 * 0.3 - 0.1, 0.99 * 0.09 + 0.01
    move = 0.5 * (mean / (1 - 0.9**2)) / math.sqrt(square / (1 - 0.99**2))
    assert weight.item() == pytest.approx(1.4 * 0.95 - move)
    state = one.state[weight]
    assert state["step"] == 2
    assert state["exp_avg"].item() == pytest.approx(mean) and state["exp_avg_sq"].item() == pytest.approx(
        square
    )


def test_in_float32_it_is_torchs_adamw() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn((7, 5), generator=generator)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    one = optimiser([ours], lr=1e-2, decay=0.1, moments=F32)
    other = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1)
    for _ in range(30):
        gradient = torch.randn((7, 5), generator=generator)
        step(one, gradient)
        theirs.grad = gradient
        other.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [1 + 2**-9, -(1 + 2**-9), 0.1, -3.3e-20, 1e-41, 1.0, 0.0])
def test_the_mean_over_all_draws_is_the_value(value: float) -> None:
    exact = torch.full((65536,), value)
    rounded = round_stochastically(exact, torch.arange(65536, dtype=torch.int32))
    below, above = neighbours(exact[:1])
    assert set(rounded.tolist()) == {below.item(), above.item()}
    assert rounded.double().mean().item() == exact[0].double().item()


def test_one_draw_in_four_rounds_up_at_a_quarter() -> None:
    rounded = round_stochastically(torch.full((65536,), 1 + 2**-9), torch.arange(65536, dtype=torch.int32))
    assert (rounded == 1 + 2**-7).sum().item() == 16384 and (rounded == 1).sum().item() == 49152


def test_values_that_are_not_finite_stay_unchanged() -> None:
    bits = torch.tensor([0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001], dtype=torch.int32)  # four kinds of NaN
    endless = torch.tensor([math.inf, -math.inf])
    for draw in (0, 1, 65535):
        assert round_stochastically(bits.view(F32), key(draw)).to(BF16).isnan().all()
        assert torch.equal(round_stochastically(endless, key(draw)), endless)


def test_rounding_never_moves_by_more_than_one_step() -> None:
    generator = torch.Generator().manual_seed(1)
    value = torch.randn(100_000, generator=generator) * torch.logspace(-30, 30, 100_000)
    rounded = round_stochastically(value, random_16_bits(len(value), key(5)))
    below, above = neighbours(value)
    assert ((rounded == below) | (rounded == above)).all()
    assert torch.equal(rounded.to(BF16).float(), rounded)


def test_random_bits_are_uniform_and_depend_on_the_index() -> None:
    drawn = random_16_bits(1 << 18, key(-(2**31)))
    assert (drawn.min().item(), drawn.max().item()) == (0, 65535)
    spread = 65536 / math.sqrt(12)
    assert drawn.double().mean().item() == pytest.approx(32767.5, abs=5 * spread / 2**9)
    assert drawn.double().std().item() == pytest.approx(spread, rel=0.005)
    others = torch.stack([drawn, random_16_bits(1 << 18, key(77)), drawn.roll(1)]).double()
    assert (torch.corrcoef(others) - torch.eye(3)).abs().max() < 0.01
    assert torch.equal(random_16_bits(7, key(3)), random_16_bits(10, key(0))[3:])


def test_two_thousand_updates_of_five_millionths_move_a_weight_by_a_hundredth() -> None:
    """Below 1 the spacing is 2**-8: n steps of d move a weight by n d, give or take sqrt(n d 2**-8)."""
    weight = torch.ones(2000)
    for number in range(2_000):
        weight = round_stochastically(weight - 5e-6, random_16_bits(2000, key(number * 7919)))
    moved, deviation = 1 - weight, math.sqrt(0.01 * 2**-8)
    assert moved.mean().item() == pytest.approx(0.01, abs=4 * deviation / math.sqrt(2000))
    assert moved.std().item() == pytest.approx(deviation, rel=0.1)
    assert (torch.ones(1, dtype=BF16) - 5e-6).item() == 1


def test_small_steps_survive_rounding() -> None:
    weight = filled(1.0, 4000)
    one = optimiser([weight], lr=1e-5)
    for _ in range(500):
        step(one, torch.ones(4000))
    moved, deviation = 1 - weight.detach().float(), math.sqrt(0.005 * 2**-8)
    assert moved.mean().item() == pytest.approx(0.005, abs=4 * deviation / math.sqrt(4000))
    assert moved.std().item() == pytest.approx(deviation, rel=0.1)


@pytest.mark.slow
def test_a_second_moment_in_bfloat16_keeps_decaying() -> None:
    """After one gradient of 1, 0.001 * 0.999**n is left; rounding to nearest would keep all of it."""
    weight = filled(1.0, 4000)
    one = optimiser([weight], lr=1e-6, betas=(0.9, 0.999))
    step(one, torch.ones(4000))
    first = one.state[weight]["exp_avg_sq"].float().mean().item()
    for _ in range(700):
        step(one, torch.zeros(4000))
    left = one.state[weight]["exp_avg_sq"].float().mean().item() / first
    assert left == pytest.approx(0.999**700, rel=0.05)


def test_the_random_bits_of_a_parameter_do_not_depend_on_the_others() -> None:
    """They depend on the index of the parameter, the step and the seed."""
    generator = torch.Generator().manual_seed(2)
    gradients = [torch.randn(1000, generator=generator) for _ in range(3)]

    def train(others: bool, seed: int = 0, index: int = 1) -> Tensor:
        parameters = [filled(1.0, 50), filled(1.0, 50)]
        parameters.insert(index, filled(1.0, 1000))
        one = optimiser(parameters, lr=1e-4, seed=seed)
        for gradient in gradients:
            given = [torch.ones(50) if others else None] * 2
            step(one, *given[:index], gradient, *given[index:])
        return parameters[index].detach()

    assert torch.equal(train(others=True), train(others=False))
    assert not torch.equal(train(others=True), train(others=True, seed=1))
    assert not torch.equal(train(others=True), train(others=True, index=2))


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = torch.randn((40, 30), generator=torch.Generator().manual_seed(3))
    whole, cut = (nn.Parameter(torch.ones((40, 30), dtype=BF16)) for _ in range(2))
    step(optimiser([whole], lr=1e-4), gradient)
    monkeypatch.setattr(adamw, "_CHUNK", 64)
    step(optimiser([cut], lr=1e-4), gradient)
    assert torch.equal(whole, cut)
    assert not (whole == 1).all()


def test_a_shard_is_rounded_like_the_full_parameter() -> None:
    """Rows 0 to 24 on one rank, 25 to 39 on another, and none on a third."""
    gradient = torch.randn((40, 30), generator=torch.Generator().manual_seed(3))
    whole, *parts = (nn.Parameter(torch.ones((rows, 30), dtype=BF16)) for rows in (40, 25, 15, 0))
    gradients = gradient.split([25, 15, 0])
    step(optimiser([whole], lr=1e-4), gradient)
    for part, start, its_gradient in zip(parts, (0, 750, 1200), gradients, strict=True):
        one = optimiser([part], lr=1e-4, offsets={part: start})
        step(one, its_gradient)
        assert one.state[part]["exp_avg"].shape == part.shape
    assert torch.equal(torch.cat(tuple(parts)), whole)


def with_gradients(*gradients: Tensor) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return parameters


@pytest.mark.parametrize("limit", [0.5, 1e9])
def test_float32_gradients_are_clipped_as_torch_clips_them(limit: float) -> None:
    gradients = torch.randn((300, 7), generator=torch.Generator().manual_seed(0)).split([1, 99, 200])
    ours, theirs = with_gradients(*gradients), with_gradients(*gradients)
    assert clip_gradients(ours, limit) == nn.utils.clip_grad_norm_(theirs, limit).item()
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.grad is not None and other.grad is not None and torch.equal(mine.grad, other.grad)


def test_the_norm_of_bfloat16_gradients_is_exact() -> None:
    """257 ones: bfloat16 cannot represent 257, the sum of the squares."""
    parameters = with_gradients(torch.ones(200, dtype=BF16), torch.ones(57, dtype=BF16))
    assert clip_gradients(parameters, 1.0) == pytest.approx(math.sqrt(257), rel=1e-6)
    assert parameters[0].grad is not None and parameters[0].grad.dtype == BF16
    assert parameters[0].grad[0].item() == pytest.approx(1 / math.sqrt(257), rel=2**-8)


def test_nothing_is_compiled_on_a_cpu() -> None:
    assert fastest_update(torch.device("cpu")) is plain_update


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_compiled_update_is_the_plain_one() -> None:
    generator = torch.Generator("cuda").manual_seed(4)
    weight, grad, mean, square = torch.randn((4, 100_003), generator=generator, device="cuda").to(BF16)
    plain = [tensor.clone() for tensor in (weight, grad, mean, square.abs())]
    quick = [tensor.clone() for tensor in plain]
    numbers = torch.tensor([0.99, 1e-3, 1.5, 0.1, 0.01], device="cuda")
    keys = torch.tensor([1, -5, 2**31 - 1], dtype=torch.int32, device="cuda")
    updates: list[Any] = [plain_update, fastest_update(weight.device)]
    assert updates[0] is not updates[1]
    for update, tensors in zip(updates, (plain, quick), strict=True):
        update(*tensors, numbers, keys)
    for ours, theirs in zip(quick, plain, strict=True):
        assert (ours == theirs).float().mean() > 0.999  # fused sums may round to the other side
        torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=1e-6)
