"""Passes over padded rows, one cache slot per episode: for CPUs, and for float32.

The cache has equal slots, so it is read without a copy, but memory follows the longest episode. For small
models this is the fastest way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from arpo.engines.cached_episodes import CachedEpisode, NewTokens
from arpo.engines.cuda_graphs import DecodeGraphs, padded_key_count
from arpo.models.families import VisionLanguageModel, linear_layers
from arpo.models.forward import EmbeddedRows, embed_rows, hidden_states
from arpo.models.kv_cache import CacheStep, SlotCache

MAX_PREFILL_TOKENS = 8192  # per pass, with padding: the mask has this many rows


class SlotPasses:
    """`slots` is the number of cached episodes."""

    def __init__(self, model: VisionLanguageModel, pad_id: int, slots: int) -> None:
        self._model = model
        self._pad_id = pad_id
        self._slots = slots
        self._graphs: DecodeGraphs | None = None
        self.rewinds = not linear_layers(model.config.text_config)
        self.reset(discard=True)

    def reset(self, *, discard: bool) -> None:
        """CUDA graphs refer to the memory of the cache, so it stays allocated unless it may hold NaNs."""
        if self._graphs is None or discard:
            model = self._model
            on_gpu = model.device.type == "cuda"
            slots = self._slots if on_gpu else 0  # on a CPU, the cache grows with the episodes
            self._cache = SlotCache(model.config.text_config, slots, model.dtype, model.device)
            captured = on_gpu and self.rewinds  # a graph runs idle slots too
            self._graphs = DecodeGraphs(model, self._slots, self._graph_step) if captured else None
            self._captured_capacity = 0
        self._lengths, self._tokens, self._positions = np.zeros((3, self._slots), dtype=np.int64)

    def fits(self, tokens: int) -> bool:
        return True  # the cache grows

    def reserve(self, episode: CachedEpisode, tokens: int) -> bool:
        return episode.slot < self._slots

    def free(self, episode: CachedEpisode, others: Collection[CachedEpisode]) -> None:
        """Move the last episode into the slot: consecutive slots are decoded without a copy of all keys."""
        last = max(others, key=lambda other: other.slot, default=episode)
        if last.slot > episode.slot:
            self._cache.move(last.slot, episode.slot)
            for numbers in (self._lengths, self._tokens, self._positions):
                numbers[episode.slot] = numbers[last.slot]
            last.slot = episode.slot

    def split(self, batch: Sequence[NewTokens]) -> Iterator[list[NewTokens]]:
        """Parts of similar width, to limit padding, and of at most `MAX_PREFILL_TOKENS` tokens."""
        part: list[NewTokens] = []
        for new in sorted(batch, key=lambda new: new.width):
            if part and (new.width > 2 * part[0].width or new.width * (len(part) + 1) > MAX_PREFILL_TOKENS):
                yield part
                part = []
            part.append(new)
        yield part

    @torch.no_grad()
    def prefill(self, part: Sequence[NewTokens], features: Sequence[Tensor]) -> Tensor:
        embedded = embed_rows(self._model, [new.row for new in part], features, self._pad_id)
        slots_B = [new.episode.slot for new in part]
        starts_B, widths_B = [new.start for new in part], [new.width for new in part]
        hidden_BTD = self._hidden(slots_B, starts_B, widths_B, embedded)
        self._lengths[slots_B] = np.add(starts_B, widths_B)
        last_BD = torch.stack(
            [hidden_TD[width - 1] for width, hidden_TD in zip(widths_B, hidden_BTD, strict=True)]
        )
        logits_BV: Tensor = self._model.lm_head(last_BD)
        return logits_BV

    def _hidden(
        self, slots_B: list[int], starts_B: list[int], widths_B: list[int], embedded: EmbeddedRows
    ) -> Tensor:
        """Hidden states of new tokens. A row too long for one pass comes alone and runs in parts."""
        if max(widths_B) > MAX_PREFILL_TOKENS:
            (start,), (width,) = starts_B, widths_B
            self._cache.reserve(1 + start + width)
            parts = [
                self._hidden(slots_B, [start + first], [part.tokens_BT.shape[1]], part)
                for first, part in embedded.split(MAX_PREFILL_TOKENS)
            ]
            return torch.cat(parts, 1)
        step = self._cache.step(slots_B, starts_B, widths_B)
        return hidden_states(
            self._model,
            embedded.embeds_BTD,
            embedded.positions_3BT,
            step.mask(),
            step,
            embedded.deepstack,
        )

    @torch.no_grad()
    def decode(self, episodes: Sequence[CachedEpisode], tokens: Sequence[int]) -> Tensor:
        """If most slots of a range are running, the idle ones run too: the cache is then read without a copy.

        Their writes lie beyond their length. With linear attention idle slots never run: a state has no such
        place.
        """
        running = [episode.slot for episode in episodes]
        self._tokens[running] = tokens
        self._positions[running] = [episode.position for episode in episodes]
        logits_BV = self._decode_with_graphs(running) if self._graphs else self._decode_rows(running)
        self._lengths[running] += 1
        return logits_BV

    def _decode_rows(self, running: list[int]) -> Tensor:
        slots_B = list(range(running[0], running[-1] + 1))
        if len(slots_B) > 2 * len(running) or not self.rewinds:
            slots_B = running
        tokens_B1 = torch.tensor(self._tokens[slots_B][:, None], device=self._model.device)
        positions_B1 = torch.tensor(self._positions[slots_B][:, None], device=self._model.device)
        embeds_B1D = self._model.model.language_model.embed_tokens(tokens_B1)
        starts_B = self._lengths[slots_B].tolist()
        step = self._cache.step(slots_B, starts_B, [1] * len(slots_B))
        positions_3B1 = positions_B1.expand(3, -1, -1)
        hidden_B1D = hidden_states(self._model, embeds_B1D, positions_3B1, step.mask(), step)
        rows = [slot - slots_B[0] for slot in running] if len(slots_B) > len(running) else slice(None)
        logits_BV: Tensor = self._model.lm_head(hidden_B1D[rows, 0])
        return logits_BV

    def _decode_with_graphs(self, running: list[int]) -> Tensor:
        """Graphs run from slot 0 on. A grown cache has a new address, so its graphs are captured again."""
        assert self._graphs is not None
        self._cache.reserve(int(self._lengths.max()) + 1)
        if self._captured_capacity != self._cache.capacity:
            self._captured_capacity = self._cache.capacity
            self._graphs.clear()
        length = int(self._lengths[running].max())
        keys = min(padded_key_count(length + 1), self._cache.capacity)
        width = self._graphs.padded_width(running[-1] + 1)
        inputs_3B = np.stack((self._tokens, self._positions, self._lengths))[:, :width]
        return self._graphs.logits(inputs_3B, keys)[running]

    def _graph_step(self, inputs_3B: Tensor, keys: int) -> Tensor:
        tokens_B, positions_B, lengths_B = inputs_3B
        width = len(tokens_B)
        step = CacheStep(
            self._cache,
            rows=slice(0, width),
            index_B1=torch.arange(width, device=inputs_3B.device)[:, None],
            cache_positions_BT=lengths_B[:, None],
            length=keys,
        )
        embeds_B1D = self._model.model.language_model.embed_tokens(tokens_B[:, None])
        positions_3B1 = positions_B[None, :, None].expand(3, -1, 1)
        hidden_B1D = hidden_states(self._model, embeds_B1D, positions_3B1, step.mask(), step)
        logits_BV: Tensor = self._model.lm_head(hidden_B1D[:, 0])
        return logits_BV
