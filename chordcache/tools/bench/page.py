"""The result as a static HTML page in one file, without scripts."""

from __future__ import annotations

from html import escape

from chordcache.tools.bench.result import BenchResult, RowResult, setting_of
from chordcache.tools.bench.text import as_text, notes_of, stage_lines, table_of

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; font-size: 13px; }
th, td { border-bottom: 1px solid #ddd; padding: 3px 8px; text-align: right; }
th:nth-child(-n+3), td:nth-child(-n+3) { text-align: left; }
svg text { font: 12px system-ui, sans-serif; }
.cache { fill: #2a7; } .source { fill: #999; }
"""

_LABEL_PX, _BAR_PX, _ROW_PX = 360, 520, 24
"""Width of the labels, of the longest bar, and height of a bar with its margin, [pixels]"""


def as_html(result: BenchResult) -> str:
    """Return the page. Every name in it is escaped, and a policy in it forbids scripts and requests."""
    headings, rows = table_of(result)
    cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    stages = "".join(f"<li>{escape(line)}</li>" for line in stage_lines(result))
    notes = "".join(f"<li>{escape(note)}</li>" for note in notes_of(result))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>chordcache bench</title><style>{_STYLE}</style></head><body><h1>chordcache bench</h1>"
        f"<p>{escape(as_text(result).splitlines()[0])}</p><p><strong>{escape(result.verdict)}</strong></p>"
        f"<h2>Clips per second</h2>{_bars(result)}"
        f"<h2>All figures</h2><table><tr>{''.join(f'<th>{escape(name)}</th>' for name in headings)}</tr>{cells}</table>"
        f"<h2>CPU time of a batch, in one thread</h2><ul>{stages}</ul><h2>Notes</h2><ul>{notes}</ul></body></html>\n"
    )


def _bars(result: BenchResult) -> str:
    """Draw a bar for each measured row."""
    rows = [row for row in result.rows if row.clips_per_second]
    most = max((row.clips_per_second or 0.0 for row in rows), default=1.0)
    width, height = _LABEL_PX + _BAR_PX + 110, _ROW_PX * len(rows)
    bars = "".join(_bar(row, _ROW_PX * i, most) for i, row in enumerate(rows))
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{bars}</svg>'


def _bar(row: RowResult, top: int, most: float) -> str:
    rate = row.clips_per_second or 0.0
    length = max(1.0, _BAR_PX * rate / most)
    label = escape(f"{row.name}, {row.loader}, {setting_of(row)}")
    figure = f"{rate:.1f}" + ("" if row.speedup is None else f" ({row.speedup:.1f} x)")
    return (
        f'<text x="{_LABEL_PX - 8}" y="{top + 16}" text-anchor="end">{label}</text>'
        f'<rect class="{"cache" if row.is_cache else "source"}" x="{_LABEL_PX}" y="{top + 3}" '
        f'width="{length:.1f}" height="{_ROW_PX - 6}"/>'
        f'<text x="{_LABEL_PX + length + 6:.1f}" y="{top + 16}">{figure}</text>'
    )
