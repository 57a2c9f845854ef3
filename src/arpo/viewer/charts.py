"""Charts of a comparison as inline SVG without scripts: lines, bars, intervals and shares.

The index of a series sets its colour class (s0, s1, …). A series without points keeps its index, so each
series has the same colour in all charts of a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from arpo.reporting.numbers import format_number

LEFT, RIGHT, TOP, BOTTOM = 54, 12, 12, 24
ROW_HEIGHT = 26  # of interval and share charts
LETTER_WIDTH = 7  # approximate, of a row's label

Points = Sequence[tuple[float, float]]
Band = Sequence[tuple[float, float, float]]  # x, low, high
Interval = tuple[float, float]
ToPixels = Callable[[float, float], tuple[float, float]]  # from data to SVG coordinates


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    width: int
    height: int


SMALL, LARGE = Size(width=360, height=190), Size(width=560, height=280)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    label: str
    points: Points
    band: Band = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BarSeries:
    """One bar per group, with a range; None: no bar in this group."""

    label: str
    values: Sequence[tuple[float, float, float] | None]  # mean, low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean and its interval, drawn as a dot on a line."""

    label: str
    mean: float
    interval: Interval | None
    colour: int


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    percent: bool = False,
    x_name: str = "step",
    size: Size = SMALL,
    from_zero: bool = True,
) -> str:
    """Figure with one line per series. The legend shows the last value. Empty string without points."""
    drawn = [(index, one) for index, one in enumerate(series) if one.points]
    if not drawn:
        return ""
    x_low, x_high = _range([x for _, one in drawn for x, _ in one.points])
    heights = [y for _, one in drawn for _, y in one.points]
    heights += [y for _, one in drawn for _, low, high in one.band for y in (low, high)]
    ticks = _ticks([0.0, *heights] if from_zero else heights)
    y_low, y_high = ticks[0], ticks[-1]

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low)
        up = (y - y_low) / (y_high - y_low)
        return LEFT + across * (size.width - LEFT - RIGHT), size.height - BOTTOM - up * (
            size.height - TOP - BOTTOM
        )

    parts = _grid(ticks, to_pixels, x_low, size, percent)
    for value, anchor in ((x_low, "start"), (x_high, "end")):
        x, _ = to_pixels(value, y_low)
        name = "" if x_name == "step" or anchor == "start" else f" {escape(x_name)}s"
        text = f"{format_number(value)}{name}"
        parts.append(f'<text x="{x:.1f}" y="{size.height - 6}" text-anchor="{anchor}">{text}</text>')
    parts += [_band(index, one, to_pixels) for index, one in drawn if one.band]
    radius = 2.5 if sum(len(one.points) for _, one in drawn) < 60 else 1.2
    parts += [_line(index, one, to_pixels, percent, x_name, radius) for index, one in drawn]
    legend = [(f"s{index}", one.label, format_number(one.points[-1][1], percent)) for index, one in drawn]
    return _figure(title, parts, size, legend)


def bar_chart(title: str, groups: Sequence[str], bars: Sequence[BarSeries], *, size: Size = LARGE) -> str:
    """Figure with one bar per group and series, and a whisker over its range. Values are fractions."""
    drawn = [(index, one) for index, one in enumerate(bars) if any(one.values)]
    tops = [value[2] for _, one in drawn for value in one.values if value]
    if not tops:
        return ""
    ticks = _ticks([0.0, *tops])

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        across = LEFT + x / len(groups) * (size.width - LEFT - RIGHT)
        return across, size.height - BOTTOM - y / ticks[-1] * (size.height - TOP - BOTTOM)

    parts = _grid(ticks, to_pixels, 0.0, size, percent=True)
    width = 0.8 / len(drawn)
    for position, group in enumerate(groups):
        x, _ = to_pixels(position + 0.5, 0.0)
        parts.append(f'<text x="{x:.1f}" y="{size.height - 6}" text-anchor="middle">{escape(group)}</text>')
        for offset, (index, one) in enumerate(drawn):
            if (value := one.values[position]) is not None:
                tooltip = f"{one.label}, {group}: {format_number(value[0], True)}"
                parts.append(_bar(index, position + 0.1 + offset * width, width, value, to_pixels, tooltip))
    return _figure(title, parts, size, [(f"s{index}", one.label, "") for index, one in drawn])


