"""What a frozen vision tower makes of a screenshot, computed once.

Kept is what enters the tower's mergers, not what leaves them: mergers may have adapters, and cost next to
nothing. Each screenshot goes through the tower by itself and without gradients, so that what is kept does
not depend on what else was looked at, and a resumed run, which begins with nothing kept, sees the same
bits. Nothing here notices that a tower's weights have changed: only a frozen one may have a cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from arpo.types import Screenshot


class FeatureCache:
    """A frozen tower's states by the screenshot's sha256, in main memory; to fit, the longest unused go."""

    def __init__(self, megabytes: int) -> None:
        self._bound = megabytes * 2**20
        self._size = 0
        self._kept: OrderedDict[str, Tensor] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def get(self, name: str) -> Tensor | None:
        if name in self._kept:
            self._kept.move_to_end(name)
        return self._kept.get(name)

    def put(self, name: str, states_NLD: Tensor) -> None:
        self._kept[name] = states_NLD.cpu()
        self._size += states_NLD.nbytes
        while self._size > self._bound:
            _, oldest = self._kept.popitem(last=False)
            self._size -= oldest.nbytes

    def __deepcopy__(self, memo: dict[int, Any]) -> FeatureCache:
        """Copies of a model share what their frozen tower sees."""
        return self


def kept_features(
    visual: Any, screenshots: Mapping[str, Screenshot], encode: Callable[[list[Screenshot]], Tensor]
) -> Tensor:
    """What `encode` gives for all, [sum of tokens, levels, width]; the tower runs only for those not kept."""
    cache: FeatureCache = visual.feature_cache
    states = []
    for name, shot in screenshots.items():
        found = cache.get(name)
        if found is None:
            with torch.no_grad(), _mergers_left_out(visual):
                found = encode([shot])
            cache.put(name, found)
        states.append(found.to(visual.device))
    levels = zip(torch.cat(states).unbind(1), _mergers(visual), strict=True)
    unit = visual.spatial_merge_unit
    return torch.stack([merger(state.unflatten(1, (unit, -1)).flatten(0, 1)) for state, merger in levels], 1)


def _mergers(visual: Any) -> list[Any]:
    return [visual.merger, *getattr(visual, "deepstack_merger_list", ())]


@contextmanager
def _mergers_left_out(visual: nn.Module) -> Iterator[None]:
    """Within it, each image token's features are the states of its patches side by side."""
    mergers = _mergers(visual)
    for merger in mergers:
        merger.forward = lambda states_PD, width=merger.hidden_size: states_PD.reshape(-1, width)
    try:
        yield
    finally:
        for merger in mergers:
            del merger.forward
