# SPDX-License-Identifier: Apache-2.0
"""Bars of rates over a base with their confidence intervals, one panel for each work, in one SVG file.

    python -m benchmarks.harness.bar_chart docs/measurements.md "Beside what a reader would type" > peers.svg

The command draws the first table below a heading of a Markdown file. Its columns are the contender's name
and, for each work, the rate and how many times the first row's that is; further columns of a work are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

NAMES, PANEL, PLOT, ROW, HEAD, MARGIN = 256, 300, 160, 26, 34, 14
"""Widths of the names, a panel and its bars; heights of a row and of the titles; the outer margin. In px."""

STYLE = """\
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: var(--ink); }
.title { font-weight: bold; }
.value { font-size: 12px; }
.paper { fill: var(--paper); }
.bar { fill: var(--other); }
.ours { fill: var(--ours); }
.grid { stroke: var(--grid); }
.interval { stroke: var(--ink); fill: none; }
svg { --paper: #fff; --ink: #1b1f24; --other: #afb8c1; --ours: #5c6bc0; --grid: #d8dee4; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0d1117; --ink: #e6edf3; --other: #57606a; --ours: #7986cb; --grid: #30363d; }
}"""

TIMES = re.compile(r"([\d.]+) \[([\d.]+), ([\d.]+)\]")


class Bar(NamedTuple):
    """**Ex.:** ``Bar("xlaunch", "409", 1.77, 1.37, 2.29)``"""

    name: str
    rate: str
    ratio: float
    """The rate over the base's; `low` to `high` is its 95 % confidence interval."""
    low: float
    high: float


class Panel(NamedTuple):
    """The bars of one work."""

    title: str
    bars: Sequence[Bar]


def svg(panels: Sequence[Panel]) -> str:
    """Draw panels side by side. All have the same names in the same order, and at least one bar."""
    names = [bar.name for bar in panels[0].bars]
    width = 2 * MARGIN + NAMES + PANEL * len(panels)
    height = 2 * MARGIN + HEAD + ROW * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(', '.join(panel.title for panel in panels))}</title>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
    ]
    top = MARGIN + HEAD
    parts += [_text(MARGIN, top + ROW * i + 17, name) for i, name in enumerate(names)]
    highest = max(bar.high for panel in panels for bar in panel.bars)
    for number, panel in enumerate(panels):
        parts += _panel(panel, MARGIN + NAMES + PANEL * number, top, PLOT / highest)
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, left: int, top: int, scale: float) -> Iterator[str]:
    """The title, a line at each whole number, and the bars; `scale` is the length of 1 in px."""
    yield _text(left, MARGIN + 12, panel.title, "title")
    bottom = top + ROW * len(panel.bars)
    for whole in range(int(PLOT / scale) + 1):
        x = round(left + whole * scale, 1)
        yield f'<path class="grid" d="M{x} {top - 4}V{bottom}"/>'
    for row, bar in enumerate(panel.bars):
        y = top + ROW * row
        kind = "ours" if bar.name.startswith("xlaunch") else "bar"
        length, low, high = (round(value * scale, 1) for value in (bar.ratio, bar.low, bar.high))
        yield f'<rect class="{kind}" x="{left}" y="{y + 4}" width="{length}" height="{ROW - 8}"/>'
        if high > low:
            ends = f"M{left + low} {y + 9}v8m0 -4H{left + high}m0 -4v8"
            yield f'<path class="interval" d="{ends}"/>'
        yield _text(left + max(length, high) + 8, y + 17, f"{bar.rate} ({bar.ratio:.2f}x)", "value")


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{round(x, 1)}" y="{y}">{escape(words)}</text>'


def read_panels(markdown: str, heading: str) -> list[Panel]:
    """Read the first table below a heading. Raises ValueError if there is no such table."""
    _, head, below = markdown.partition(f"\n## {heading}\n")
    lines = re.findall(r"^\|(.*)\|$", below.partition("\n## ")[0], re.MULTILINE)
    if not head or len(lines) < 3:
        raise ValueError(f"there is no table below '## {heading}'")
    titles, _, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    panels = []
    for column, title in enumerate(titles):
        if column == 0 or title.startswith("times "):
            continue
        bars = []
        for row in rows:
            if len(row) != len(titles):
                break  # the next table
            times = TIMES.match(row[column + 1])
            ratio, low, high = (float(value) for value in times.groups()) if times else (1, 1, 1)
            bars.append(Bar(row[0].replace("`", ""), row[column], ratio, low, high))
        panels.append(Panel(title, bars))
    return panels


if __name__ == "__main__":
    file, heading = sys.argv[1:]
    sys.stdout.write(svg(read_panels(Path(file).read_text(encoding="utf-8"), heading)))
