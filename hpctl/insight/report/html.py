"""The report as one page of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hpctl.insight.report.decide import CostReport
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.durations import format_duration

#
# The page of `hpctl report --html`: one file, no script, nothing loaded, light and dark.

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5b6675; --line: #d5dae1; --bar: #2563a8;
  --back: #ffffff; --other: #b45309 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --dim: #9aa5b4; --line: #343c48;
  --bar: #6aa9ee; --back: #14181e; --other: #f0a94b } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p, dt, .dim { color: var(--dim) } dl { display: grid; grid-template-columns: 9rem 1fr; gap: .3rem }
dd { margin: 0 } .wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top } th { font-size: .8rem; color: var(--dim); white-space: nowrap }
svg { width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: var(--ink) }
rect { fill: var(--bar) } rect.other { fill: var(--other) }
@media print { body { margin: 0; max-width: none } }
"""


WIDTH, LABEL, ROW = 720, 230, 22


def escape_html(value: object) -> str:
    """Return text for HTML: escaped, and without what no page shows."""
    return escape(make_printable(str(value)))


def render_bar_chart(rows: Sequence[tuple[str, float, str, bool]]) -> str:
    """Return a bar a row: its name, length, value in words, and whether it is for comparison."""
    most = max((length for _, length, _, _ in rows), default=0.0) or 1.0
    lines = []
    for at, (name, length, value, other) in enumerate(rows):
        y, wide = at * ROW, (WIDTH - LABEL - 110) * length / most
        style = ' class="other"' if other else ""
        lines.append(
            f'<text x="0" y="{y + 15}">{escape_html(name)}</text>'
            f'<rect{style} x="{LABEL}" y="{y + 4}" width="{wide:.1f}" height="{ROW - 8}"/>'
            f'<text x="{LABEL + wide + 6:.1f}" y="{y + 15}">{escape_html(value)}</text>'
        )
    box = f"0 0 {WIDTH} {len(rows) * ROW}"
    return f'<svg viewBox="{box}" role="img">{"".join(lines)}</svg>'


def _render_table_row(row: Sequence[str]) -> str:
    cells = "".join(f"<td>{escape_html(cell)}</td>" for cell in row)
    return f"<tr>{cells}</tr>"


def _render_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape_html(name)}</th>" for name in heads)
    body = "".join(map(_render_table_row, rows))
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def render_report_page(
    cluster: str,
    r: CostReport,
    summary: Sequence[tuple[str, str]],
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]],
    assumptions: Sequence[str],
) -> str:
    """Return the whole page: the summary by name, then each table by title, heads and rows."""
    period = f"{r.since:%Y-%m-%d %H:%M} to {r.until:%Y-%m-%d %H:%M} UTC"
    rates = [(c.name, c.per_1000, f"{c.per_1000:.2f}", False) for c in (r.all, *r.classes)]
    rates += [(one.source, one.rate, f"{one.rate:.2f}", True) for one in r.all.published]
    stages = [(s.name, s.mean_s, format_duration(s.mean_s), False) for s in r.node_stages]
    plots = {
        "Failures": "<p>Per 1,000 node-days: this fleet, and what others published.</p>"
        + render_bar_chart(rates),
        "Time to repair": "<p>The mean of each stage of a node's recovery.</p>"
        + render_bar_chart(stages),
    }
    facts = "".join(f"<dt>{escape_html(n)}</dt><dd>{escape_html(t)}</dd>" for n, t in summary)
    parts = [
        f"<h2>{escape_html(title)}</h2>{plots.get(title, '')}{_render_table(heads, rows)}"
        for title, heads, rows in tables
        if rows
    ]
    assumed = "".join(f"<li>{escape_html(line)}</li>" for line in assumptions)
    title = escape_html(f"{cluster or 'hpctl'}: failures and what they cost")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1><p>{escape_html(period)}</p>"
        f"<dl>{facts}</dl>{''.join(parts)}<h2>What this assumes</h2>"
        f'<ul class="dim">{assumed}</ul></html>\n'
    )
