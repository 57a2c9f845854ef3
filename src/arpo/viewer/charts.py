"""Line charts as inline SVG: a few series over the step, two axes, nothing that runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 12, 24

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    label: str
    points: Points


def line_chart(title: str, series: Sequence[Series], *, percent: bool = False) -> str:
    """A figure: one coloured line for each series, and the last value of each in the legend."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    x_low, x_high = _range([x for one in drawn for x, _ in one.points])
    ticks = _ticks([y for one in drawn for _, y in one.points])
    y_low, y_high = ticks[0], ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low)
        up = (y - y_low) / (y_high - y_low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = []
    for value in ticks:
        _, y = place(x_low, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{number(value, percent)}</text>'
        )
    for value, anchor in ((x_low, "start"), (x_high, "end")):
        x, _ = place(value, y_low)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{value:g}</text>')
    for index, one in enumerate(drawn):
        parts.append(_line(index, one, place, percent))
    legend = "".join(
        f'<span class="key s{index}">{escape(one.label)} <b>{number(one.points[-1][1], percent)}</b></span>'
        for index, one in enumerate(drawn)
    )
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
    return f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{picture}<p>{legend}</p></figure>'


def number(value: float, percent: bool = False) -> str:
    return f"{value:.3g}" if not percent else f"{100 * value:.3g}%"


def _line(
    index: int, series: Series, place: Callable[[float, float], tuple[float, float]], percent: bool
) -> str:
    places = [place(x, y) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{2.5 if len(places) < 40 else 1.2}">'
        f"<title>{escape(series.label)}, step {step:g}: {number(value, percent)}</title></circle>"
        for (x, y), (step, value) in zip(places, series.points, strict=True)
    )
    return f'<g class="s{index}"><polyline points="{path}"/>{dots}</g>'


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers that hold 0 and all the values between them: (0.1, 0.5) -> 0, 0.2, 0.4, 0.6."""
    low, high = _range([0.0, *values])
    least = (high - low) / 4
    size = 10 ** math.floor(math.log10(least))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= least)
    return [step * index for index in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low, low + 1.0)
