# SPDX-License-Identifier: Apache-2.0
"""Line charts with a logarithmic axis, side by side in one SVG file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN = 400, 300, 50
TICKS = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 1.5, 2, 3, 5, 7)]
# Lines that cover each other stay visible: each next one is thinner.
STROKES = (("#c4c8cc", 7), ("#1f77b4", 3.4), ("#ffbf00", 1.2), ("#d62728", 2))
"""Colour and width of each line, at most as many lines as these."""


class Chart(NamedTuple):
    """Lines over the same x values."""

    title: str
    x: Sequence[float]
    lines: dict[str, Sequence[float]]
    """By their names; y values above zero."""


def svg(charts: Sequence[Chart], *, x_title: str, y_title: str) -> str:
    """Return the charts as an SVG document."""
    parts = [_chart(chart, at * WIDTH, x_title, y_title) for at, chart in enumerate(charts)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(charts)} {HEIGHT}"'
        f' font-family="sans-serif" font-size="11" fill="#333">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{"".join(parts)}</svg>\n'
    )


def _chart(chart: Chart, left: float, x_title: str, y_title: str) -> str:
    strokes = STROKES[: len(chart.lines)]
    values = [value for line in chart.lines.values() for value in line]
    low, high = math.log(min(values)), math.log(max(values))
    last = max(chart.x)

    def across(x: float) -> float:
        return round(left + MARGIN + (WIDTH - 1.5 * MARGIN) * x / last, 1)

    def down(y: float) -> float:
        return round(MARGIN + (HEIGHT - 2 * MARGIN) * (high - math.log(y)) / (high - low), 1)

    parts = [_text(left + WIDTH / 2, 20, chart.title, "middle", 'font-weight="bold"')]
    parts.append(_text(left + WIDTH / 2, HEIGHT - 12, x_title, "middle"))
    parts.append(_text(left + MARGIN, MARGIN - 14, y_title, "middle"))
    for y in TICKS:
        if low <= math.log(y) <= high:
            ends = f'x1="{across(0)}" x2="{across(last)}" y1="{down(y)}" y2="{down(y)}"'
            parts.append(f'<line {ends} stroke="#ddd"/>\n')
            parts.append(_text(across(0) - 6, down(y) + 4, f"{y:g}", "end"))
    parts += [
        _text(across(last * x / 4), HEIGHT - 32, f"{last * x / 4:g}", "middle") for x in range(5)
    ]
    for at, ((name, line), (colour, width)) in enumerate(
        zip(chart.lines.items(), strokes, strict=True)
    ):
        points = " ".join(f"{across(x)},{down(y)}" for x, y in zip(chart.x, line, strict=True))
        stroke = f'fill="none" stroke="{colour}" stroke-width="{width}"'
        parts.append(f'<polyline points="{points}" {stroke}/>\n')
        x, y = across(0) + 12, HEIGHT - MARGIN - 60 + 14 * at
        parts.append(f'<path d="M{x} {y}h20" {stroke}/>\n')
        parts.append(_text(x + 26, y + 4, name, "start"))
    return "".join(parts)


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {more}>{escape(words)}</text>\n'
