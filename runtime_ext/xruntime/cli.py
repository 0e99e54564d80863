# SPDX-License-Identifier: Apache-2.0
"""The command ``python -m xruntime``."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

from xlaunch.errors import UsageError, XLaunchError

if TYPE_CHECKING:
    from xruntime.allocator import Allocator, Setting, Stats

PROGRAM = "python -m xruntime"
SCHEMA_VERSION = 1

_STATS_LABELS = {
    "allocated": "in use",
    "free": "free, kept for reuse",
    "mapped": "taken from the system",
    "peak_mapped": "taken at the peak",
    "resident": "in physical memory",
    "retained": "addresses without memory",
    "process_resident": "process in physical memory",
    "process_peak_resident": "process at its peak",
}


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.pass_context
def commands(context: click.Context) -> None:
    """Show what a process that is started like this one runs on."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@commands.command("allocator")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, in bytes.")
def show_allocator(*, as_json: bool) -> None:
    """Show the memory allocator of this process: file, statistics and settings.

    To see it as a program would have it: xlaunch --allocator jemalloc -m xruntime allocator
    """
    from xruntime.allocator import current

    heap = current()
    stats, settings = heap.stats(), heap.settings()
    if as_json:
        click.echo(json.dumps(_to_dict(heap, stats, settings), indent=1))
    else:
        click.echo("\n".join(_lines(heap, stats, settings)))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code. A user's mistake is one line, never a traceback."""
    code = run(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would flush again at its end, complain, and exit with a code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _print_error(str(error))
        code = XLaunchError.exit_code
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; return its exit code."""
    try:
        result = commands.main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        _print_error(f"{error.format_message().rstrip('.')}; see '{PROGRAM} --help'")
        return UsageError.exit_code
    except XLaunchError as error:
        _print_error(str(error))
        return error.exit_code
    except OSError as error:  # such as standard output on a full disk
        _print_error(str(error))
        return XLaunchError.exit_code
    return result if isinstance(result, int) else 0


def _print_error(text: str) -> None:
    line = f"xruntime: error: {' '.join(text.split())}\n"
    with contextlib.suppress(OSError):
        sys.stderr.write(line.encode(errors="backslashreplace").decode())
        sys.stderr.flush()


def _lines(heap: Allocator, stats: Stats, settings: Sequence[Setting]) -> list[str]:
    lines = [f"{heap.name} {heap.version or '(unknown version)'}", f"  {heap.path}", "", "memory"]
    numbers = stats._asdict()
    lines += _columns([(label, _in_mib(numbers[name])) for name, label in _STATS_LABELS.items()])
    if settings:
        lines += ["", "settings (* can be changed in the running process)"]
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
    return "unknown" if size_bytes is None else f"{size_bytes / 2**20:.1f} MiB"


def _to_dict(heap: Allocator, stats: Stats, settings: Sequence[Setting]) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "allocator": {
            "name": heap.name,
            "version": heap.version,
            "path": heap.path,
            "in_program": heap.in_program,
        },
        "stats": stats._asdict(),
        "settings": [setting._asdict() for setting in settings],
        "notes": list(heap.notes),
    }
