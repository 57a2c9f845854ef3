"""AdamW for 16-bit weights with stochastic rounding.

bfloat16 has a relative precision of 1/128: an update of 1e-6 to a weight of 1.0 is always lost. Here each new
value is computed in float32 and rounded up or down at random, to the nearer neighbour with higher
probability, so the expected value is exact. The random bits are a hash of (seed, step, parameter, element):
there is no generator state to save, and a resumed run takes the same steps bit for bit. Tensors change in
place and in chunks, so no second copy of the weights exists. Float32 tensors are not rounded. The learner
checks gradients for infinities and NaNs; the optimiser does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

EPSILON = 1e-8  # as in torch's AdamW
_CHUNK = 1 << 24  # elements updated at once: bounds the float32 copies
_FUSED_CHUNK = 1 << 30  # for the compiled update, which has no copies and few launches

UpdateFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Some elements of a parameter and the constants of this step."""

    weight_N: Tensor
    grad_N: Tensor
    mean_N: Tensor
    square_N: Tensor
    coefficients: list[float]  # see `_coefficients`
    draw_keys: list[int]  # of the random bits for weight, mean and square


class RoundingAdamW(torch.optim.Optimizer):
    """torch.optim.AdamW with the same state names; both moments have the type `moments`.

    For shards of parameters, `offsets` has the index of their first element in the full parameter: a shard is
    rounded exactly like the full parameter.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        moments: torch.dtype,
        seed: int,
        offsets: Mapping[nn.Parameter, int],
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})
        self._moments = moments
        self._seed = seed
        self._offsets = offsets

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        device = next(p.device for group in self.param_groups for p in group["params"])
        update = fastest_update(device)
        chunks = list(self._chunks(_CHUNK if update is plain_update else _FUSED_CHUNK))
        if not chunks:
            return
        coefficients = torch.tensor([chunk.coefficients for chunk in chunks], dtype=torch.float32).to(device)
        keys = torch.tensor([chunk.draw_keys for chunk in chunks], dtype=torch.int32).to(device)
        for index, chunk in enumerate(chunks):
            tensors = (chunk.weight_N, chunk.grad_N, chunk.mean_N, chunk.square_N)
            update(*tensors, coefficients[index], keys[index])

    def _chunks(self, size: int) -> Iterator[_Chunk]:
        """Chunks of this size of every parameter with a gradient; increments the step counters."""
        parameters = [(group, parameter) for group in self.param_groups for parameter in group["params"]]
        for index, (group, parameter) in enumerate(parameters):
            if parameter.grad is None:
                continue
            state = self.state[parameter] or self._initial_state(parameter)
            state["step"] += 1
            step = int(state["step"])
            rng = Random(f"rounding/{self._seed}/{step}/{index}")
            first_element = self._offsets.get(parameter, 0)
            draw_keys = [rng.getrandbits(32) + first_element for _ in range(3)]
            whole = (parameter.detach(), parameter.grad.contiguous(), state["exp_avg"], state["exp_avg_sq"])
            for offset in range(0, parameter.numel(), size):
                weight_N, grad_N, mean_N, square_N = (each.view(-1)[offset : offset + size] for each in whole)
                yield _Chunk(
                    weight_N=weight_N,
                    grad_N=grad_N,
                    mean_N=mean_N,
                    square_N=square_N,
                    coefficients=_coefficients(group, step),
                    draw_keys=[_signed(key + offset) for key in draw_keys],
                )

    def _initial_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        state["step"] = torch.tensor(0.0)
        state["exp_avg"] = torch.zeros_like(parameter, dtype=self._moments)
        state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=self._moments)
        return state


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> float:
    """Scale the gradients down to norm `limit`; return the norm before, computed in float32."""
    parameters = [p for p in parameters if p.grad is not None]
    norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float32) for p in parameters]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm.item()


def _coefficients(group: dict[str, Any], step: int) -> list[float]:
    """(1 - decay, rate, bias correction of the root, weight of the new mean, weight of the new square)."""
    rate, (beta1, beta2) = group["lr"], group["betas"]
    return [
        1 - rate * group["weight_decay"],
        rate / (1 - beta1**step),
        (1 - beta2**step) ** -0.5,
        1 - beta1,
        1 - beta2,
    ]


def plain_update(
    weight_N: Tensor,
    grad_N: Tensor,
    mean_N: Tensor,
    square_N: Tensor,
    coefficients: Tensor,
    draw_keys: Tensor,
) -> None:
    """One in-place step of AdamW on one chunk."""
    keep, rate, correction, mean_share, square_share = coefficients.unbind()
    gradient, mean, square = grad_N.float(), mean_N.float(), square_N.float()
    mean = mean + (gradient - mean) * mean_share
    square = square + (gradient * gradient - square) * square_share
    weight = weight_N.float() * keep - rate * mean / (square.sqrt() * correction + EPSILON)
    for index, (stored, value) in enumerate(((weight_N, weight), (mean_N, mean), (square_N, square))):
        if stored.dtype == torch.bfloat16:
            value = round_stochastically(value, random_16_bits(len(value), draw_keys[index]))
        stored.copy_(value)


def round_stochastically(value: Tensor, draw: Tensor) -> Tensor:
    """One of the two bfloat16 neighbours of each value, as float32. Draws are integers below 2**16.

    bfloat16 is the upper half of the bits of a float32. The lower half, divided by 2**16, is the distance
    from the lower neighbour, and so the share of draws with a carry. Example: 1 + 2**-9 is a quarter of the
    way from 1 to 1 + 2**-7, and one draw in four gives the latter. Infinities and NaNs stay unchanged.
    """
    rounded = ((value.view(torch.int32) + draw) & -(1 << 16)).view(torch.float32)
    return torch.where(value.isfinite(), rounded, value)


def random_16_bits(count: int, key: Tensor) -> Tensor:
    """Integers below 2**16, each a hash of its index and the key, equal on every device.

    The hash is "lowbias32": each input bit flips each output bit with a probability of about one half.
    """
    mixed = torch.arange(count, dtype=torch.int32, device=key.device) + key
    mixed = (mixed ^ ((mixed >> 16) & 0xFFFF)) * 0x7FEB352D
    mixed = (mixed ^ ((mixed >> 15) & 0x1FFFF)) * _signed(0x846CA68B)
    return (mixed ^ (mixed >> 16)) & 0xFFFF


def _signed(number: int) -> int:
    """The signed integer with the lower 32 bits of `number`."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


@cache
def fastest_update(device: torch.device) -> UpdateFunction:
    """The compiled update on a GPU if compilation works, else `plain_update`."""
    if device.type != "cuda":
        return plain_update
    compiled: UpdateFunction = torch.compile(plain_update, dynamic=True)
    weight, grad, mean, square = torch.zeros((4, 1000), dtype=torch.bfloat16, device=device)
    coefficients, draw_keys = torch.ones(5, device=device), torch.zeros(3, dtype=torch.int32, device=device)
    try:
        compiled(weight, grad, mean, square, coefficients, draw_keys)
    except Exception:  # Triton or its compiler is missing; the plain update is equivalent
        return plain_update
    return compiled
