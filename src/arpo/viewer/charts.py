"""Charts as inline SVG: lines with bands, bars, intervals and shares. Two axes at most, nothing that runs.

A series has its colour from its place in the list, drawn or not, so that a page can keep one colour for one
thing over all of its charts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

LEFT, RIGHT, TOP, BOTTOM = 54, 12, 12, 24
ROW = 26  # the height of a row of intervals or shares
LETTER = 7  # about the width of a letter of a row's name

Points = Sequence[tuple[float, float]]
Band = Sequence[tuple[float, float, float]]  # x, low, high
Interval = tuple[float, float]
Place = Callable[[float, float], tuple[float, float]]


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
class Bars:
    """One bar in each group, with the range that it is the mean of; None: no bar there."""

    label: str
    values: Sequence[tuple[float, float, float] | None]  # mean, low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with a thick interval inside a thin one, either of which may be unknown."""

    label: str
    mean: float
    thick: Interval | None
    thin: Interval | None
    colour: int


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    percent: bool = False,
    over: str = "step",
    size: Size = SMALL,
    from_zero: bool = True,
) -> str:
    """A figure: one coloured line for each series, and the last value of each in the legend."""
    drawn = [(index, one) for index, one in enumerate(series) if one.points]
    if not drawn:
        return ""
    x_low, x_high = _range([x for _, one in drawn for x, _ in one.points])
    heights = [y for _, one in drawn for _, y in one.points]
    heights += [y for _, one in drawn for _, low, high in one.band for y in (low, high)]
    ticks = _ticks([0.0, *heights] if from_zero else heights)
    y_low, y_high = ticks[0], ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low)
        up = (y - y_low) / (y_high - y_low)
        return LEFT + across * (size.width - LEFT - RIGHT), size.height - BOTTOM - up * (
            size.height - TOP - BOTTOM
        )

    parts = _grid(ticks, place, x_low, size, percent)
    for value, anchor in ((x_low, "start"), (x_high, "end")):
        x, _ = place(value, y_low)
        name = "" if over == "step" or anchor == "start" else f" {escape(over)}s"
        parts.append(
            f'<text x="{x:.1f}" y="{size.height - 6}" text-anchor="{anchor}">{value:,.10g}{name}</text>'
        )
    parts += [_band(index, one, place) for index, one in drawn if one.band]
    radius = 2.5 if sum(len(one.points) for _, one in drawn) < 60 else 1.2
    parts += [_line(index, one, place, percent, over, radius) for index, one in drawn]
    legend = [(f"s{index}", one.label, number(one.points[-1][1], percent)) for index, one in drawn]
    return _figure(title, parts, size, legend)


def bar_chart(title: str, groups: Sequence[str], bars: Sequence[Bars], *, size: Size = LARGE) -> str:
    """A figure: for each group a bar of each series, with a whisker over its range; fractions as percent."""
    drawn = [(index, one) for index, one in enumerate(bars) if any(one.values)]
    tops = [value[2] for _, one in drawn for value in one.values if value]
    if not tops:
        return ""
    ticks = _ticks([0.0, *tops])

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + x / len(groups) * (size.width - LEFT - RIGHT)
        return across, size.height - BOTTOM - y / ticks[-1] * (size.height - TOP - BOTTOM)

    parts = _grid(ticks, place, 0.0, size, percent=True)
    width = 0.8 / len(drawn)
    for position, group in enumerate(groups):
        x, _ = place(position + 0.5, 0.0)
        parts.append(f'<text x="{x:.1f}" y="{size.height - 6}" text-anchor="middle">{escape(group)}</text>')
        for slot, (index, one) in enumerate(drawn):
            if (value := one.values[position]) is not None:
                told = f"{one.label}, {group}: {number(value[0], True)}"
                parts.append(_bar(index, position + 0.1 + slot * width, width, value, place, told))
    return _figure(title, parts, size, [(f"s{index}", one.label, "") for index, one in drawn])


