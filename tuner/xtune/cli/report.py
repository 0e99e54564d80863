# SPDX-License-Identifier: Apache-2.0
"""`xtune report`: the verdict of a study so far."""

from __future__ import annotations

import os

import click

from xlaunch.errors import XLaunchError
from xlaunch.options.commands import CONTEXT, with_options
from xtune.cli.options import REPORTING


@click.command(context_settings={**CONTEXT, "allow_interspersed_args": True})
@click.argument("study", required=False)
@with_options(REPORTING)
def command(
    *,
    study: str | None,
    storage: str | None,
    html: str | None,
    save_preset: str | None,
    force: bool,
    as_json: bool,
) -> int:
    """Print the verdict of STUDY, or of the latest one, so far. Nothing is launched."""
    from xtune.cli import say
    from xtune.cli.output_files import check_page, preset_path, write_best, write_page
    from xtune.cli.searching import print_result
    from xtune.cli.studies import enter, find_stored, open_named
    from xtune.preparation import prepare
    from xtune.searches import recall
    from xtune.show.page import require_libraries

    if html is not None:
        check_page(html, force=force)
        html = os.path.abspath(html)
    save_preset = preset_path(save_preset, force=force)
    if html is not None:
        require_libraries()
    stored = find_stored(open_named(storage), study)
    enter(stored.directory)
    asked = stored.asked._replace(storage=storage)
    task = prepare(asked, known=stored.study.subject, launches=html is not None)
    result = recall(task, stored.study, say)
    if not result.launches:
        raise XLaunchError(
            f"study {stored.study.name!r} has no launch to report; continue it with xtune resume"
        )
    if save_preset is not None:
        path, why = write_best(result, save_preset, force=force)
        result = result._replace(preset=path)
        if why:
            say(f"note: {why}")
    if html is not None:
        write_page(html, result, stored, force=force)
    print_result(result, as_json=as_json)
    return 0
