"""Splits samples into micro-batches and assigns them to ranks, bounded by padded tokens. No sample is cut."""

from __future__ import annotations

from collections.abc import Sequence

from arpo.types import Sample

Microbatch = tuple[Sample, ...]


def split_microbatches(samples: Sequence[Sample], max_tokens: int) -> tuple[Microbatch, ...]:
    """Fill each micro-batch, longest samples first, up to `max_tokens` tokens padded to its longest sample.

    A sample longer than `max_tokens` gets a micro-batch of its own. Lengths 5, 2, 3, 1 with 6 tokens:
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


def assign_to_ranks(
    samples: Sequence[Sample], ranks: int, max_tokens: int
) -> tuple[tuple[Microbatch, ...], ...]:
    """The micro-batches of each rank. All ranks get the same number: the last ones may be empty.

    Lengths 5, 2, 3, 1 over two ranks with 5 tokens: (5), (1) and (3), (2).
    """
    shares = balance_sizes([len(sample.token_ids) for sample in samples], ranks)
    split = [split_microbatches([samples[index] for index in share], max_tokens) for share in shares]
    most = max(map(len, split))
    return tuple(part + ((),) * (most - len(part)) for part in split)


def balance_sizes(sizes: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """Indices of the sizes of each part. The largest comes first and goes to the part with the least so far.

    Sizes 5, 2, 3, 1 over two parts: 5 and 1, 3 and 2. As indices: (0, 3) and (2, 1).
    """
    shares: list[list[int]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        part = loads.index(min(loads))
        shares[part].append(index)
        loads[part] += sizes[index]
    return tuple(map(tuple, shares))