def interval_chart(title: str, estimates: Sequence[Estimate], *, width: int = LARGE.width) -> str:
    """A figure: each difference as a dot on its intervals, beside the line of no difference; in points."""
    if not estimates:
        return ""
    ends = [0.0, *(one.mean for one in estimates)]
    ends += [end for one in estimates for interval in (one.thick, one.thin) if interval for end in interval]
    ticks = _ticks(ends)
    label = _names_width([one.label for one in estimates], width)
    size = Size(width=width, height=ROW * len(estimates) + TOP + BOTTOM)

    def across(value: float) -> float:
        return label + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (width - label - RIGHT - 12)

    parts = []
    for value in ticks:
        x, kind = across(value), "zero" if abs(value) < 1e-12 else "grid"
        parts.append(
            f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{size.height - BOTTOM}"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{size.height - 6}" text-anchor="middle">{_signed(value)}</text>')
    for row, one in enumerate(estimates):
        y = TOP + ROW * (row + 0.5)
        parts += [_name(one.label, label, y), f'<g class="s{one.colour}">']
        for interval, kind in ((one.thin, "thin"), (one.thick, "thick")):
            if interval:
                low, high = map(across, interval)
                parts.append(f'<line class="{kind}" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        told = f"{one.label}: {_signed(one.mean)} points"
        parts.append(
            f'<circle cx="{across(one.mean):.1f}" cy="{y}" r="4"><title>{escape(told)}</title></circle></g>'
        )
    return _figure(title, parts, size, [])


def share_chart(
    title: str,
    parts_of: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float]]],
    *,
    width: int = LARGE.width,
) -> str:
    """A figure: each row a bar as long as the whole, cut by what each part has of it."""
    rows = [(name, values) for name, values in rows if sum(values) > 0]
    if not rows:
        return ""
    label = _names_width([name for name, _ in rows], width)
    size = Size(width=width, height=ROW * len(rows) + TOP)
    parts = []
    for row, (name, values) in enumerate(rows):
        y, x = TOP / 2 + ROW * row, float(label)
        parts.append(_name(name, label, y + ROW / 2))
        for index, (part, value) in enumerate(zip(parts_of, values, strict=True)):
            share = value / sum(values)
            length = share * (width - label - RIGHT)
            told = escape(f"{name}, {part}: {number(share, True)}")
            parts.append(
                f'<rect class="p{index}" x="{x:.1f}" y="{y + 4}" width="{length:.1f}" height="{ROW - 8}">'
                f"<title>{told}</title></rect>"
            )
            if share >= 0.08:
                parts.append(
                    f'<text class="on" x="{x + length / 2:.1f}" y="{y + ROW / 2 + 3.5:.1f}" '
                    f'text-anchor="middle">{100 * share:.0f}%</text>'
                )
            x += length
    return _figure(title, parts, size, [(f"p{index}", part, "") for index, part in enumerate(parts_of)])


def number(value: float, percent: bool = False) -> str:
    return f"{value:.3g}" if not percent else f"{100 * value:.3g}%"


def _signed(value: float) -> str:
    """A difference of fractions in points: 0.05 -> +5, -0.125 -> −12.5"""
    points = round(100 * value, 6)
    return f"{points:+.3g}".replace("-", "−") if points else "0"


def _names_width(names: Sequence[str], width: int) -> int:
    """What the names of rows take of a chart's width: as much as they need, at most half of it."""
    return min(10 + LETTER * max(map(len, names)), width // 2)


def _name(name: str, width: int, middle: float) -> str:
    """The name of a row; one that is too long is cut in the middle, and whole where it is pointed at."""
    fits = (width - 10) // LETTER
    half = (fits - 1) // 2
    shown = name if len(name) <= fits else f"{name[:half]}…{name[-half:]}"
    return (
        f'<text class="name" x="{width - 10}" y="{middle + 3.5:.1f}" text-anchor="end">{escape(shown)}'
        f"<title>{escape(name)}</title></text>"
    )


def _figure(title: str, parts: Sequence[str], size: Size, legend: Sequence[tuple[str, str, str]]) -> str:
    """The legend is of (class, label, value)."""
    keys = "".join(
        f'<span class="key {kind}">{escape(label)}{f" <b>{value}</b>" if value else ""}</span>'
        for kind, label, value in legend
    )
    picture = (
        f'<svg viewBox="0 0 {size.width} {size.height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
    return f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{picture}<p>{keys}</p></figure>'


def _grid(ticks: Sequence[float], place: Place, x_low: float, size: Size, percent: bool) -> list[str]:
    parts = []
    for value in ticks:
        _, y = place(x_low, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{size.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{number(value, percent)}</text>'
        )
    return parts


def _band(index: int, series: Series, place: Place) -> str:
    upper = [place(x, high) for x, _, high in series.band]
    lower = [place(x, low) for x, low, _ in reversed(series.band)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *lower])
    return f'<polygon class="band s{index}" points="{path}"/>'


def _line(index: int, series: Series, place: Place, percent: bool, over: str, radius: float) -> str:
    places = [place(x, y) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
        f"<title>{escape(series.label)}, {escape(over)} {at:g}: {number(value, percent)}</title></circle>"
        for (x, y), (at, value) in zip(places, series.points, strict=True)
    )
    return f'<g class="s{index}"><polyline points="{path}"/>{dots}</g>'


def _bar(
    index: int, left: float, width: float, value: tuple[float, float, float], place: Place, told: str
) -> str:
    mean, low, high = value
    (x, top), (end, bottom) = place(left, mean), place(left + width, 0.0)
    middle, (_, y_low), (_, y_high) = (x + end) / 2, place(0, low), place(0, high)
    whisker = (
        f'<line class="whisker" x1="{middle:.1f}" x2="{middle:.1f}" y1="{y_low:.1f}" y2="{y_high:.1f}"/>'
    )
    return (
        f'<g class="s{index}"><rect x="{x:.1f}" y="{top:.1f}" width="{max(end - x - 1, 1):.1f}" '
        f'height="{bottom - top:.1f}"><title>{escape(told)}</title></rect>{whisker if high > low else ""}</g>'
    )


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers that hold all the values between them: (0, 0.5) -> 0, 0.2, 0.4, 0.6."""
    low, high = _range(values)
    least = (high - low) / 4
    size = 10 ** math.floor(math.log10(least))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= least)
    return [step * index for index in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low, low + 1.0)
