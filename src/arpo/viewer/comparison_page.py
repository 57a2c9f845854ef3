"""The HTML page of a comparison: one file, without scripts or network access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from arpo.comparison.curves import CurvePoint
from arpo.comparison.results import STAGES, Comparison
from arpo.comparison.run_results import RunResult
from arpo.comparison.tables import (
    COUNT_CURVES,
    CURVE_NOTE,
    DEFINITIONS,
    DIFFERENCES_HEADING,
    DIFFICULTY_HEADING,
    SUCCESS_NOTE,
    TIME_NOTE,
    Table,
    TableCell,
    curve_title,
    difference_table,
    difficulty_note,
    difficulty_table,
    display_name,
    missing_note,
    recipe_differences,
    subtitle,
    success_table,
    time_table,
)
from arpo.config.task_set_names import set_label
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
from arpo.viewer.style import document

GROUP_CURVES = (
    "without_signal",
    "rescued",
    "replay_age",
)  # success rates differ little: no zero on their axis
COLOURS = 8  # of colours.css; further methods repeat them dashed, hollow and pale
PAGE_CSS = """
.wide { grid-template-columns: repeat(auto-fill, minmax(min(30rem, 100%), 1fr)); }
.charts { margin-bottom: 1rem; }
td small { display: block; color: var(--dim); font-size: .78rem; }
td, th { vertical-align: top; } th { vertical-align: bottom; }
.scroll :is(td, th) { padding-right: 1rem; } .scroll :is(td, th):last-child { padding-right: 0; }
.scroll td { white-space: nowrap; } .scroll td small { white-space: normal; }
td:first-child { font-weight: 600; }
.words :is(td, th) { text-align: left; }
.scroll .words td:last-child { min-width: 9rem; white-space: normal; }
@media (max-width: 60rem) { .scroll table { font-size: .85rem; }
  .scroll :is(td, th) { padding-right: .6rem; } .scroll .words td { white-space: normal; } }
td .dot { display: inline-block; width: .6rem; height: .6rem; border-radius: 99px; margin-right: .5rem;
  background: currentColor; }
