# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG: well-formed, and equal ratios are equal distances."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from benchmarks.harness.line_chart import HEIGHT, MARGIN, WIDTH, Chart, svg

PREFIX = "{http://www.w3.org/2000/svg}"


def points(line: ElementTree.Element) -> list[list[float]]:
    return [
        [float(number) for number in pair.split(",")] for pair in line.get("points", "").split()
    ]


def test_lines_lie_on_logarithmic_axes() -> None:
    charts = [
        Chart("first", [10, 20, 40], {"a": [1, 10, 100], "b": [100, 10, 1]}),
        Chart("<second>", [0, 5], {"c": [2, 4]}),
    ]
    root = ElementTree.fromstring(svg(charts, x_title="step", y_title="loss"))
    a, b, c = (points(line) for line in root.iter(f"{PREFIX}polyline"))
    (_, top), (_, middle), (_, bottom) = b
    assert [top, bottom] == [MARGIN, HEIGHT - MARGIN]
    assert middle == (top + bottom) / 2
    assert [y for _, y in a] == [bottom, middle, top]
    assert a[1][0] - MARGIN == pytest.approx((a[2][0] - MARGIN) / 2)
    assert all(x >= WIDTH for x, _ in c)
    words = [text.text for text in root.iter(f"{PREFIX}text")]
    assert {"first", "<second>", "a", "b", "c", "step", "loss", "10"} <= set(words)