def interval_chart(title: str, estimates: Sequence[Estimate], *, width: int = LARGE.width) -> str:
    """Figure with one row per difference: a dot on its interval. Values are fractions, shown in points."""
    if not estimates:
        return ""
    ends = [0.0, *(one.mean for one in estimates)]
    ends += [end for one in estimates for end in one.interval or ()]
    ticks = _ticks(ends)
    left = _label_width([one.label for one in estimates], width)
    size = Size(width=width, height=ROW_HEIGHT * len(estimates) + TOP + BOTTOM)

    def to_x(value: float) -> float:
        return left + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (width - left - RIGHT - 12)

    parts = []
    for value in ticks:
        x, kind = to_x(value), "zero" if abs(value) < 1e-12 else "grid"
        parts.append(
            f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{size.height - BOTTOM}"/>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{size.height - 6}" text-anchor="middle">{_signed_points(value)}</text>'
        )
    for row, one in enumerate(estimates):
        y = TOP + ROW_HEIGHT * (row + 0.5)
        parts += [_row_label(one.label, left, y), f'<g class="s{one.colour}">']
        if one.interval:
            low, high = map(to_x, one.interval)
            parts.append(f'<line class="thin" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        tooltip = escape(f"{one.label}: {_signed_points(one.mean)} points")
        parts.append(
            f'<circle cx="{to_x(one.mean):.1f}" cy="{y}" r="4"><title>{tooltip}</title></circle></g>'
        )
    return _figure(title, parts, size, [])


def share_chart(
    title: str,
    part_names: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float]]],
    *,
    width: int = LARGE.width,
) -> str:
    """Figure with one full-width bar per row, divided by the share of each part."""
    rows = [(name, values) for name, values in rows if sum(values) > 0]
    if not rows:
        return ""
    left = _label_width([name for name, _ in rows], width)
    size = Size(width=width, height=ROW_HEIGHT * len(rows) + TOP)
    parts = []
    for row, (name, values) in enumerate(rows):
        y, x = TOP / 2 + ROW_HEIGHT * row, float(left)
        parts.append(_row_label(name, left, y + ROW_HEIGHT / 2))
        for index, (part, value) in enumerate(zip(part_names, values, strict=True)):
            share = value / sum(values)
            length = share * (width - left - RIGHT)
            tooltip = escape(f"{name}, {part}: {format_number(share, True)}")
            parts.append(
                f'<rect class="p{index}" x="{x:.1f}" y="{y + 4}" width="{length:.1f}" '
                f'height="{ROW_HEIGHT - 8}"><title>{tooltip}</title></rect>'
            )
            if share >= 0.08:
                parts.append(
                    f'<text class="on" x="{x + length / 2:.1f}" y="{y + ROW_HEIGHT / 2 + 3.5:.1f}" '
                    f'text-anchor="middle">{100 * share:.0f}%</text>'
                )
            x += length
    return _figure(title, parts, size, [(f"p{index}", part, "") for index, part in enumerate(part_names)])


def _signed_points(value: float) -> str:
    """A fraction in percentage points: 0.05 -> +5, -0.125 -> −12.5"""
    points = round(100 * value, 6)
    return f"{points:+.3g}".replace("-", "−") if points else "0"


def _label_width(names: Sequence[str], width: int) -> int:
    """Width of the row labels, at most half of the chart."""
    return min(10 + LETTER_WIDTH * max(map(len, names)), width // 2)


def _row_label(name: str, width: int, middle: float) -> str:
    """Label of a row. A long name is shortened in the middle; the tooltip shows it in full."""
    fits = (width - 10) // LETTER_WIDTH
    half = (fits - 1) // 2
    shown = name if len(name) <= fits else f"{name[:half]}…{name[-half:]}"
    return (
        f'<text class="name" x="{width - 10}" y="{middle + 3.5:.1f}" text-anchor="end">{escape(shown)}'
        f"<title>{escape(name)}</title></text>"
    )


def _figure(title: str, parts: Sequence[str], size: Size, legend: Sequence[tuple[str, str, str]]) -> str:
    """`legend` has (CSS class, label, value) per entry."""
    keys = "".join(
        f'<span class="key {kind}">{escape(label)}{f" <b>{value}</b>" if value else ""}</span>'
        for kind, label, value in legend
    )
    svg = (
        f'<svg viewBox="0 0 {size.width} {size.height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
    caption = f"<figcaption>{escape(title)}</figcaption>"
    return f'<figure class="chart">{caption}{svg}<p>{keys}</p></figure>'


def _grid(ticks: Sequence[float], to_pixels: ToPixels, x_low: float, size: Size, percent: bool) -> list[str]:
    parts = []
    for value in ticks:
        _, y = to_pixels(x_low, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{size.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{format_number(value, percent)}</text>'
        )
    return parts


def _band(index: int, series: Series, to_pixels: ToPixels) -> str:
    upper = [to_pixels(x, high) for x, _, high in series.band]
    lower = [to_pixels(x, low) for x, low, _ in reversed(series.band)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *lower])
    return f'<polygon class="band s{index}" points="{path}"/>'


def _line(index: int, series: Series, to_pixels: ToPixels, percent: bool, x_name: str, radius: float) -> str:
    pixels = [to_pixels(x, y) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
        f"<title>{escape(series.label)}, {escape(x_name)} {format_number(at)}: "
        f"{format_number(value, percent)}</title>"
        "</circle>"
        for (x, y), (at, value) in zip(pixels, series.points, strict=True)
    )
    return f'<g class="s{index}"><polyline points="{path}"/>{dots}</g>'


def _bar(
    index: int,
    left: float,
    width: float,
    value: tuple[float, float, float],
    to_pixels: ToPixels,
    tooltip: str,
) -> str:
    mean, low, high = value
    (x, top), (end, bottom) = to_pixels(left, mean), to_pixels(left + width, 0.0)
    middle, (_, y_low), (_, y_high) = (x + end) / 2, to_pixels(0, low), to_pixels(0, high)
    whisker = (
        f'<line class="whisker" x1="{middle:.1f}" x2="{middle:.1f}" y1="{y_low:.1f}" y2="{y_high:.1f}"/>'
    )
    return (
        f'<g class="s{index}"><rect x="{x:.1f}" y="{top:.1f}" width="{max(end - x - 1, 1):.1f}" '
        f'height="{bottom - top:.1f}"><title>{escape(tooltip)}</title></rect>'
        f"{whisker if high > low else ''}</g>"
    )


def _ticks(values: Sequence[float]) -> list[float]:
    """Round axis values that enclose all values: (0, 0.5) -> 0, 0.2, 0.4, 0.6."""
    low, high = _range(values)
    least = (high - low) / 4
    size = 10 ** math.floor(math.log10(least))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= least)
    return [step * index for index in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low, low + 1.0)
