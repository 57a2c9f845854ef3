"""Samples to ranks and micro-batches, bounded by their padded tokens. Nothing is cut, nothing left out."""

from __future__ import annotations

from collections.abc import Sequence

from arpo.types import Sample

Microbatch = tuple[Sample, ...]


def pack(samples: Sequence[Sample], max_tokens: int) -> tuple[Microbatch, ...]:
    """Longest first, as many to a micro-batch as fit when all are padded to its longest.

    A sample that is longer than `max_tokens` gets a micro-batch of its own. Lengths 5, 2, 3, 1 with 6 tokens:
    (5), (3, 2), (1).
    """
    by_length = sorted(
        samples, key=lambda sample: -len(sample.token_ids)
    )  # stable: equal lengths keep their order
    microbatches = []
    while by_length:
        fits = max(1, max_tokens // len(by_length[0].token_ids))
        microbatches.append(tuple(by_length[:fits]))
        by_length = by_length[fits:]
    return tuple(microbatches)


def deal(samples: Sequence[Sample], ranks: int, max_tokens: int) -> tuple[tuple[Microbatch, ...], ...]:
    """The micro-batches of each rank, as many for one as for another: where a rank has none left, empty ones.

    Lengths 5, 2, 3, 1 over two ranks with 5 tokens: (5), (1) and (3), (2).
    """
    shares = balance([len(sample.token_ids) for sample in samples], ranks)
    packed = [pack([samples[place] for place in share], max_tokens) for share in shares]
    most = max(map(len, packed))
    return tuple(part + ((),) * (most - len(part)) for part in packed)


def balance(sizes: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """Which of the sizes go to each part: the largest first, each to the part that holds least so far.

    Sizes 5, 2, 3, 1 over two parts: 5 and 1, 3 and 2; by their places, (0, 3) and (2, 1).
    """
    shares: list[list[int]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        part = loads.index(min(loads))
        shares[part].append(place)
        loads[part] += sizes[place]
    return tuple(map(tuple, shares))
