# SPDX-License-Identifier: Apache-2.0
"""`xtune export`: every launch of a study, with every raw sample."""

from __future__ import annotations

import json
import re

import click

from xlaunch.errors import UsageError, XLaunchError
from xlaunch.options.commands import CONTEXT, with_options
from xtune.cli.options import STORAGE

SCHEMA_VERSION = 1
"""Version of the JSON; raised when a key changes its meaning or is removed."""


@click.command(context_settings={**CONTEXT, "allow_interspersed_args": True})
@click.argument("study", required=False)
@with_options(
    [
        STORAGE,
        click.option(
            "-o", "--output", metavar="FILE", help="File to write. Default: -, standard output."
        ),
        click.option("--force", is_flag=True, help="Replace FILE, whatever it is."),
        click.option("--no-samples", is_flag=True, help="Leave out the raw samples."),
    ]
)
def command(
    *, study: str | None, storage: str | None, output: str | None, force: bool, no_samples: bool
) -> int:
    """Print STUDY, or the latest one, as JSON.

    That is the machine, the program, the space and every launch.
    """
    if output == "":
        raise UsageError("--output: the file's name is empty")
    from xlaunch.files import OutputKind, check_output, write_output
    from xtune.cli import say
    from xtune.cli.studies import find_stored, open_named
    from xtune.search.encoding import encode_launch
    from xtune.search.study_store import StudyStore
    from xtune.searches import read_records

    begins = re.compile(rb'\s*\{\s*"schema_version":\s*\d+,\s*"study":')
    kind = OutputKind("an export of xtune", lambda head: begins.match(head) is not None)
    if output not in (None, "-"):
        check_output(output, kind, option="--output", force=force)
    stored = find_stored(open_named(storage), study)
    chosen = stored.study
    rows = [
        {
            "number": record.number,
            "stage": record.step.stage.value,
            "origin": record.step.origin,
            "host": record.host,
            **encode_launch(record.launch, series=not no_samples),
        }
        for record in read_records(StudyStore(chosen), say)
        if record.launch is not None
    ]
    text = json.dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "study": chosen.name,
            "arguments": list(stored.arguments),
            "directory": stored.directory,
            **chosen.subject.to_plain(),
            "verdict": chosen.notes.get("verdict"),
            "launches": rows,
        },
        indent=1,
    )
    if output in (None, "-"):
        click.echo(text)
        return 0
    if not rows:
        raise XLaunchError(f"study {chosen.name!r} has no launch yet; nothing is written")
    write_output(output, text + "\n", option="--output", kind=kind, force=force)
    return 0
