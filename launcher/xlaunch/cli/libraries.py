# SPDX-License-Identifier: Apache-2.0
"""`xlaunch libraries`: list allocators and OpenMP runtimes, and which of them would be used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from xlaunch.console import terminal_width
from xlaunch.environment.elf import read_program
from xlaunch.environment.libraries import NAMES, find_libraries, how_to_install, places
from xlaunch.environment.preload import LibraryVerdict, judge, preloaded, prove_entries
from xlaunch.environment.program import find_interpreter
from xlaunch.environment.python_environment import prefix_of
from xlaunch.options.commands import CONTEXT
from xlaunch.text import folded


@click.command(context_settings=CONTEXT)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@click.option("--python", metavar="FILE", help="The interpreter that libraries are for.")
def command(*, as_json: bool, python: str | None) -> None:
    """Show the allocators and OpenMP runtimes to preload.

    Those that cannot be used are listed with the reason. The environment of the active interpreter
    (or of --python) is searched first, then conda, LD_LIBRARY_PATH and the system. --allocator and --omp use the first usable library of a kind.
    """
    interpreter, reason = find_interpreter(python, os.environ)
    prefix = prefix_of(interpreter)
    libraries = find_libraries(NAMES, prefix, os.environ, loads=read_program(interpreter))
    judged, notes = judge(libraries, interpreter)
    if as_json:
        import json

        click.echo(json.dumps(_to_dict(interpreter, prefix, judged), indent=1))
    else:
        lines = [f"for {interpreter} ({reason})"]
        for entry in judged:
            library = entry.library
            named = " ".join(filter(None, (library.name, library.version)))
            lines += [f"{named}: {entry.verdict}", f"  {library.path} ({library.origin})"]
        usable = {entry.library.name for entry in judged if entry.chosen}
        lines += [
            f"{name}: none that can be used; to install it: {how_to_install(name)}"
            for name in NAMES
            if name not in usable
        ]
        inherited = preloaded(os.environ.get("LD_PRELOAD"))
        if inherited:
            refused = dict(prove_entries(os.environ, interpreter).refused)
            lines += [f"LD_PRELOAD: {entry} ({refused.get(entry, 'kept')})" for entry in inherited]
        width = terminal_width(1)
        click.echo("\n".join([piece for line in lines for piece in folded(line, width)]))
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _to_dict(interpreter: str, prefix: str, judged: Sequence[LibraryVerdict]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "interpreter": interpreter,
        "prefix": prefix,
        "libraries": [
            {
                **{
                    key: getattr(entry.library, key)
                    for key in ("name", "path", "version", "origin")
                },
                "chosen": entry.chosen,
                "verdict": entry.verdict,
            }
            for entry in judged
        ],
        "searched": [place._asdict() for place in places(prefix, os.environ)],
    }
