"""Charts: coordinates, colours, labels and escaping."""

import re

import pytest

from arpo.viewer.charts import (
    LARGE,
    BarSeries,
    Estimate,
    Series,
    bar_chart,
    interval_chart,
    line_chart,
    share_chart,
)


def test_a_band_goes_along_its_upper_edge_and_back_along_the_lower() -> None:
    series = Series(label="a", points=[(0, 0.5), (10, 1.0)], band=[(0, 0.0, 1.0), (10, 1.0, 1.0)])
    chart = line_chart("t", [series], percent=True)
    found = re.search(r'polygon class="band s0" points="([^"]*)"', chart)
    assert found is not None and found[1] == "54.0,12.0 348.0,12.0 348.0,12.0 54.0,166.0"


def test_a_series_keeps_its_colour_if_another_has_no_points() -> None:
    chart = line_chart("t", [Series(label="a", points=[]), Series(label="b", points=[(0, 1.0)])])
    assert '<g class="s1">' in chart and "s0" not in chart


def test_an_axis_may_leave_zero_out() -> None:
    series = [Series(label="a", points=[(0, 0.61), (1, 0.79)])]
    assert ">0%<" in line_chart("t", series, percent=True)
    fitted = line_chart("t", series, percent=True, from_zero=False)
    assert ">60%<" in fitted and ">0%<" not in fitted


def test_bars_stand_on_the_axis_and_reach_their_mean() -> None:
    chart = bar_chart("t", ["x", "y"], [BarSeries(label="a", values=[(1.0, 0.5, 1.0), None])])
    bars = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', chart)
    group_width = (LARGE.width - 54 - 12) / 2
    left, width = f"{54 + 0.1 * group_width:.1f}", f"{0.8 * group_width - 1:.1f}"
    assert bars == [(left, "12.0", width, f"{LARGE.height - 36:.1f}")]
    assert chart.count("whisker") == 1
    assert bar_chart("t", ["x"], [BarSeries(label="a", values=[None])]) == ""


def test_an_estimate_stands_on_its_interval() -> None:
    one = Estimate(label="a", mean=0.05, interval=(0.0, 0.1), colour=3)
    chart = interval_chart("t", [one])
    lines = re.findall(r'<line class="(\w+)" x1="([\d.]+)" x2="([\d.]+)"', chart)
    ends = next((low, high) for kind, low, high in lines if kind == "thin")
    zero = next(low for kind, low, _ in lines if kind == "zero")
    dot = re.search(r'cx="([\d.]+)"', chart)
    assert ends[0] == zero and dot is not None
    assert abs(float(dot[1]) - (float(ends[0]) + float(ends[1])) / 2) < 0.11
    assert 'class="s3"' in chart and "+5 points" in chart


def test_shares_fill_the_row() -> None:
    chart = share_chart("t", ["a", "b"], [("x", [3.0, 1.0]), ("y", [0.0, 0.0])])
    widths = [float(width) for width in re.findall(r'<rect class="p\d" [^>]*width="([\d.]+)"', chart)]
    full = LARGE.width - 17 - 12  # right of a label of one letter
    assert widths == pytest.approx([full * 0.75, full * 0.25], abs=0.06)
    assert ">75%<" in chart and ">y<" not in chart
    assert share_chart("t", ["a"], []) == ""


def test_labels_get_the_width_they_need_and_long_ones_are_shortened_in_the_middle() -> None:
    name = "ablations-curriculum_middle"

    def names(label: str) -> list[tuple[str, str, str]]:
        estimate = Estimate(label=label, mean=0.05, interval=(0.0, 0.1), colour=0)
        charts = interval_chart("t", [estimate]) + share_chart("t", ["a"], [(label, [1.0])])
        return re.findall(r'<text class="name" x="(\d+)"[^>]*>([^<]*)<title>([^<]*)</title>', charts)

    assert names(name) == [(str(7 * len(name)), name, name)] * 2  # 7 pixels per letter
    long = "a" * 30 + "z" * 30
    assert names(long) == [("270", "a" * 18 + "…" + "z" * 18, long)] * 2


def test_charts_escape_their_texts() -> None:
    evil = "<script>&\"'"
    charts = [
        line_chart(evil, [Series(label=evil, points=[(0, 1.0)])], x_name=evil),
        bar_chart(evil, [evil], [BarSeries(label=evil, values=[(1.0, 1.0, 1.0)])]),
        interval_chart(evil, [Estimate(label=evil, mean=0.1, interval=(0.0, 0.2), colour=0)]),
        share_chart(evil, [evil], [(evil, [1.0])]),
    ]
    for chart in charts:
        assert "<script" not in chart and "&lt;script&gt;&amp;" in chart


def test_a_line_chart_maps_points_to_pixels() -> None:
    chart = line_chart("t", [Series(label="a", points=[(0, 0.0), (10, 1.0)])], percent=True)
    points = re.search(r'polyline points="([^"]*)"', chart)
    assert points is not None and points[1] == "54.0,166.0 348.0,12.0"
    assert "100%" in chart
    assert line_chart("t", [Series(label="a", points=[])]) == ""
    assert "polyline" in line_chart("t", [Series(label="a", points=[(3, 0.0)])])
