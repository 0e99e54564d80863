# SPDX-License-Identifier: Apache-2.0
"""`python -m xruntime allocator`: which allocator serves this process, what it holds, how it is set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from xruntime.allocator import Allocator, Setting, Stats, current

SCHEMA_VERSION = 1

_SHOWN = (
    ("allocated", "in use"),
    ("free", "free, kept for reuse"),
    ("mapped", "taken from the system"),
    ("peak_mapped", "the same at its peak"),
    ("resident", "of it in physical memory"),
    ("retained", "addresses without memory"),
    ("process_resident", "the process in physical memory"),
    ("process_peak_resident", "the same at its peak"),
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the same as a JSON object, in bytes.")
def allocator(*, as_json: bool) -> None:
    """Show the allocator that serves this process: what it is, what it holds, how it is set.

    To see it as a program would have it: xlaunch --allocator jemalloc -m xruntime allocator
    """
    heap = current()
    told, settings = heap.stats(), heap.settings()
    if as_json:
        click.echo(json.dumps(_to_dict(heap, told, settings), indent=1))
    else:
        click.echo("\n".join(_lines(heap, told, settings)))


def _lines(heap: Allocator, told: Stats, settings: Sequence[Setting]) -> list[str]:
    lines = [f"{heap.name} {heap.version or '(version not told)'}", f"  {heap.path}", "", "memory"]
    numbers = told._asdict()
    lines += _columns([(label, _in_mib(numbers[field])) for field, label in _SHOWN])
    if settings:
        lines += ["", "settings (those marked * can be changed in the running process)"]
        lines += _columns(
            [
                (
                    f"{setting.name}{' *' if setting.writable else ''}",
                    f"{setting.value} {setting.unit or ''}".strip() or "(empty)",
                    setting.note or "",
                )
                for setting in settings
            ]
        )
    return lines + [f"note: {note}" for note in heap.notes]


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _in_mib(size_bytes: int | None) -> str:
    return "not told" if size_bytes is None else f"{size_bytes / 2**20:.1f} MiB"


def _to_dict(heap: Allocator, told: Stats, settings: Sequence[Setting]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "allocator": {
            "name": heap.name,
            "version": heap.version,
            "path": heap.path,
            "in_program": heap.in_program,
        },
        "stats": told._asdict(),
        "settings": [setting._asdict() for setting in settings],
        "notes": list(heap.notes),
    }
