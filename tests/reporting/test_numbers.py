"""Numbers as text."""

import math

import pytest

from arpo.reporting.numbers import format_count, format_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1536, "1,536"),
        (1536.4, "1,536"),
        (18_432_000, "18,432,000"),
        (999.7, "1,000"),
        (152.6, "153"),
        (99.96, "100"),
        (12.34, "12.3"),
        (1.5, "1.5"),
        (-2.5, "−2.5"),
        (0.6000000000000001, "0.6"),
        (0.01234, "0.0123"),
        (0.0001, "0.0001"),
        (0.00001, "1e-5"),
        (1e-6, "1e-6"),
        (-2.66e-10, "−2.66e-10"),
        (1e20, "1e20"),
        (math.nan, "–"),
        (math.inf, "–"),
        (None, "–"),
    ],
)
def test_numbers_are_readable(value, text):
    assert format_number(value) == text


def test_fractions_are_percentages():
    shares = [0, 0.21875, 0.5, 1, 0.001, math.nan]
    assert [format_number(share, percent=True) for share in shares] == [
        "0%",
        "21.9%",
        "50%",
        "100%",
        "0.1%",
        "–",
    ]


def test_counts_have_separators_and_keep_partial_scores():
    assert [format_count(value) for value in (0, 512, 1536.0, 12.5, 1 / 3)] == [
        "0",
        "512",
        "1,536",
        "12.5",
        "0.33",
    ]
