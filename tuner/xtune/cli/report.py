# SPDX-License-Identifier: Apache-2.0
"""`xtune report`: the verdict of a study so far."""

from __future__ import annotations

import os

import click

from xlaunch.errors import XLaunchError
from xlaunch.files import write_output
from xlaunch.options.commands import CONTEXT, with_options
from xtune.cli.options import REPORTING

KIB = 1 << 10


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
    from xtune.cli.searching import preset_path, print_result, write_best
    from xtune.cli.studies import enter, find_stored, open_named
    from xtune.preparation import prepare
    from xtune.searches import recall
    from xtune.show.page import PAGE, check_page, render_page, require_libraries

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
        text = render_page(result._replace(directory=stored.directory))
        write_output(html, text, option="--html", kind=PAGE, force=force)
        say(f"page: {html} ({len(text.encode()) / KIB:.0f} KiB)")
    print_result(result, as_json=as_json)
    return 0
