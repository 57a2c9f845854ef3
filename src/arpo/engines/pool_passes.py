"""Passes over packed rows, with one pool of tokens for all episodes: for 16-bit models on a GPU.

The pool takes the free memory of the GPU, but never more than all episodes can use. Without episodes it is
freed, so a learner on the same GPU has the memory between rollouts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from arpo.engines.cached_episodes import CachedEpisode, NewTokens
from arpo.engines.cuda_graphs import DecodeGraphs, padded_key_count
from arpo.models.families import VisionLanguageModel, linear_layers
from arpo.models.forward import EmbeddedRows, TokenRow, embed_rows, hidden_states
from arpo.models.fused_ops import compiled_small_inputs
from arpo.models.memory_plan import MAX_PREFILL_TOKENS, pool_tokens
from arpo.models.token_pool import PoolStep, TokenPool, extent_size

_KEY_PARTS = 4  # few graphs: the kernel reads only the keys there are
KEPT_BYTES = 2**30  # a pool up to this size stays allocated without episodes: its graphs stay valid


class PoolPasses:
    """`episodes` is the number of parallel episodes, `max_tokens` the length of the longest one.

    `gigabytes` is the size of the pool; 0: the free memory of the GPU. A `kept` pool stays allocated without
    episodes: a learner that works at the same time must not take its memory.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        pad_id: int,
        *,
        episodes: int,
        max_tokens: int,
        gigabytes: float = 0.0,
        kept: bool = False,
    ) -> None:
        self._model = model
        self._pad_id = pad_id
        self._episodes = episodes
        self._longest = extent_size(max_tokens + 1)
        self._gigabytes = gigabytes
        self._kept = kept
        self.rewinds = not linear_layers(model.config.text_config)
        self._pool: TokenPool | None = None
        self._graphs: DecodeGraphs | None = None
        if model.device.type == "cuda" and model.dtype != torch.float32:
            self._graphs = DecodeGraphs(model, episodes, self._graph_step)

    @property
    def pool(self) -> TokenPool:
        if self._pool is None:
            model, episodes = self._model, self._episodes
            tokens = pool_tokens(model, self._longest, episodes, self._gigabytes)
            self._pool = TokenPool(model.config.text_config, tokens, episodes, model.dtype, model.device)
        return self._pool

    def reset(self, *, discard: bool) -> None:
        if self._pool is None:
            return
        if (self._kept or self._pool.nbytes <= KEPT_BYTES) and not discard:
            self._pool.clear()
            return
        self._pool = None
        if self._graphs is not None:
            self._graphs.clear()
            torch.cuda.empty_cache()

    def fits(self, tokens: int) -> bool:
        return tokens <= self._longest

    def reserve(self, episode: CachedEpisode, tokens: int) -> bool:
        return self.pool.reserve(episode.name, tokens)

    def free(self, episode: CachedEpisode, others: Collection[CachedEpisode]) -> None:
        if self._pool is not None:
            self._pool.free(episode.name)

    def split(self, batch: Sequence[NewTokens]) -> Iterator[list[NewTokens]]:
        """Parts of at most `MAX_PREFILL_TOKENS` tokens, in order."""
        part: list[NewTokens] = []
        for new in batch:
            if part and sum(other.width for other in part) + new.width > MAX_PREFILL_TOKENS:
                yield part
                part = []
            part.append(new)
        yield part

    @torch.no_grad()
    def prefill(self, part: Sequence[NewTokens], features: Sequence[Tensor]) -> Tensor:
        row = TokenRow.joined([new.row for new in part])
        embedded = embed_rows(self._model, [row], features, self._pad_id)
        starts_B, widths_B = [new.start for new in part], [new.width for new in part]
        names = [new.episode.name for new in part]
        hidden_ND = self._hidden(names, starts_B, widths_B, embedded)
        logits_BV: Tensor = self._model.lm_head(hidden_ND[np.cumsum(widths_B) - 1])
        return logits_BV

    def _hidden(
        self, names: list[str], starts_B: list[int], widths_B: list[int], embedded: EmbeddedRows
    ) -> Tensor:
        """Hidden states of new tokens. A prompt too long for one pass comes alone and runs in parts."""
        if sum(widths_B) > MAX_PREFILL_TOKENS:
            (start,) = starts_B
            parts = [
                self._hidden(names, [start + first], [part.tokens_BT.shape[1]], part)
                for first, part in embedded.split(MAX_PREFILL_TOKENS)
            ]
            return torch.cat(parts)
        lengths_B = [start + width for start, width in zip(starts_B, widths_B, strict=True)]
        step = PoolStep.of(self.pool, names, lengths_B, widths_B)
        return hidden_states(
            self._model, embedded.embeds_BTD, embedded.positions_3BT, deepstack=embedded.deepstack, pool=step
        )[0]

    @torch.no_grad()
    def decode(self, episodes: Sequence[CachedEpisode], tokens: Sequence[int]) -> Tensor:
        names = [episode.name for episode in episodes]
        lengths = [len(episode.tokens) + 1 for episode in episodes]
        positions = [episode.position for episode in episodes]
        if self._graphs is None:
            device = self._model.device
            step = PoolStep.of(self.pool, names, lengths, [1] * len(names))
            return self._logits(
                torch.tensor(tokens, device=device), torch.tensor(positions, device=device), step
            )
        pool = self.pool
        starts, rows = [pool.extents[name].start for name in names], [pool.rows[name] for name in names]
        inputs_5B = np.array([tokens, positions, starts, lengths, rows])
        padding = self._graphs.padded_width(len(episodes)) - len(episodes)
        idle_5 = np.array([0, 0, pool.capacity, 1, pool.sequences])
        inputs_5B = np.concatenate((inputs_5B, idle_5[:, None].repeat(padding, 1)), 1)
        keys = padded_key_count(max(lengths), _KEY_PARTS)
        return self._graphs.logits(inputs_5B, keys, idle_5)[: len(episodes)]

    def _graph_step(self, inputs_5B: Tensor, keys: int) -> Tensor:
        tokens_B, positions_B, starts_B, lengths_B, rows_B = inputs_5B
        with compiled_small_inputs():
            return self._logits(
                tokens_B, positions_B, PoolStep.decoding(self.pool, starts_B, lengths_B, rows_B, keys)
            )

    def _logits(self, tokens_B: Tensor, positions_B: Tensor, step: PoolStep) -> Tensor:
        embeds_1BD = self._model.model.language_model.embed_tokens(tokens_B[None])
        hidden_1BD = hidden_states(self._model, embeds_1BD, positions_B.expand(3, 1, -1), pool=step)
        logits_BV: Tensor = self._model.lm_head(hidden_1BD[0])
        return logits_BV
