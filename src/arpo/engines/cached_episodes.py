"""Episodes with cached keys, the new tokens of a request, and the cached part of a prompt."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from arpo.models.forward import TokenRow
from arpo.types import Prompt, Screenshot


@dataclass(slots=True, eq=False)
class CachedEpisode:
    """The tokens of an episode with cached keys, and the sha256 of their screenshots."""

    name: str
    slot: int  # the smallest free number
    tokens: list[int] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    position: int = 0  # rotary position of the next token to decode


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NewTokens:
    """The uncached part of a prompt."""

    episode: CachedEpisode
    start: int  # number of cached tokens
    row: TokenRow
    images: tuple[Screenshot, ...]

    @property
    def width(self) -> int:
        return len(self.row.token_ids)


class Passes(Protocol):
    """Forward passes of the model over new tokens, with a cache of the earlier ones.

    `rewinds`: an episode may go on after any of its cached tokens. If not, then after the last one only.
    """

    rewinds: bool

    def fits(self, tokens: int) -> bool:
        """Whether an episode of this many tokens fits into the cache if it is alone there."""

    def reserve(self, episode: CachedEpisode, tokens: int) -> bool:
        """Make room for this many tokens of the episode. Returns false if there is no room."""

    def free(self, episode: CachedEpisode, others: Collection[CachedEpisode]) -> None:
        """Drop the cached keys of the episode. May give its slot to one of the `others`."""

    def split(self, batch: Sequence[NewTokens]) -> Iterator[list[NewTokens]]:
        """Parts of a batch for one pass each."""

    def prefill(self, part: Sequence[NewTokens], features: Sequence[Tensor]) -> Tensor:
        """Run new tokens with the features of their images; returns the logits after the last of each."""

    def decode(self, episodes: Sequence[CachedEpisode], tokens: Sequence[int]) -> Tensor:
        """Run one new token of each episode, in the order of their slots; returns the logits."""

    def reset(self, *, discard: bool) -> None:
        """Forget all episodes. `discard`: the cache may hold NaNs, or the weights have moved."""


def cached_prefix(
    episode: CachedEpisode, prompt: Prompt, image_spans: Sequence[tuple[int, int]], *, rewinds: bool = True
) -> tuple[int, int]:
    """Number of tokens and images of the prompt already cached.

    The last token always runs again. An image is never split: its tokens do not identify its content. If the
    cache cannot be rewound, all of its tokens are used, or none.
    """
    limit = min(len(episode.tokens), len(prompt.token_ids) - 1)
    tokens = limit
    if episode.tokens[:limit] != list(prompt.token_ids[:limit]):
        equal = np.asarray(episode.tokens[:limit]) == np.asarray(prompt.token_ids[:limit])
        tokens = int(equal.argmin())
    images = 0
    for shot, cached_sha256, (first, end) in zip(prompt.images, episode.images, image_spans, strict=False):
        if shot.sha256 != cached_sha256 or end > tokens:
            tokens = min(tokens, int(first))
            break
        images += 1
    if tokens < len(episode.tokens) and not rewinds:
        return 0, 0
    return tokens, images
