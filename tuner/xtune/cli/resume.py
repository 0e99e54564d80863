# SPDX-License-Identifier: Apache-2.0
"""`xtune resume`: continue a search."""

from __future__ import annotations

from typing import Any

import click

from xlaunch.errors import UsageError
from xlaunch.options.commands import CONTEXT, with_options
from xtune.cli.options import OUTPUT, RESUMING


@click.command(context_settings={**CONTEXT, "allow_interspersed_args": True})
@click.argument("study", required=False)
@with_options(RESUMING, OUTPUT)
def command(*, study: str | None, storage: str | None, budget: str | None, **output: Any) -> int:
    """Continue STUDY, or the latest one.

    Its options are those that it was begun with. The budget is for new launches. Default: the budget
    that the study was begun with.
    """
    if output["quiet"] and output["verbose"]:
        raise UsageError("--quiet contradicts --verbose; drop one")

    from xtune.cli.searching import OutputOptions, preset_path, run_search
    from xtune.cli.studies import enter, find_stored, open_named
    from xtune.preparation import prepare
    from xtune.search.budget import parse_budget
    from xtune.searches import resumed

    if budget is not None:
        parse_budget(budget)
    output["save_preset"] = preset_path(output["save_preset"], force=output["force"])
    options = OutputOptions(**output)
    stored = find_stored(open_named(storage), study)
    stored.study.require_current()
    enter(stored.directory, quiet=options.quiet)
    asked = stored.asked._replace(budget=budget or stored.asked.budget, storage=storage)
    task = prepare(asked, known=stored.study.subject, show_output=options.verbose)
    return run_search(resumed(task, stored.study), options)
