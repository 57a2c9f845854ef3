"""The table of a comparison for a terminal: success rates and findings as plain text."""

from __future__ import annotations

from arpo.evaluation.comparison_results import Comparison
from arpo.viewer.comparison_text import findings, missing_note, success_table


def render_terminal(comparison: Comparison) -> str:
    """Success rates in percent (mean ± standard deviation over seeds), findings and unfinished runs."""
    head, rows = success_table(comparison)
    table = [list(head), *([cell.value for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in table]
    caption = "Success rates in percent, and their standard deviation over seeds:"
    return "\n".join(
        ["", caption, "", *lines, "", *findings(comparison), *filter(None, [missing_note(comparison)])]
    )


def _aligned(row: list[str], widths: list[int]) -> list[str]:
    """The name on the left, all numbers on the right."""
    name, *numbers = [
        text.rjust(width) if index else text.ljust(width)
        for index, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return [name, *numbers]
