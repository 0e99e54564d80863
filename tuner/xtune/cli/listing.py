# SPDX-License-Identifier: Apache-2.0
"""`xtune list`: the studies that are kept."""

from __future__ import annotations

import json
import shlex

import click

from xlaunch.cli.options import with_options
from xtune.cli.options import CONTEXT, STORAGE


@click.command("list", context_settings={**CONTEXT, "allow_interspersed_args": True})
@with_options(
    [STORAGE, click.option("--json", "as_json", is_flag=True, help="Print a list as JSON.")]
)
def command(*, storage: str | None, as_json: bool) -> int:
    """List the studies of a storage, the oldest first: name, launches, verdict, program."""
    from xtune.cli.kept import open_named
    from xtune.search.study import list_studies
    from xtune.search.study_store import StudyStore

    rows = []
    for study in list_studies(open_named(storage)):
        records = StudyStore(study, read_only=True).records()
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
    if as_json:
        click.echo(json.dumps(rows))
        return 0
    width = max([len(str(row["study"])) for row in rows], default=0)
    for row in rows:
        verdict_word = row["verdict"] or "no verdict"
        click.echo(
            f"{row['study']:<{width}}  {row['launches']:>5} launches  {verdict_word:<12}"
            f"  {row['metric']}  {row['program']}"
        )
    return 0
