# SPDX-License-Identifier: Apache-2.0
"""Run a command in a terminal, and write what it showed as an animated picture.

    python docs/recording.py docs/pictures/recording.svg xlaunch --instances 2 --ncores 1 examples/infer.py

The terminal has 118 columns. Each line appears in the picture when the terminal had it whole, with pauses cut to
two seconds; who prefers no motion sees all lines at once. A command that fails leaves no picture. Needs
`pip install pexpect rich`.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

import pexpect
from rich.text import Text

COLUMNS: Final = 118
MAX_PAUSE_S: Final = 2.0
FIRST_S: Final = 1.0
"""The command alone is seen for so long."""
CHARACTER_PX: Final = 7.85
LINE_PX: Final = 18
MARGIN_PX: Final = 14

STYLE: Final = """\
rect { fill: #1e2127; stroke: #57606a }
text { fill: #d7dae0; font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre }
.typed { fill: #98c379 }
.printed { opacity: 0; animation: appear 1ms forwards }
@keyframes appear { to { opacity: 1 } }
@media (prefers-reduced-motion: reduce) { .printed { opacity: 1; animation: none } }"""


class Line(NamedTuple):
    shown_s: float
    """When it appears in the picture, in seconds from the picture's beginning."""
    text: str


def record(command: list[str]) -> list[Line]:
    """Run a command to its end. What a carriage return overwrote is left out. Exits if the command fails."""
    child = pexpect.spawn(
        command[0], command[1:], dimensions=(40, COLUMNS), encoding="utf-8", timeout=None
    )
    lines = []
    shown_s, before_s = FIRST_S, time.monotonic()
    while child.expect(["\r\n", pexpect.EOF]) == 0:
        now_s = time.monotonic()
        shown_s += min(now_s - before_s, MAX_PAUSE_S)
        before_s = now_s
        visible = child.before.rstrip("\r").rpartition("\r")[2]
        lines.append(Line(shown_s, Text.from_ansi(visible).plain.rstrip()))
    child.close()
    if child.exitstatus != 0:
        sys.exit(f"{shlex.join(command)} ended with {child.exitstatus or child.signalstatus}")
    return lines


def draw(command: str, lines: list[Line]) -> str:
    """Return an SVG of a command and the lines that it printed."""
    rows = [line for printed in lines for line in _wrapped(printed)]
    width = round(2 * MARGIN_PX + COLUMNS * CHARACTER_PX)
    height = 2 * MARGIN_PX + LINE_PX * (len(rows) + 1)
    body = [f'<text class="typed" x="{MARGIN_PX}" y="{MARGIN_PX + 13}">$ {escape(command)}</text>']
    body += [
        f'<text class="printed" x="{MARGIN_PX}" y="{MARGIN_PX + 13 + LINE_PX * number}"'
        f' style="animation-delay: {shown_s:.1f}s">{escape(text)}</text>'
        for number, (shown_s, text) in enumerate(rows, 1)
        if text
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(command)}</title>",
            f"<style>\n{STYLE}\n</style>",
            f'<rect width="{width}" height="{height}" rx="8"/>',
            *body,
            "</svg>\n",
        ]
    )


def _wrapped(line: Line) -> list[Line]:
    """The rows that a terminal makes of a line."""
    starts = range(0, max(len(line.text), 1), COLUMNS)
    return [line._replace(text=line.text[start : start + COLUMNS]) for start in starts]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python docs/recording.py PICTURE.svg COMMAND...")
    picture, *command = sys.argv[1:]
    Path(picture).write_text(draw(shlex.join(command), record(command)), encoding="utf-8")
