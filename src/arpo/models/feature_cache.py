"""Cache of the vision states of screenshots, for a frozen vision tower.

The cache stores the inputs of the tower's mergers, not their outputs: mergers may have adapters and are
cheap. Each screenshot passes through the tower alone and without gradients, so cached states do not depend
on the other screenshots of a batch. A resumed run starts with an empty cache and computes the same bits.
The cache does not notice changed weights: use it for a frozen tower only.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from arpo.models.cores import map_over_cores
from arpo.types import Screenshot


class FeatureCache:
    """Vision states by the sha256 of the screenshot, in CPU memory.

    If the cache exceeds its size, it drops the least recently used entries.
    """

    def __init__(self, megabytes: int) -> None:
        self._limit = megabytes * 2**20
        self._size = 0
        self._states: OrderedDict[str, Tensor] = OrderedDict()
        self._lock = threading.Lock()  # engine and learner may share it, in two threads

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._states

    def names(self) -> list[str]:
        return list(self._states)

    def get(self, sha256: str) -> Tensor | None:
        with self._lock:
            if sha256 in self._states:
                self._states.move_to_end(sha256)
            return self._states.get(sha256)

    def put(self, sha256: str, states_NLD: Tensor) -> None:
        states_NLD = states_NLD.cpu()
        with self._lock:
            if sha256 in self._states:
                return
            self._states[sha256] = states_NLD
            self._size += states_NLD.nbytes
            while self._size > self._limit:
                _, oldest = self._states.popitem(last=False)
                self._size -= oldest.nbytes

    def __deepcopy__(self, memo: dict[int, Any]) -> FeatureCache:
        """Copies of a model share the cache: their frozen towers are equal."""
        return self


def cached_features(
    visual: Any, screenshots: Mapping[str, Screenshot], encode: Callable[[list[Screenshot]], Tensor]
) -> Tensor:
    """Features of all screenshots, [sum of tokens, levels, width]; the tower runs only on a cache miss."""
    features: FeatureCache = visual.feature_cache
    known = {sha256: features.get(sha256) for sha256 in screenshots}
    missing = {sha256: screenshots[sha256] for sha256, states in known.items() if states is None}
    with _without_mergers(visual):
        encoded = _encode_each(list(missing.values()), encode, visual.device)
    for sha256, states_NLD in zip(missing, encoded, strict=True):
        features.put(sha256, states_NLD)
        known[sha256] = states_NLD
    ordered = [states.to(visual.device) for states in known.values() if states is not None]
    levels = zip(torch.cat(ordered).unbind(1), _mergers(visual), strict=True)
    unit = visual.spatial_merge_size**2
    return torch.stack([merger(state.unflatten(1, (unit, -1)).flatten(0, 1)) for state, merger in levels], 1)


def _encode_each(
    screenshots: Sequence[Screenshot], encode: Callable[[list[Screenshot]], Tensor], device: torch.device
) -> list[Tensor]:
    """The states of each screenshot, encoded alone."""

    @torch.no_grad()
    def states(shot: Screenshot) -> Tensor:
        return encode([shot])

    if device.type != "cpu":
        return [states(shot) for shot in screenshots]
    return list(map_over_cores(states, screenshots))


def _mergers(visual: Any) -> list[Any]:
    return [visual.merger, *getattr(visual, "deepstack_merger_list", ())]


@contextmanager
def _without_mergers(visual: nn.Module) -> Iterator[None]:
    """Replace each merger by a reshape: an image token's features are the states of its patches."""
    mergers = _mergers(visual)
    for merger in mergers:
        merger.forward = lambda states_PD, width=merger.hidden_size: states_PD.reshape(-1, width)
    try:
        yield
    finally:
        for merger in mergers:
            del merger.forward
