# SPDX-License-Identifier: Apache-2.0
"""`xtune resume`: go on with a search, with another budget."""

from __future__ import annotations

import os

import click

from xlaunch.cli.options import with_options
from xlaunch.errors import UsageError
from xtune.cli.options import ANSWER, CONTEXT, SPENDING, STORAGE


@click.command(context_settings={**CONTEXT, "allow_interspersed_args": True})
@click.argument("study", required=False)
@with_options([STORAGE, SPENDING[0]], ANSWER)
def command(
    *,
    study: str | None,
    storage: str | None,
    budget: str | None,
    save_preset: str | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Go on with STUDY, or with the youngest one, as it was begun, with the launches it has.

    The budget is for what comes now: that of the first search unless --budget says another.
    """
    if quiet and verbose:
        raise UsageError("--quiet contradicts --verbose; drop one")

    from xtune.cli.conclusion import check_preset
    from xtune.cli.kept import enter, find_kept, open_named
    from xtune.cli.preparation import prepare
    from xtune.cli.searching import Shown, announce, budget_of, kept_to_try, search
    from xtune.search.budget import parse_budget

    if budget is not None:
        parse_budget(budget)
    if save_preset is not None:
        check_preset(save_preset)
        save_preset = os.path.abspath(save_preset)
    opened = open_named(storage)
    kept = find_kept(opened, study)
    enter(kept.folder, quiet=quiet)
    asked = kept.asked._replace(budget=budget or kept.asked.budget, storage=storage)
    task = prepare(asked, known=kept.study.subject, show_output=verbose)
    if not quiet:
        announce(task, verbose=verbose)
    shown = Shown(save_preset, as_json, verbose, quiet)
    budget_now = budget_of(asked, task)
    return search(task, asked, budget_now, kept.study, shown, kept_to_try(kept.study))
