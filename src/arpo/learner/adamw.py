"""AdamW for weights of sixteen bits, whose small updates are not lost.

bfloat16 tells numbers apart by one part in 128: to 1.0, an update of 1e-6 is nothing, however often it
comes. Here each new value is made in float32 and then rounded up or down by chance, the nearer neighbour
the likelier, so that on average nothing is added or lost. The chance is a function of (seed, step,
parameter, element): there is no generator whose state would have to be saved, and a resumed run takes the
same steps bit for bit. Tensors are changed in place, a piece at a time, so no second copy of the weights is
ever made. Float32 tensors are not rounded. It does not ask whether gradients are finite: the learner does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

EPSILON = 1e-8  # torch's own AdamW has the same
_PIECE = 1 << 24  # elements that are updated at once: bounds what is held in float32
_FUSED_PIECE = 1 << 30  # and where nothing is held, so that a GPU is not kept waiting for the next

Update = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Some elements of a parameter, and what this step does with them."""

    weight_N: Tensor
    grad_N: Tensor
    mean_N: Tensor
    square_N: Tensor
    numbers: list[float]  # see `_numbers`
    keys: list[int]  # of the draws for weight, mean and square


class RoundingAdamW(torch.optim.Optimizer):
    """As torch.optim.AdamW, with the same names in its state; both moments have the type `moments`.

    Not `stochastic`, it rounds to the nearest, as everyone else does. `starts` are the places at which those
    parameters begin that are parts of whole ones: a part is rounded as the whole would be.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        moments: torch.dtype,
        stochastic: bool,
        seed: int,
        starts: Mapping[nn.Parameter, int],
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})
        self._moments = moments
        self._stochastic = stochastic
        self._seed = seed
        self._starts = starts

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        device = next(p.device for group in self.param_groups for p in group["params"])
        update = quickest(device)
        pieces = list(self._pieces(_PIECE if update is plain_update else _FUSED_PIECE))
        if not pieces:
            return
        numbers = torch.tensor([piece.numbers for piece in pieces], dtype=torch.float32).to(device)
        keys = torch.tensor([piece.keys for piece in pieces], dtype=torch.int32).to(device)
        for index, p in enumerate(pieces):
            draw_keys = keys[index] if self._stochastic else None
            update(p.weight_N, p.grad_N, p.mean_N, p.square_N, numbers[index], draw_keys)

    def _pieces(self, size: int) -> Iterator[_Piece]:
        """Every parameter that has a gradient, a step further, in pieces of this size."""
        parameters = [(group, parameter) for group in self.param_groups for parameter in group["params"]]
        for index, (group, parameter) in enumerate(parameters):
            if parameter.grad is None:
                continue
            state = self.state[parameter] or self._at_rest(parameter)
            state["step"] += 1
            step = int(state["step"])
            rng = Random(f"rounding/{self._seed}/{step}/{index}")
            start = self._starts.get(parameter, 0)
            keys = [rng.getrandbits(32) + start for _ in range(3)]
            whole = (parameter.detach(), parameter.grad.contiguous(), state["exp_avg"], state["exp_avg_sq"])
            for place in range(0, parameter.numel(), size):
                weight_N, grad_N, mean_N, square_N = (each.view(-1)[place : place + size] for each in whole)
                yield _Piece(
                    weight_N=weight_N,
                    grad_N=grad_N,
                    mean_N=mean_N,
                    square_N=square_N,
                    numbers=_numbers(group, step),
                    keys=[_signed(key + place) for key in keys],
                )

    def _at_rest(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        state["step"] = torch.tensor(0.0)
        state["exp_avg"] = torch.zeros_like(parameter, dtype=self._moments)
        state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=self._moments)
        return state


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> float:
    """Scale the gradients down to this norm; what it was before, measured in float32 whatever they are."""
    parameters = [p for p in parameters if p.grad is not None]
    norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float32) for p in parameters]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm.item()


def _numbers(group: dict[str, Any], step: int) -> list[float]:
    """(1 - decay, rate, correction of the root, share of the new mean, of the new square) of one step."""
    rate, (beta1, beta2) = group["lr"], group["betas"]
    return [
        1 - rate * group["weight_decay"],
        rate / (1 - beta1**step),
        (1 - beta2**step) ** -0.5,
        1 - beta1,
        1 - beta2,
    ]


def plain_update(
    weight_N: Tensor, grad_N: Tensor, mean_N: Tensor, square_N: Tensor, numbers: Tensor, keys: Tensor | None
) -> None:
    """One step of AdamW on one piece, in place."""
    keep, rate, correction, mean_share, square_share = numbers.unbind()
    gradient, mean, square = grad_N.float(), mean_N.float(), square_N.float()
    mean = mean + (gradient - mean) * mean_share
    square = square + (gradient * gradient - square) * square_share
    weight = weight_N.float() * keep - rate * mean / (square.sqrt() * correction + EPSILON)
    for index, (stored, value) in enumerate(((weight_N, weight), (mean_N, mean), (square_N, square))):
        if keys is not None and stored.dtype == torch.bfloat16:
            value = rounded_by_chance(value, draws(len(value), keys[index]))
        stored.copy_(value)


def rounded_by_chance(value: Tensor, draw: Tensor) -> Tensor:
    """One of the two bfloat16 neighbours, as float32; the draws are integers below 2**16.

    bfloat16 is the upper half of a float32's bits. The lower half, as a share of 2**16, is how far the value
    has come from one neighbour to the next, and so how often adding a draw carries over: 1 + 2**-9 lies a
    quarter of the way from 1 to 1 + 2**-7, and one draw in four gives the latter. What is not finite stays.
    """
    neighbour = ((value.view(torch.int32) + draw) & -(1 << 16)).view(torch.float32)
    return torch.where(value.isfinite(), neighbour, value)


def draws(count: int, key: Tensor) -> Tensor:
    """Integers below 2**16, each a hash of its place and the key: the same on any device.

    The mixing steps are those known as "lowbias32": each bit of the input flips each bit of the output about
    half of the time.
    """
    mixed = torch.arange(count, dtype=torch.int32, device=key.device) + key
    mixed = (mixed ^ ((mixed >> 16) & 0xFFFF)) * 0x7FEB352D
    mixed = (mixed ^ ((mixed >> 15) & 0x1FFFF)) * _signed(0x846CA68B)
    return (mixed ^ (mixed >> 16)) & 0xFFFF


def _signed(number: int) -> int:
    """The signed integer that has the number's lower 32 bits."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


@cache
def quickest(device: torch.device) -> Update:
    """The update in one pass over memory, on a GPU with all that compiling needs; elsewhere as it stands."""
    if device.type != "cuda":
        return plain_update
    compiled: Update = torch.compile(plain_update, dynamic=True)
    weight, grad, mean, square = torch.zeros((4, 1000), dtype=torch.bfloat16, device=device)
    numbers, keys = torch.ones(5, device=device), torch.zeros(3, dtype=torch.int32, device=device)
    try:
        compiled(weight, grad, mean, square, numbers, keys)
    except Exception:  # Triton or its compiler is missing: the plain steps do the same
        return plain_update
    return compiled