tr td { color: var(--ink); } .key { display: inline-block; white-space: nowrap; }
.wide .key::before { content: "●"; margin-right: .35rem; }
.band { fill: currentColor; opacity: .14; stroke: none; }
.zero { stroke: var(--dim); stroke-width: 1.2; } .thin { stroke: currentColor; stroke-width: 2; }
rect { fill: currentColor; } .whisker { stroke: var(--ink); opacity: .55; }
.chart text.name { font-size: 11.5px; fill: var(--ink); } .chart text.on { fill: var(--card); }
.p0 { color: var(--c0); } .p1 { color: var(--c1); } .p2 { color: var(--c7); }
dl { display: grid; grid-template-columns: max-content minmax(0, 44rem); gap: .5rem 1.5rem; }
dt { font-weight: 600; } dd { margin: 0; } @media (max-width: 44rem) { dl { grid-template-columns: 1fr; } }
.lead { max-width: 52rem; } ul.lead { padding-left: 1.2rem; } .lead li { margin: .25rem 0; }
"""

BODY = """{missing}
<h2>Success rate</h2>{success}<p class="dim lead">{success_note}</p>
{differences}
<h2>Curves</h2><p class="dim lead">{curve_note} Bands show the range over seeds.</p>
<div class="charts wide">{curves}</div>
{difficulty}
<h2>Time</h2><div class="charts wide">{shares}</div>{time}<p class="dim lead">{time_note}</p>
{recipes}
"""

DIFFERENCES = """<h2>{heading}</h2>
<div class="charts wide">{charts}</div>
<p class="dim lead">Dot: mean difference. Line: 95% confidence interval over seeds and tasks.</p>
{table}<dl>{definitions}</dl>"""


def render_page(comparison: Comparison, runs: Sequence[RunResult]) -> str:
    names = [row.name for row in comparison.rows]
    missing = missing_note(comparison)
    body = BODY.format(
        missing=f'<p class="warn">{escape(missing)}</p>' if missing else "",
        success=_table(success_table(comparison), names, names),
        success_note=escape(SUCCESS_NOTE),
        differences=_differences(comparison, names) if comparison.differences else "",
        curve_note=escape(CURVE_NOTE),
        curves="".join(_curves(key, comparison, names) for key in comparison.curves),
        difficulty=_difficulty(comparison, names) if comparison.bins else "",
        shares=_shares(comparison),
        time=_table(time_table(comparison), [row.name for row in comparison.rows if row.stages], names),
        time_note=escape(TIME_NOTE),
        recipes=_recipes(comparison, runs),
    )
    title = f"Comparison of {len(names) - 1} recipes" if len(names) > 2 else f"{names[1]} and the base model"
    return document(title, subtitle(runs), body, PAGE_CSS + _colour_rules(len(names)))


def _colour_rules(count: int) -> str:
    """CSS classes .s0 (the base model, grey), .s1, … for `count` rows."""
    rules = [".s0 { color: var(--dim); }"]
    rules += [f".s{index} {{ color: var(--c{(index - 1) % COLOURS}); }}" for index in range(1, count)]
    rules += [
        f".s{index} polyline {{ stroke-dasharray: 5 4; }} .s{index} rect {{ opacity: .5; }} "
        f'.wide .key.s{index}::before {{ content: "○"; }} '
        f"td .dot.s{index} {{ background: none; border: .15rem solid; }}"
        for index in range(COLOURS + 1, count)
    ]
    return "\n".join(rules)


def _table(table: Table, methods: Sequence[str], names: Sequence[str], css_class: str = "") -> str:
    """`methods` has the method of each row. Its index in `names` sets the colour."""
    head, rows = table
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(
        f'<tr><td><span class="dot s{names.index(name)}"></span>{_cell(row[0])}</td>'
        + "".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for name, row in zip(methods, rows, strict=True)
    )
    return (
        f'<div class="scroll"><table class="{css_class}"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )


def _cell(cell: TableCell) -> str:
    detail = f"<small>{escape(cell.detail)}</small>" if cell.detail else ""
    return escape(cell.value) + detail


def _curves(key: str, comparison: Comparison, names: Sequence[str]) -> str:
    curves: Mapping[str, Sequence[CurvePoint]] = comparison.curves[key]
    series = [
        Series(
            label=name,
            points=[(point.x, point.mean) for point in curves.get(name, ())],
            band=[(point.x, point.low, point.high) for point in curves.get(name, ())],
        )
        for name in names
    ]
    return line_chart(
        curve_title(key),
        series,
        percent=key not in COUNT_CURVES,
        x_name="episode",
        size=LARGE,
        from_zero=key in GROUP_CURVES,
    )


def _differences(comparison: Comparison, names: Sequence[str]) -> str:
    charts = []
    for task_set in comparison.task_sets:
        estimates = [
            Estimate(
                label=display_name(one.method),
                mean=one.mean,
                interval=one.interval,
                colour=names.index(one.method),
            )
            for one in comparison.differences
            if one.tasks == task_set
        ]
        title = f"{set_label(task_set).capitalize()}: difference in percentage points"
        charts.append(interval_chart(title, estimates))
    return DIFFERENCES.format(
        heading=escape(f"{DIFFERENCES_HEADING}: {display_name(comparison.reference)}"),
        charts="".join(charts),
        table=_table(
            difference_table(comparison), [one.method for one in comparison.differences], names, "words"
        ),
        definitions="".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in DEFINITIONS),
    )


def _difficulty(comparison: Comparison, names: Sequence[str]) -> str:
    bars = []
    for row in comparison.rows:
        stats = [row.by_difficulty.get(label) for label in comparison.bins]
        values = [
            (one.mean, min(one.seeds.values()), max(one.seeds.values())) if one else None for one in stats
        ]
        bars.append(BarSeries(label=display_name(row.name), values=values))
    groups = [f"{label} ({len(tasks)})" for label, tasks in comparison.bins.items()]
    chart = bar_chart("Success rate on training tasks by difficulty", groups, bars)
    return (
        f'<h2>{DIFFICULTY_HEADING}</h2><p class="dim lead">{escape(difficulty_note(comparison))} '
        f'Whiskers show the range over seeds.</p><div class="charts wide">{chart}</div>'
        + _table(difficulty_table(comparison), names, names)
    )


def _shares(comparison: Comparison) -> str:
    """Chart of the stages of each method's runs, without the collection of episodes."""
    rows = [(row.name, [row.stages[stage] for stage in STAGES]) for row in comparison.rows if row.stages]
    return share_chart("Share of time by stage", STAGES, rows)


def _recipes(comparison: Comparison, runs: Sequence[RunResult]) -> str:
    caption, differences = recipe_differences(comparison, runs)
    items = "".join(
        f"<dt>{escape(name)}</dt><dd><code>{escape(settings)}</code></dd>"
        for name, settings in differences.items()
    )
    return f'<h2>Recipes</h2><p class="dim">{escape(caption)}</p><dl>{items}</dl>' if differences else ""
