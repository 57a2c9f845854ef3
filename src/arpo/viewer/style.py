"""HTML template and CSS of all pages, for light and dark mode. The content policy forbids scripts."""

from html import escape

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{css}</style></head><body>
<h1>{title}</h1><p class="dim">{subtitle}</p>{body}</body></html>
"""

CSS = """
:root { color-scheme: light dark; --ink: #1d2230; --dim: #6b7280; --page: #fbfbf9; --card: #fff;
  --rule: #e4e4df;
  --s0: #2563a8; --s1: #c2571a; --s2: #2f8f5b; --good: #2f8f5b; --bad: #b4413c; --mark: #e5304b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e3; --dim: #9aa0ab; --page: #15171c;
  --card: #1d2027;
  --rule: #30343d; --s0: #6ea8e6; --s1: #e59a5f; --s2: #6cc492; --good: #6cc492; --bad: #e5837d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 5rem; max-width: 76rem; background: var(--page);
  color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; font-weight: 650; margin: 0; }
h2 { font-size: 1.05rem; font-weight: 600; margin: 2.5rem 0 .75rem; }
.lead { max-width: 56rem; }
.tasks { max-height: 34rem; border: 1px solid var(--rule); border-radius: 8px; background: var(--card); }
.tasks table { width: 100%; } .tasks :is(td, th) { padding: .3rem .9rem; white-space: nowrap; }
.tasks th { position: sticky; top: 0; background: var(--card); }
.tasks :is(td, th):first-child { white-space: normal; min-width: 14rem; }
.tasks tr:last-child td { border-bottom: 0; }
@media (max-width: 44rem) { .tasks table { font-size: .82rem; } .tasks :is(td, th) { padding: .3rem .5rem; }
  .tasks :is(td, th):first-child { min-width: 9rem; } }
td small { display: block; color: var(--dim); font-size: .78rem; }
.words :is(td, th):last-child { text-align: left; overflow-wrap: anywhere; }
h4 { margin: 0 0 .25rem; font-size: .8rem; font-weight: 600; color: var(--dim); }
.dim { color: var(--dim); font-weight: 400; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem 1.5rem .35rem 0; text-align: right; border-bottom: 1px solid var(--rule); }
th { font-weight: 500; color: var(--dim); }
th:first-child, td:first-child { text-align: left; }
.scroll { overflow: auto; }
code { font: .85em ui-monospace, monospace; }
.warn { padding: .6rem 1rem; border: 1px solid var(--bad); border-radius: 8px; color: var(--bad); }
.tables { display: flex; flex-wrap: wrap; gap: 1rem 4rem; align-items: flex-start; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: 1rem; }
.chart { margin: 0; padding: .75rem 1rem; background: var(--card); border: 1px solid var(--rule);
  border-radius: 8px; }
.chart figcaption { font-weight: 600; font-size: .9rem; }
.chart p { margin: 0; font-size: .8rem; }
.chart .note { margin-top: .4rem; color: var(--dim); line-height: 1.4; }
.chart .note code { color: var(--ink); }
.chart svg { width: 100%; height: auto; display: block; }
.chart text { font-size: 10.5px; fill: var(--dim); font-variant-numeric: tabular-nums; }
.grid { stroke: var(--rule); }
polyline { fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linejoin: round; }
g circle { fill: currentColor; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); }
.chart rect { fill: currentColor; }
.p0 { color: var(--s0); } .p1 { color: var(--s1); } .p2 { color: var(--s2); } .p3 { color: #8d6cab; }
.p4 { color: var(--rule); }
.key { margin-right: 1.25rem; }
details { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; margin: .6rem 0; }
summary { padding: .6rem 1rem; cursor: pointer; overflow-wrap: anywhere; }
details .charts { padding: 0 1rem 1rem; }
.badge { display: inline-block; padding: 0 .55rem; margin-right: .4rem; border-radius: 99px; font-size: .8rem;
  border: 1px solid currentColor; }
.good { color: var(--good); } .bad, .error { color: var(--bad); }
ol { list-style: none; margin: 0; padding: 0 1rem 1rem; display: grid; gap: 1rem; align-content: start; }
ol > li { display: grid; grid-template-columns: minmax(0, 28rem) minmax(0, 1fr); gap: 1.25rem; }
@media (max-width: 44rem) { ol > li { grid-template-columns: 1fr; } }
.end small { display: block; color: var(--dim); }
.end { margin: 0; padding: 0 1rem .75rem; overflow-wrap: anywhere; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); }
.pair section { display: grid; grid-row: span 2; grid-template-rows: subgrid; align-content: start; }
.pair section + section { border-left: 1px solid var(--rule); }
.pair ol > li { grid-template-columns: 1fr; gap: .5rem; align-content: start; }
@media (max-width: 44rem) { .pair { grid-template-columns: 1fr; }
  .pair section + section { border-left: 0; border-top: 1px solid var(--rule); padding-top: .75rem; } }
.screen { position: relative; align-self: start; border: 1px solid var(--rule); line-height: 0; }
.screen img { width: 100%; height: auto; }
.pixels { image-rendering: pixelated; }
.screen svg { position: absolute; inset: 0; width: 100%; height: 100%; }
.mark, .halo { fill: none; stroke-linecap: round; stroke-linejoin: round; vector-effect: non-scaling-stroke; }
.mark { stroke: var(--mark); stroke-width: 2.5px; } .halo { stroke: #fff; stroke-width: 5px; opacity: .85; }
.dashed { stroke-dasharray: 4 4; } .dot { fill: var(--mark); }
.chips { position: absolute; left: .4rem; bottom: .4rem; right: .4rem; line-height: 1.3; }
.chip { display: inline-block; max-width: 100%; margin: .15rem .3rem 0 0; padding: .05rem .5rem;
  border-radius: 4px;
  background: var(--mark); color: #fff; font: 600 .78rem/1.5 ui-monospace, monospace;
  overflow-wrap: anywhere; }
.answer { overflow-wrap: anywhere; } .answer p { margin: 0 0 .5rem; white-space: pre-wrap; }
pre { margin: 0; padding: .5rem .7rem; background: var(--page); border: 1px solid var(--rule);
  border-radius: 6px;
  font: .82rem/1.45 ui-monospace, monospace; white-space: pre-wrap; }
"""


def document(title: str, subtitle: str, body: str, css: str = "") -> str:
    """A complete HTML page. `title` and `subtitle` are plain text, `body` is HTML; `css` is appended."""
    return PAGE.format(title=escape(title), subtitle=escape(subtitle), body=body, css=CSS + css)
