# SPDX-License-Identifier: Apache-2.0
"""Parts of the page's charts: colours, texts, axes and plotly's figures.

Plotly reads some HTML in text, so every text that a user may have written goes through `text`.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from plotly import graph_objects as go

from xtune.evidence.pareto import Estimate

GREY, ORANGE, BLUE, GREEN, PINK, YELLOW, RED = (
    "#808790", "#d55e00", "#3490c8", "#009e73", "#cc79a7", "#c9a400", "#dc4a41",
)  # fmt: skip
"""Readable on white and on black; after Okabe and Ito (2008), whose colours colour-blind people
tell apart."""

CONTESTANT_COLOURS = (GREY, ORANGE, BLUE, GREEN, PINK, YELLOW)

MAX_LINEAR_RANGE = 12.0
"""Ratio of the largest to the smallest value above which an axis is logarithmic."""

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Chart(NamedTuple):
    """A chart of the page."""

    name: str
    label: str
    """What it shows, for screen readers."""
    figure: go.Figure
    min_width_px: int = 0
    """In a narrower window the chart scrolls sideways."""

    def to_plain(self) -> dict[str, Any]:
        plain = json.loads(self.figure.to_json())
        plain["layout"].pop("template", None)  # the page's script has a light and a dark one
        return {"name": self.name, "data": plain["data"], "layout": plain["layout"]}


def text(*lines: str) -> str:
    """Lines for plotly, with markup escaped."""
    return "<br>".join([html.escape(printable(line), quote=False) for line in lines if line])


def printable(value: str) -> str:
    """Text with what HTML or UTF-8 cannot hold written as escapes. **Ex.:** ``\\x1b[31m``."""
    return _FORBIDDEN.sub(lambda found: repr(found[0])[1:-1], value)


def axis_for(values: Sequence[float | None]) -> dict[str, Any]:
    """The axis for these values: logarithmic if they lie far apart."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    if found and min(found) > 0 and max(found) / min(found) > MAX_LINEAR_RANGE:
        return {"type": "log"}
    return {"tickformat": ","}


def new_figure(data: Sequence[Any], *, height: int, **layout: Any) -> go.Figure:
    """A figure with the legend above it."""
    common = {
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "margin": {"l": 60, "r": 16, "t": 36, "b": 48},
    }
    return go.Figure(data, {**common, "height": height, **layout})


def error_bars(rows: Sequence[Estimate]) -> dict[str, Any]:
    """The intervals of estimates as error bars."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [one.high - one.value for one in rows],
        "arrayminus": [one.value - one.low for one in rows],
        "thickness": 1.5,
        "width": 4,
    }


def shortened(value: str, limit: int = 18) -> str:
    """Text with at most `limit` characters."""
    return value if len(value) <= limit else f"{value[: limit - 1]}…"
