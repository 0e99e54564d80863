# SPDX-License-Identifier: Apache-2.0
"""`xtune list`: the stored studies."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from xlaunch.options.commands import CONTEXT, with_options
from xtune.cli.options import STORAGE


@click.command("list", context_settings={**CONTEXT, "allow_interspersed_args": True})
@with_options(
    [STORAGE, click.option("--json", "as_json", is_flag=True, help="Print the studies as JSON.")]
)
def command(*, storage: str | None, as_json: bool) -> int:
    """List the stored studies, the oldest first.

    Each with its name, launches, verdict, metric and program.
    """
    from xtune.cli import say
    from xtune.cli.studies import open_named
    from xtune.search.study import list_studies
    from xtune.search.study_store import StudyStore
    from xtune.searches import read_records
    from xtune.show.words import launches

    rows: list[dict[str, Any]] = []
    opened = open_named(storage)
    studies, problems = list_studies(opened)
    for study in studies:
        records = read_records(StudyStore(study), say)
        verdict = study.notes.get("verdict") or {}
        rows.append(
            {
                "study": study.name,
                "launches": sum(record.launch is not None for record in records),
                "verdict": verdict.get("kind"),
                "metric": study.subject.objective.metric,
                "configurations": study.subject.space.size,
                "machine": study.subject.machine.fingerprint,
                "program": shlex.join(study.subject.program.words),
            }
        )
    for name, problem in sorted(problems.items()):
        say(f"study {name!r} {problem}")
    if as_json:
        click.echo(json.dumps(rows))
        return 0
    if not rows and not problems:
        say(f"there is no study in {opened.shown} yet; begin with xtune PROGRAM")
    width = max([len(row["study"]) for row in rows], default=0)
    for row in rows:
        click.echo(
            f"{row['study']:<{width}}  {launches(row['launches']):>14}"
            f"  {row['verdict'] or 'no verdict':<12}  {row['metric']}  {row['program']}"
        )
    return 0
