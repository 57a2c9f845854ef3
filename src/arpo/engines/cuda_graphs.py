"""Decoding steps recorded as CUDA graphs: on a GPU a small step costs its launches, and a replay has one.

One graph for each power of two of slots and each of some numbers of keys, recorded when first needed.
Weights are read where they lie, so an update of them is seen; a cache that has grown lies elsewhere, and its
graphs are recorded again. Only one runs at a time, so all compute in the same memory. Sampling is not part of
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from arpo.models.families import VisionLanguageModel
from arpo.models.forward import hidden_states
from arpo.models.kv_cache import CacheStep, SlotCache

_KEYS = 128  # attended lengths are multiples of this, and of a sixteenth or more of themselves


def keys_for(tokens: int) -> int:
    """How many keys are attended to for so many tokens: few different numbers, and little too many."""
    step = max(_KEYS, (1 << tokens.bit_length() - 1) // 16)
    return -(-tokens // step) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """A graph, and the tensors outside its own memory that it reads: they live as long as it does."""

    graph: torch.cuda.CUDAGraph
    inputs_3B: Tensor  # token, position and length of each slot
    slots_B1: Tensor


class DecodeGraphs:
    """Of one model over one cache, from slot 0 on; slots that do not decode run along, past their lengths."""

    def __init__(self, model: VisionLanguageModel, cache: SlotCache) -> None:
        self._model = model
        self._cache = cache
        self._recorded: dict[tuple[int, int], _Recorded] = {}
        self._capacity = 0  # of the cache when they were recorded
        self._pool = torch.cuda.graph_pool_handle()  # of all of them: they go together or not at all
        self._aside = torch.cuda.Stream()
        self._logits_SV = torch.empty(
            (cache.slots, model.lm_head.weight.shape[0]), dtype=model.dtype, device=model.device
        )

    @torch.no_grad()
    def logits(self, inputs_3S: NDArray[np.int64], slots: int, length: int) -> Tensor:
        """After each of the first `slots` slots' next token; `inputs_3S` are tokens, positions, lengths.

        `length` is that of the longest that decodes. The tensor is overwritten by the next call.
        """
        self._cache.reserve(int(inputs_3S[2].max()) + 1)
        if self._capacity != self._cache.capacity:
            self._capacity = self._cache.capacity
            self._recorded.clear()
            self._pool = torch.cuda.graph_pool_handle()
        width = min(1 << (slots - 1).bit_length(), self._cache.slots)
        keys = min(keys_for(length + 1), self._cache.capacity)
        inputs_3B = torch.from_numpy(inputs_3S[:, :width])
        if (width, keys) not in self._recorded:
            self._recorded[width, keys] = self._record(inputs_3B, keys)
        recorded = self._recorded[width, keys]
        recorded.inputs_3B.copy_(inputs_3B)
        recorded.graph.replay()
        return self._logits_SV[:width]

    def _record(self, inputs_3B: Tensor, keys: int) -> _Recorded:
        on_gpu_3B = inputs_3B.to(self._model.device)
        slots_B1 = torch.arange(inputs_3B.shape[1], device=self._model.device)[:, None]
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):  # libraries set themselves up first, which cannot be recorded
            self._step(on_gpu_3B, slots_B1, keys)
        torch.cuda.current_stream().wait_stream(self._aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._aside):
            self._step(on_gpu_3B, slots_B1, keys)
        return _Recorded(graph=graph, inputs_3B=on_gpu_3B, slots_B1=slots_B1)

    def _step(self, inputs_3B: Tensor, slots_B1: Tensor, keys: int) -> None:
        tokens_B, positions_B, lengths_B = inputs_3B
        cached = CacheStep(
            self._cache,
            rows=slice(0, len(slots_B1)),
            index_B1=slots_B1,
            places_BT=lengths_B[:, None],
            length=keys,
        )
        embeds_B1D = self._model.model.language_model.embed_tokens(tokens_B[:, None])
        positions_3B1 = positions_B[None, :, None].expand(3, -1, 1)
        hidden_B1D = hidden_states(self._model, embeds_B1D, positions_3B1, cached.mask(), cached)
        self._logits_SV[: len(slots_B1)] = self._model.lm_head(hidden_B1D[:, 0])
