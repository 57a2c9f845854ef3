"""A comparison as one page, which needs no network, no script and no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from arpo.evaluation.comparison_results import SETS, STAGES, Comparison, Point, Run
from arpo.viewer.charts import (
    LARGE,
    Bars,
    Estimate,
    Series,
    bar_chart,
    interval_chart,
    line_chart,
    share_chart,
)
from arpo.viewer.comparison_text import (
    CURVE_WORDS,
    CURVES_SHOWN,
    HOW_TO_READ,
    SHARES,
    SUCCESS_WORDS,
    TIME_WORDS,
    Cell,
    Table,
    difference_table,
    difficulty_table,
    difficulty_words,
    findings,
    heading,
    missing_words,
    name_shown,
    recipes_told,
    sets_shown,
    success_table,
    time_table,
)
from arpo.viewer.style import document

EVALUATED = ("train", "heldout", "sampled")  # curves whose differences are small beside their height
# The base model is grey; methods follow, and beyond these the same again, dashed, hollow and pale.
LIGHT = ("#2563a8", "#c2571a", "#2f8f5b", "#7d4fb0", "#b83258", "#12868f", "#96780f", "#7a5a44")
DARK = ("#6ea8e6", "#e59a5f", "#6cc492", "#b995e6", "#ec7f9f", "#5cc3cb", "#d3b54a", "#c3a58f")
OWN_CSS = """
.wide { grid-template-columns: repeat(auto-fill, minmax(min(30rem, 100%), 1fr)); }
.scroll { overflow-x: auto; } .charts { margin-bottom: 1rem; }
td small { display: block; color: var(--dim); font-size: .78rem; white-space: nowrap; }
td, th { vertical-align: top; } th { vertical-align: bottom; }
td, th { white-space: nowrap; }
td:first-child { font-weight: 600; }
.words td, .words th { text-align: left; padding-right: 1.2rem; }
.words td:last-child { white-space: normal; }
td .dot { display: inline-block; width: .6rem; height: .6rem; border-radius: 99px; margin-right: .5rem;
  background: currentColor; }
