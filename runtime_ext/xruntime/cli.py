# SPDX-License-Identifier: Apache-2.0
"""The command ``python -m xruntime``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click

import xruntime
from xlaunch.console import flush_streams, prepare_streams, report_errors
from xlaunch.options.commands import CommandGroup, run_click, words_for_help
from xlaunch.text import align
from xruntime.errors import DeviceError

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
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(xruntime.__version__, message="xruntime %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Show what a process that is started like this one runs on."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@commands.command("allocator")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, in bytes.")
def show_allocator(*, as_json: bool) -> None:
    """Show the memory allocator: file, statistics and settings.

    To see it as a program would have it: xlaunch --allocator jemalloc -m xruntime allocator
    """
    from xruntime.allocator import current

    heap = current()
    stats, settings = heap.stats(), heap.settings()
    if as_json:
        answer = {
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
        click.echo(json.dumps(answer, indent=1))
    else:
        click.echo("\n".join(_lines(heap, stats, settings)))


@commands.command("device")
@click.argument("name", metavar="[auto|cpu|cuda[:N]|xpu[:N]|mps]", default="auto")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, in bytes.")
def show_device(name: str, *, as_json: bool) -> None:
    """Show the device that computes here, or the named one.

    Its memory, driver and precisions are shown, after a small result was computed on it. A line on
    standard error says why others were not taken.
    """
    from xruntime.devices import describe_device

    try:
        properties = describe_device(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DeviceError("devices need torch, which is not installed: pip install torch") from None
    if as_json:
        answer = {"schema_version": SCHEMA_VERSION, **properties._asdict()}
        click.echo(json.dumps(answer, indent=1))
    else:
        click.echo(str(properties))


@commands.command("kernels")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option("--build", is_flag=True, help="Compile the operators of DLRM for torch's dispatcher.")
def show_kernels(*, as_json: bool, build: bool) -> None:
    """Show the native library, and the instruction set it runs on.

    XKERNELS_ISA=NAME selects another of the supported instruction sets. With --build, compiled models
    call MergedEmbeddingBag and interaction without Python, in this and every later process;
    XRUNTIME_OPERATORS=python undoes it for a process.
    """
    from xruntime import native, operator_library

    if build:
        click.echo("compiling, which takes about ten seconds", err=True)
        operator_library.build()
    operators = operator_library.load()
    path, isa, supported = native.library_path(), native.isa_name(), native.supported_isas()
    forced = bool(os.environ.get(native.ISA_VARIABLE))
    if as_json:
        answer = {
            "schema_version": SCHEMA_VERSION,
            "path": str(path),
            "interface_version": native.ABI_VERSION,
            "isa": isa,
            "isa_forced": forced,
            "isas_supported": supported,
            "operators": {
                "path": None if operators.path is None else str(operators.path),
                "reason": operators.reason or None,
            },
        }
        click.echo(json.dumps(answer, indent=1))
        return
    reason = f"set by {native.ISA_VARIABLE}" if forced else "the best that this CPU supports"
    rows = [
        ("interface version", str(native.ABI_VERSION)),
        ("instruction set", f"{isa} ({reason})"),
        ("supported", ", ".join(supported)),
        (
            "operators of DLRM",
            f"called through Python ({operators.reason})"
            if operators.path is None
            else f"called without Python ({operators.path.name})",
        ),
    ]
    click.echo("\n".join([str(path), *_columns(rows)]))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code. A user's mistake is one line, never a traceback."""
    prepare_streams()
    code = run(sys.argv[1:] if arguments is None else arguments)
    flush_streams()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line; return its exit code."""
    return report_errors(_run, arguments, "xruntime")


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = words_for_help(arguments[1:], commands.commands, PROGRAM)
    return run_click(commands, PROGRAM, arguments, "xruntime")


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
    return [f"  {line}" for line in align(rows)]


def _in_mib(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 2**20:.1f} MiB"
