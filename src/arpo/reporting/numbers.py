"""Numbers as text for people: 1,536 instead of 1.54e+03, and a dash instead of nan."""

from __future__ import annotations

import math
from collections.abc import Sequence

NO_VALUE = "–"
SMALLEST_FIXED = 1e-4  # smaller numbers have an exponent: 1e-6
LARGEST_FIXED = 1e15


def format_number(value: float | None, percent: bool = False) -> str:
    """Three significant digits, and all digits before the point. `percent`: the value is a fraction.

    >>> [format_number(value) for value in (1536, 0.01234, -2.5, 1e-6, math.nan)]
    ['1,536', '0.0123', '−2.5', '1e-6', '–']
    >>> format_number(0.21875, percent=True)
    '21.9%'
    """
    if value is None or not math.isfinite(value):
        return NO_VALUE
    if percent:
        return f"{format_number(100 * value)}%"
    rounded = float(f"{abs(value):.3g}")
    if rounded == 0:
        return "0"
    if not SMALLEST_FIXED <= rounded < LARGEST_FIXED:
        digits, _, exponent = f"{rounded:.2e}".partition("e")
        text = f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    elif rounded >= 100:
        text = f"{abs(value):,.0f}"
    else:
        text = f"{rounded:.{2 - math.floor(math.log10(rounded))}f}".rstrip("0").rstrip(".")
    return f"−{text}" if value < 0 else text


def format_points(change: float) -> str:
    """A difference of fractions in percentage points: 0.279 is +27.9, -0.008 is −0.8, -0.0001 is 0.0."""
    return unsigned_zero(f"{100 * change:+.1f}").replace("-", "−")


def format_change(change: float, interval: Sequence[float]) -> str:
    """A change with its 95% interval: "+27.9 (+20.1 to +35.7)"."""
    return f"{format_points(change)} ({' to '.join(map(format_points, interval))})"


def unsigned_zero(text: str) -> str:
    """A formatted number; one that was rounded to 0 has no sign: "-0.0000" becomes "0.0000"."""
    return text if any(digit in text for digit in "123456789") else text.lstrip("+-")


def format_count(value: float) -> str:
    """A count with thousands separators; partial scores make it a fraction: 1536 is 1,536; 12.5 is 12.5."""
    return f"{round(value, 2):,.12g}"
