"""HTML template and CSS of comparison pages, in the colours of `arpo view`. They have no scripts."""

from html import escape

from arpo.viewer.site import STATIC

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{css}</style></head><body>
<h1>{title}</h1><p class="dim">{subtitle}</p>{body}</body></html>
"""

CSS = """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 5rem; max-width: 76rem; background: var(--page);
  color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; font-weight: 650; margin: 0; }
h2 { font-size: 1.05rem; font-weight: 600; margin: 2.5rem 0 .75rem; }
.dim { color: var(--dim); font-weight: 400; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem 1.5rem .35rem 0; text-align: right; border-bottom: 1px solid var(--rule); }
th { font-weight: 500; color: var(--dim); }
th:first-child, td:first-child { text-align: left; }
.scroll { overflow: auto; }
code { font: .85em var(--mono); }
.warn { padding: .6rem 1rem; border: 1px solid var(--bad); border-radius: 8px; color: var(--bad); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: 1rem; }
.chart { margin: 0; padding: .75rem 1rem; background: var(--card); border: 1px solid var(--rule);
  border-radius: 8px; }
.chart figcaption { font-weight: 600; font-size: .9rem; }
.chart p { margin: 0; font-size: .8rem; }
.chart svg { width: 100%; height: auto; display: block; }
.chart text { font-size: 10.5px; fill: var(--dim); font-variant-numeric: tabular-nums; }
.grid { stroke: var(--rule); }
polyline { fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linejoin: round; }
g circle { fill: currentColor; }
.key { margin-right: 1.25rem; }
"""


def document(title: str, subtitle: str, body: str, css: str = "") -> str:
    """A complete HTML page. `title` and `subtitle` are plain text, `body` is HTML; `css` is appended."""
    colours = (STATIC / "colours.css").read_text("utf-8")
    return PAGE.format(title=escape(title), subtitle=escape(subtitle), body=body, css=colours + CSS + css)
