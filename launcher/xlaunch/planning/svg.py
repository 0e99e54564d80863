# SPDX-License-Identifier: Apache-2.0
"""Draw a machine as SVG: boxes inside boxes for packages, nodes, L3 caches, cores and SMT siblings.

With a plan each instance has a colour, and spare cores are hatched. The picture is at most 1,000 pixels
wide, and follows the reader's light or dark colour scheme.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from xlaunch.machine.topology import CPUs, Machine
from xlaunch.planning.drawing import Artist, Box, numbers
from xlaunch.text import counted

if TYPE_CHECKING:
    from xlaunch.planning.plans import Plan

MAX_WIDTH = 1000
MIN_WIDTH = 640
MARGIN, PAD, GAP, HEADING = 16, 7, 5, 17
CORE, THREAD, MARK = 31, 15, 13
"""The width of a core, the height of one of its CPUs, and of the line above with the instance's number."""
LINE, LETTER, LEGEND = 18, 6, 238
"""The height of a line of text, and the widths of a letter of a heading and of an entry of the legend."""
GOLDEN_ANGLE = 137.508
"""Between the hues of successive instances: neighbours differ, however many there are."""

STYLE = """\
text { font: 12px ui-monospace, monospace; fill: var(--ink); }
.title { font-weight: bold; font-size: 14px; }
.heading, .cpu, .mark { font-size: 10px; }
.cpu, .mark { text-anchor: middle; }
.mark { font-weight: bold; }
.paper { fill: var(--paper); }
.box { stroke: var(--edge); }
.depth0 { fill: var(--box0); }
.depth1 { fill: var(--box1); }
.core { fill: var(--paper); stroke: var(--edge); }
.spare { fill: url(#hatch); stroke: var(--edge); }
.hatch { stroke: var(--edge); stroke-width: 2; }
.refused { fill: none; stroke: var(--edge); stroke-dasharray: 3 2; }
.refused + text, .refused + text + text { opacity: 0.55; }
svg { --paper: #fff; --ink: #1b1f24; --edge: #8b949e; --box0: #eef1f4; --box1: #e0e5ea; --light: 76%; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0d1117; --ink: #e6edf3; --edge: #6e7681; --box0: #161b22; --box1: #21262d; --light: 32%; }
}"""


class Size(NamedTuple):
    width: int
    height: int
    columns: int
    """In so many columns its boxes or cores are arranged."""
    inner: tuple[Size, ...] = ()
    """Of its boxes."""


def draw_svg(machine: Machine, plan: Plan | None) -> str:
    """The machine as an SVG document, with the place of each instance of `plan`."""
    return _Picture(machine, plan).document()