tr td { color: var(--ink); } .key { display: inline-block; white-space: nowrap; }
.wide .key::before { content: "●"; margin-right: .35rem; }
.band { fill: currentColor; opacity: .14; stroke: none; }
.zero { stroke: var(--dim); stroke-width: 1.2; } .thin { stroke: currentColor; stroke-width: 1.4; }
.thick { stroke: currentColor; stroke-width: 5; opacity: .45; }
rect { fill: currentColor; } .whisker { stroke: var(--ink); opacity: .55; }
.chart text.name { font-size: 11.5px; fill: var(--ink); } .chart text.on { fill: #fff; }
.p0 { color: #2563a8; } .p1 { color: #c2571a; } .p2 { color: #5f6b7a; }
dl { display: grid; grid-template-columns: max-content minmax(0, 44rem); gap: .5rem 1.5rem; }
dt { font-weight: 600; } dd { margin: 0; } @media (max-width: 44rem) { dl { grid-template-columns: 1fr; } }
.lead { max-width: 52rem; } ul.lead { padding-left: 1.2rem; } .lead li { margin: .25rem 0; }
.warn { padding: .6rem 1rem; border: 1px solid var(--bad); border-radius: 8px; color: var(--bad); }
code { font: .85em ui-monospace, monospace; }
"""

BODY = """{missing}
<h2>Success</h2>{success}<p class="dim lead">{success_words}</p>
{differences}
<h2>Curves</h2><p class="dim lead">{curve_words} Bands reach from the lowest seed to the highest.</p>
<div class="charts wide">{curves}</div>
{difficulty}
<h2>Time</h2><div class="charts wide">{shares}</div>{time}<p class="dim lead">{time_words}</p>
{recipes}
"""

DIFFERENCES = """<h2>Against {reference}</h2><ul class="lead">{findings}</ul>
<div class="charts wide">{charts}</div>
<p class="dim">Dots: mean differences in points. Thick: 95% over seeds. Thin: 95% over tasks and seeds.</p>
{table}<dl>{how}</dl>"""


def page(comparison: Comparison, runs: Sequence[Run]) -> str:
    names = [row.name for row in comparison.rows]
    missing = missing_words(comparison)
    body = BODY.format(
        missing=f'<p class="warn">{escape(missing)}</p>' if missing else "",
        success=_table(success_table(comparison), names, names),
        success_words=escape(SUCCESS_WORDS),
        differences=_differences(comparison, names) if comparison.differences else "",
        curve_words=escape(CURVE_WORDS),
        curves="".join(_curves(title, what, comparison, names) for what, title in CURVES_SHOWN.items()),
        difficulty=_difficulty(comparison, names) if comparison.bins else "",
        shares=_shares(comparison),
        time=_table(time_table(comparison), [row.name for row in comparison.rows if row.stages], names),
        time_words=escape(TIME_WORDS),
        recipes=_recipes(comparison, runs),
    )
    title = f"Comparison of {len(names) - 1} recipes" if len(names) > 2 else f"{names[1]} and the base model"
    return document(title, heading(runs), body, OWN_CSS + _colours(len(names)))


def _colours(count: int) -> str:
    """A class for each row: the base model's, then the methods'."""

    def rules(palette: Sequence[str], grey: str) -> str:
        chosen = [grey, *(palette[index % len(palette)] for index in range(count - 1))]
        return "".join(f".s{index} {{ color: {colour}; }} " for index, colour in enumerate(chosen))

    again = "".join(
        f".s{index} polyline {{ stroke-dasharray: 5 4; }} .s{index} rect {{ opacity: .5; }} "
        f'.wide .key.s{index}::before {{ content: "○"; }} '
        f"td .dot.s{index} {{ background: none; border: .15rem solid; }} "
        for index in range(len(LIGHT) + 1, count)
    )
    dark = f"@media (prefers-color-scheme: dark) {{ {rules(DARK, '#8b929e')} }}"
    return f"{rules(LIGHT, '#8a909c')}\n{dark}\n{again}"


def _table(table: Table, of_rows: Sequence[str], names: Sequence[str], kind: str = "") -> str:
    """`of_rows` are the methods of the rows: each has the colour of its place among all names."""
    head, rows = table
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(
        f'<tr><td><span class="dot s{names.index(name)}"></span>{_cell(row[0])}</td>'
        + "".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for name, row in zip(of_rows, rows, strict=True)
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )


def _cell(cell: Cell) -> str:
    small = f"<small>{escape(cell.small)}</small>" if cell.small else ""
    return escape(cell.main) + small


def _curves(title: str, what: str, comparison: Comparison, names: Sequence[str]) -> str:
    curves: Mapping[str, Sequence[Point]] = comparison.curves[what]
    series = [
        Series(
            label=name,
            points=[(point.x, point.mean) for point in curves.get(name, ())],
            band=[(point.x, point.low, point.high) for point in curves.get(name, ())],
        )
        for name in names
    ]
    return line_chart(
        title, series, percent=what in SHARES, over="episode", size=LARGE, from_zero=what not in EVALUATED
    )


def _differences(comparison: Comparison, names: Sequence[str]) -> str:
    charts = []
    for which in sets_shown(comparison):
        estimates = [
            Estimate(
                label=name_shown(one.method),
                mean=one.mean,
                thick=one.student,
                thin=one.bootstrap,
                colour=names.index(one.method),
            )
            for one in comparison.differences
            if one.tasks == which
        ]
        charts.append(interval_chart(f"{SETS[which].capitalize()}, difference in points", estimates))
    return DIFFERENCES.format(
        reference=escape(name_shown(comparison.reference)),
        findings="".join(f"<li>{escape(sentence)}</li>" for sentence in findings(comparison)),
        charts="".join(charts),
        table=_table(
            difference_table(comparison), [one.method for one in comparison.differences], names, "words"
        ),
        how="".join(f"<dt>{escape(term)}</dt><dd>{escape(words)}</dd>" for term, words in HOW_TO_READ),
    )


def _difficulty(comparison: Comparison, names: Sequence[str]) -> str:
    bars = []
    for row in comparison.rows:
        spreads = [row.by_difficulty.get(label) for label in comparison.bins]
        values = [
            (spread.mean, min(spread.seeds.values()), max(spread.seeds.values())) if spread else None
            for spread in spreads
        ]
        bars.append(Bars(label=name_shown(row.name), values=values))
    groups = [f"{label} ({len(tasks)})" for label, tasks in comparison.bins.items()]
    chart = bar_chart("Success on training tasks by difficulty", groups, bars)
    return (
        f'<h2>By difficulty</h2><p class="dim lead">{escape(difficulty_words(comparison))} '
        f'Whiskers reach from the lowest seed to the highest.</p><div class="charts wide">{chart}</div>'
        + _table(difficulty_table(comparison), names, names)
    )


def _shares(comparison: Comparison) -> str:
    """The stages of each method's own process: what a collection took is not among them."""
    rows = [(row.name, [row.stages[stage] for stage in STAGES]) for row in comparison.rows if row.stages]
    return share_chart("Share of the time", STAGES, rows)


def _recipes(comparison: Comparison, runs: Sequence[Run]) -> str:
    words, told = recipes_told(comparison, runs)
    said = "".join(
        f"<dt>{escape(name)}</dt><dd><code>{escape(settings)}</code></dd>" for name, settings in told.items()
    )
    return f'<h2>Recipes</h2><p class="dim">{escape(words)}</p><dl>{said}</dl>' if told else ""
