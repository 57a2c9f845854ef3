"""CUDA graphs of decoding steps: small steps are launch-bound, and a graph replays each as one launch.

There is one graph for each power of two of rows and each of a few key counts, captured on first use. Graphs
read weights and caches at their address, so in-place updates take effect. Only one graph runs at a time, so
all share one memory pool. Sampling runs outside the graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from arpo.models.families import VisionLanguageModel

_KEY_MULTIPLE = 128

DecodeStep = Callable[[Tensor, int], Tensor]  # integers of each row, number of keys → logits


def padded_key_count(tokens: int, parts: int = 16) -> int:
    """Number of keys to plan for: a multiple of 128 and of 1/parts of the next lower power of two.

    So there are few distinct values, with little padding. Examples: 1 to 128, 129 to 256, 4097 to 4352.
    """
    step = max(_KEY_MULTIPLE, (1 << tokens.bit_length() - 1) // parts)
    return -(-tokens // step) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class _CapturedGraph:
    """A graph and the inputs it reads outside its memory pool; they must live as long as the graph."""

    graph: torch.cuda.CUDAGraph
    inputs_KB: Tensor


class DecodeGraphs:
    """Graphs of one step function with at most `rows` rows."""

    def __init__(self, model: VisionLanguageModel, rows: int, step: DecodeStep) -> None:
        self._device = model.device
        self._rows = rows
        self._step = step
        self._capture_stream = torch.cuda.Stream()
        self._logits_BV = torch.empty(
            (rows, model.lm_head.weight.shape[0]), dtype=torch.float32, device=model.device
        )
        self.clear()

    def clear(self) -> None:
        """Drop all graphs, with their memory: the cache has another address."""
        self._graphs: dict[tuple[int, int], _CapturedGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()  # shared by all graphs: they are dropped together

    def padded_width(self, rows: int) -> int:
        """Number of rows to run for this many."""
        return min(1 << (rows - 1).bit_length(), self._rows)

    @torch.no_grad()
    def logits(
        self, inputs_KB: NDArray[np.int64], keys: int, idle_K: NDArray[np.int64] | None = None
    ) -> Tensor:
        """Logits of each row. The next call overwrites the returned tensor.

        A new graph runs its step once more, before the replay. `idle_K` are then the values of each row: they
        change the cache of no sequence. None if a step may be repeated, as with keys and values alone.
        """
        width = inputs_KB.shape[1]
        inputs = torch.from_numpy(np.ascontiguousarray(inputs_KB))
        if (width, keys) not in self._graphs:
            idle = inputs if idle_K is None else torch.from_numpy(idle_K)[:, None].repeat(1, width)
            self._graphs[width, keys] = self._capture(idle, keys)
        captured = self._graphs[width, keys]
        captured.inputs_KB.copy_(inputs)
        captured.graph.replay()
        return self._logits_BV[:width]

    def _capture(self, inputs_KB: Tensor, keys: int) -> _CapturedGraph:
        static_inputs_KB = inputs_KB.to(self._device)
        self._capture_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._capture_stream):  # warm-up: library setup cannot be captured
            self._step(static_inputs_KB, keys)
        torch.cuda.current_stream().wait_stream(self._capture_stream)
        graph = torch.cuda.CUDAGraph()
        # In asynchronous training a learner allocates memory in another thread: this must not fail a capture.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=self._capture_stream, capture_error_mode=mode):
            self._logits_BV[: inputs_KB.shape[1]] = self._step(static_inputs_KB, keys)
        return _CapturedGraph(graph=graph, inputs_KB=static_inputs_KB)
