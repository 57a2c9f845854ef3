"""The tables of a comparison for a terminal: success rates and differences as plain text."""

from __future__ import annotations

from arpo.comparison.results import Comparison
from arpo.comparison.tables import Table, difference_table, display_name, missing_note, success_table


def render_terminal(comparison: Comparison) -> str:
    """Success rates in percent (mean ± standard deviation over seeds), differences and unfinished runs."""
    lines = ["", "Success rates in percent, and their standard deviation over seeds:", ""]
    lines += _lines(success_table(comparison))
    if comparison.differences:
        reference = display_name(comparison.reference)
        lines += ["", f"Difference from {reference} in percentage points, with its 95% interval:", ""]
        lines += _lines(difference_table(comparison))
    return "\n".join([*lines, *filter(None, ["", missing_note(comparison)])])


def _lines(table: Table) -> list[str]:
    head, rows = table
    cells = [list(head), *([cell.value for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(_aligned(row, widths)).rstrip() for row in cells]


def _aligned(row: list[str], widths: list[int]) -> list[str]:
    """The name on the left, all numbers on the right."""
    name, *numbers = [
        text.rjust(width) if index else text.ljust(width)
        for index, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return [name, *numbers]