class _Picture:
    """Draws one machine."""

    def __init__(self, machine: Machine, plan: Plan | None) -> None:
        self._artist = Artist(machine, plan, 86)
        self._allowed = frozenset(machine.limits.allowed_cpus)
        self._plan = plan if plan is not None and plan.bound else None
        self._owner = {
            cpu: instance.index
            for instance in (() if self._plan is None else self._plan.instances)
            for cpu in instance.cpus
        }
        self._mark = MARK if self._plan is not None or machine.topology.core_kinds else 0
        self._top = self._artist.machine_box()
        self._core_height = self._mark + THREAD * max(map(len, self._top.cores)) + 4

    def document(self) -> str:
        size = self._size(self._top, MAX_WIDTH - 2 * MARGIN + 2 * PAD)
        width = max(size.width - 2 * PAD + 2 * MARGIN, MIN_WIDTH)
        title, *facts = [str(line) for line in self._artist.facts()]
        body = [*self._text(MARGIN, MARGIN + 12, title, "title")]
        top = MARGIN + LINE - HEADING
        body += self._inside(self._top, MARGIN - PAD, top, size, 0)
        y = top + size.height + LINE
        rows = list(self._legend(width, y))
        body += [line for _, lines in rows for line in lines]
        y = max([bottom for bottom, _ in rows], default=y)
        for fact in facts:
            body += self._text(MARGIN, y, fact)
            y += LINE
        colours = [
            f".i{index} {{ fill: hsl({index * GOLDEN_ANGLE % 360:.0f} 62% var(--light)); stroke: var(--edge); }}"
            for index in sorted(set(self._owner.values()))
        ]
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" '
                f'viewBox="0 0 {width} {y}" role="img">',
                f"<title>{escape(title)}</title>",
                "<style>",
                STYLE,
                *colours,
                "</style>",
                '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
                'patternTransform="rotate(45)"><path class="hatch" d="M0 0V6"/></pattern>',
                f'<rect class="paper" width="{width}" height="{y}"/>',
                *body,
                "</svg>",
            ]
        )

    def _size(self, box: Box, width: int) -> Size:
        """The lowest arrangement of a box within a width; of equally low ones the narrowest."""
        inner = width - 2 * PAD
        heading = LETTER * len(box.heading)
        if not box.boxes:
            columns = min(max(1, (inner + GAP) // (CORE + GAP)), len(box.cores))
            rows = -(-len(box.cores) // columns)
            columns = -(-len(box.cores) // rows)  # rows of equal length
            used = columns * (CORE + GAP) - GAP
            height = rows * (self._core_height + GAP) - GAP
            return Size(max(used, heading) + 2 * PAD, height + HEADING + PAD, columns)
        count = len(box.boxes)
        arrangements = []
        for rows in sorted({-(-count // columns) for columns in range(1, count + 1)}):
            columns = -(-count // rows)
            share = (inner - GAP * (columns - 1)) // columns
            sizes = tuple([self._size(inner, share) for inner in box.boxes])
            lines = [sizes[i : i + columns] for i in range(0, count, columns)]
            used = max(sum(s.width for s in line) + GAP * (len(line) - 1) for line in lines)
            height = sum(max(s.height for s in line) + GAP for line in lines) - GAP
            size = Size(max(used, heading) + 2 * PAD, height + HEADING + PAD, columns, sizes)
            arrangements.append((max(0, size.width - width), size.height, size.width, rows, size))
        return min(arrangements)[-1]

    def _box(self, box: Box, x: int, y: int, size: Size, depth: int) -> Iterator[str]:
        yield self._rect(x, y, size.width, size.height, f"box depth{depth % 2}", 5)
        yield from self._text(x + PAD, y + 12, box.heading, "heading")
        yield from self._inside(box, x, y, size, depth + 1)

    def _inside(self, box: Box, x: int, y: int, size: Size, depth: int) -> Iterator[str]:
        """The boxes or cores inside a box, in its columns."""
        if not box.boxes:
            for number, core in enumerate(box.cores):
                row, column = divmod(number, size.columns)
                x0 = x + PAD + column * (CORE + GAP)
                yield from self._core(core, x0, y + HEADING + row * (self._core_height + GAP))
            return
        top = y + HEADING
        for first in range(0, len(box.boxes), size.columns):
            x0 = x + PAD
            row_sizes = size.inner[first : first + size.columns]
            for inner, inner_size in zip(box.boxes[first:], row_sizes, strict=False):
                yield from self._box(inner, x0, top, inner_size, depth)
                x0 += inner_size.width + GAP
            top += max(row_size.height for row_size in row_sizes) + GAP

    def _core(self, core: CPUs, x: int, y: int) -> Iterator[str]:
        """A core, and inside it each of its CPUs. A CPU that is left out is empty."""
        owners = sorted({self._owner[cpu] for cpu in core if cpu in self._owner})
        allowed = any(cpu in self._allowed for cpu in core)
        spare = self._plan is not None and allowed and not owners
        kind = "spare" if spare else "core" if allowed else "refused"
        yield self._rect(x, y, CORE, self._core_height, kind, 3)
        mark = " ".join(
            [self._artist.kind_of.get(core[0], ""), *[f"#{index}" for index in owners[:1]]]
        )
        if mark.strip():
            yield from self._text(x + CORE // 2, y + 11, mark.strip(), "mark")
        for row, cpu in enumerate(core):
            top = y + self._mark + 2 + row * THREAD
            if cpu in self._owner:
                yield self._rect(x + 2, top, CORE - 4, THREAD - 1, f"i{self._owner[cpu]}", 2)
            elif allowed and cpu not in self._allowed:
                yield self._rect(x + 2, top, CORE - 4, THREAD - 1, "refused", 2)
            elif spare:
                yield self._rect(x + 5, top + 1, CORE - 10, THREAD - 3, "paper", 2)
            yield from self._text(x + CORE // 2, top + 11, str(cpu), "cpu")

    def _legend(self, width: int, y: int) -> Iterator[tuple[int, list[str]]]:
        """Each entry, with where the next line begins."""
        entries = [
            (
                f"i{instance.index}",
                f"#{instance.index} {counted(instance.ncores, 'core')}: {_short(instance.cpus)}",
            )
            for instance in (() if self._plan is None else self._plan.instances)
        ]
        allowed = [core for core in self._top.cores if not self._allowed.isdisjoint(core)]
        if self._plan is not None and any(self._owner.keys().isdisjoint(core) for core in allowed):
            entries.append(("spare", "spare core"))
        if len(self._allowed) < len([cpu for core in self._top.cores for cpu in core]):
            entries.append(("refused", "may not be used"))
        columns = max(1, (width - 2 * MARGIN) // LEGEND)
        for number, (kind, text) in enumerate(entries):
            row, column = divmod(number, columns)
            left, line = MARGIN + column * LEGEND, y + row * LINE
            swatch = self._rect(left, line - 11, 14, 14, kind, 2)
            yield line + LINE + 4, [swatch, *self._text(left + 20, line, text)]

    @staticmethod
    def _rect(x: int, y: int, width: int, height: int, kind: str, radius: int) -> str:
        return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}"/>'

    @staticmethod
    def _text(x: int, y: int, text: str, kind: str = "") -> list[str]:
        named = f' class="{kind}"' if kind else ""
        return [f'<text{named} x="{x}" y="{y}">{escape(text)}</text>'] if text else []


def _short(cpus: CPUs) -> str:
    text = numbers(cpus)
    return text if len(text) <= 17 else f"{text[:16]}\N{HORIZONTAL ELLIPSIS}"
