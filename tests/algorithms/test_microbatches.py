from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from arpo.algorithms.microbatches import Microbatch, assign_to_ranks, balance_sizes, split_microbatches
from arpo.types import Sample


def sample(length: int, advantage: float = 0.0) -> Sample:
    return Sample(
        token_ids=tuple(range(length)),
        mask=(False,) * (length - 1) + (True,),
        images=(),
        behaviour_logprobs=(-1.0,),
        advantage=advantage,
        weight=1.0,
        replayed=False,
    )


def lengths(microbatches: Sequence[Microbatch]) -> list[list[int]]:
    return [[len(one.token_ids) for one in microbatch] for microbatch in microbatches]


def test_longest_first_as_many_as_fit_when_padded() -> None:
    samples = [sample(length) for length in (5, 2, 3, 1)]
    assert lengths(split_microbatches(samples, 6)) == [[5], [3, 2], [1]]
    assert lengths(split_microbatches(samples, 10)) == [[5, 3], [2, 1]]
    assert lengths(split_microbatches(samples, 20)) == [[5, 3, 2, 1]]


def test_a_sample_beyond_the_bound_stands_alone() -> None:
    assert lengths(split_microbatches([sample(3), sample(100), sample(3)], 6)) == [[100], [3, 3]]


def test_equal_lengths_keep_their_order() -> None:
    (microbatch,) = split_microbatches(
        [sample(4, advantage=1.0), sample(4, advantage=2.0), sample(4, advantage=3.0)], 12
    )
    assert [one.advantage for one in microbatch] == [1.0, 2.0, 3.0]


def test_nothing_to_pack() -> None:
    assert split_microbatches([], 10) == ()


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 120))
def test_every_sample_is_in_exactly_one_bounded_microbatch(sizes: list[int], bound: int) -> None:
    samples = [sample(size, advantage=float(place)) for place, size in enumerate(sizes)]
    microbatches = split_microbatches(samples, bound)
    assert sorted(one.advantage for batch in microbatches for one in batch) == sorted(
        one.advantage for one in samples
    )
    for batch in microbatches:
        assert len(batch) == 1 or len(batch) * max(len(one.token_ids) for one in batch) <= bound


def test_the_largest_goes_first_to_the_part_that_holds_least() -> None:
    assert balance_sizes([5, 2, 3, 1], 2) == ((0, 3), (2, 1))
    assert balance_sizes([4, 4, 4], 2) == ((0, 2), (1,))
    assert balance_sizes([7, 1, 1, 5, 1], 3) == ((0,), (3,), (1, 2, 4))
    assert balance_sizes([3], 3) == ((0,), (), ())


def test_every_rank_is_dealt_as_many_microbatches() -> None:
    samples = [sample(length) for length in (5, 2, 3, 1)]
    assert [lengths(share) for share in assign_to_ranks(samples, 2, 5)] == [[[5], [1]], [[3], [2]]]
    assert [lengths(share) for share in assign_to_ranks(samples, 2, 6)] == [[[5], [1]], [[3, 2], []]]
    assert [lengths(share) for share in assign_to_ranks(samples[:1], 3, 5)] == [[[5]], [[]], [[]]]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 5))
def test_no_rank_has_more_than_the_largest_sample_beyond_another(sizes: list[int], ranks: int) -> None:
    shares = balance_sizes(sizes, ranks)
    assert sorted(place for share in shares for place in share) == list(range(len(sizes)))
    loads = [sum(sizes[place] for place in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes)
