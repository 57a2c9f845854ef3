"""CUDA graphs of decoding steps: small steps are launch-bound, and a graph replays each as one launch.

There is one graph for each power of two of slots and each of a few key counts, captured on first use. Graphs
read weights at their address, so in-place updates take effect. A grown cache has a new address, and
its graphs are captured again. Only one graph runs at a time, so all share one memory pool. Sampling runs
outside the graphs.
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

_KEY_MULTIPLE = 128  # key counts are multiples of this, or of 1/16 of the next lower power of two


def padded_key_count(tokens: int) -> int:
    """Number of keys to attend to for this many tokens: few distinct values, with little padding.

    Examples: 1 to 128, 129 to 256, 4097 to 4352.
    """
    step = max(_KEY_MULTIPLE, (1 << tokens.bit_length() - 1) // 16)
    return -(-tokens // step) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class _CapturedGraph:
    """A graph and the tensors it reads outside its memory pool; they must live as long as the graph."""

    graph: torch.cuda.CUDAGraph
    inputs_3B: Tensor  # token, position and length of each slot
    slots_B1: Tensor


class DecodeGraphs:
    """Graphs of one model and one cache, from slot 0 on. Idle slots run too, beyond their lengths."""

    def __init__(self, model: VisionLanguageModel, cache: SlotCache) -> None:
        self._model = model
        self._cache = cache
        self._graphs: dict[tuple[int, int], _CapturedGraph] = {}
        self._capacity = 0  # of the cache at capture
        self._pool = torch.cuda.graph_pool_handle()  # shared by all graphs: they are dropped together
        self._capture_stream = torch.cuda.Stream()
        self._logits_SV = torch.empty(
            (cache.slots, model.lm_head.weight.shape[0]), dtype=torch.float32, device=model.device
        )

    @torch.no_grad()
    def logits(self, inputs_3S: NDArray[np.int64], slots: int, length: int) -> Tensor:
        """Logits after the next token of each of the first `slots` slots.

        `inputs_3S` holds tokens, positions and lengths. `length` is the largest length of a running slot. The
        next call overwrites the returned tensor.
        """
        self._cache.reserve(int(inputs_3S[2].max()) + 1)
        if self._capacity != self._cache.capacity:
            self._capacity = self._cache.capacity
            self._graphs.clear()
            self._pool = torch.cuda.graph_pool_handle()
        width = min(1 << (slots - 1).bit_length(), self._cache.slots)
        keys = min(padded_key_count(length + 1), self._cache.capacity)
        inputs_3B = torch.from_numpy(inputs_3S[:, :width])
        if (width, keys) not in self._graphs:
            self._graphs[width, keys] = self._capture(inputs_3B, keys)
        captured = self._graphs[width, keys]
        captured.inputs_3B.copy_(inputs_3B)
        captured.graph.replay()
        return self._logits_SV[:width]

    def _capture(self, inputs_3B: Tensor, keys: int) -> _CapturedGraph:
        static_inputs_3B = inputs_3B.to(self._model.device)
        slots_B1 = torch.arange(inputs_3B.shape[1], device=self._model.device)[:, None]
        self._capture_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._capture_stream):  # warm-up: library setup cannot be captured
            self._step(static_inputs_3B, slots_B1, keys)
        torch.cuda.current_stream().wait_stream(self._capture_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._capture_stream):
            self._step(static_inputs_3B, slots_B1, keys)
        return _CapturedGraph(graph=graph, inputs_3B=static_inputs_3B, slots_B1=slots_B1)

    def _step(self, inputs_3B: Tensor, slots_B1: Tensor, keys: int) -> None:
        tokens_B, positions_B, lengths_B = inputs_3B
        cache_step = CacheStep(
            self._cache,
            rows=slice(0, len(slots_B1)),
            index_B1=slots_B1,
            cache_positions_BT=lengths_B[:, None],
            length=keys,
        )
        embeds_B1D = self._model.model.language_model.embed_tokens(tokens_B[:, None])
        positions_3B1 = positions_B[None, :, None].expand(3, -1, 1)
        hidden_B1D = hidden_states(self._model, embeds_B1D, positions_3B1, cache_step.mask(), cache_step)
        self._logits_SV[: len(slots_B1)] = self._model.lm_head(hidden_B1D[:, 0])
