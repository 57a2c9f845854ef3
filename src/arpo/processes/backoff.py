"""The backoff policy of the package: how long to wait before something that failed is tried again."""

from __future__ import annotations

FIRST_SECONDS, LONGEST_SECONDS = 1.0, 60.0


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row.

    >>> [pause_after(failures) for failures in (0, 1, 2, 3, 2000)]
    [0.0, 1.0, 2.0, 4.0, 60.0]
    """
    if not failures:
        return 0.0
    return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, 16))  # a float has no 2.0 ** 1999
