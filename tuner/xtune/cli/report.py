# SPDX-License-Identifier: Apache-2.0
"""`xtune report`: what a study has found so far."""

from __future__ import annotations

import os

import click

from xlaunch.cli.options import with_options
from xtune.cli.options import CONTEXT, STORAGE


@click.command(context_settings={**CONTEXT, "allow_interspersed_args": True})
@click.argument("study", required=False)
@with_options(
    [
        STORAGE,
        click.option(
            "--html",
            metavar="FILE",
            help="Write a page for a browser too, with charts and all that the verdict rests on: one "
            "file, which fetches nothing.",
        ),
        click.option("--save-preset", metavar="FILE", help="Write what won, for xlaunch --preset."),
        click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON."),
    ]
)
def command(
    *,
    study: str | None,
    storage: str | None,
    html: str | None,
    save_preset: str | None,
    as_json: bool,
) -> int:
    """Tell what STUDY, or the youngest one, has found so far. Nothing is launched."""
    from xtune.cli import say
    from xtune.cli.conclusion import check_preset, write_preset
    from xtune.cli.kept import enter, find_kept, open_named
    from xtune.cli.page_file import check_page, load_plotly, write_page
    from xtune.cli.preparation import prepare
    from xtune.cli.searching import print_conclusion, recall, require_launched

    if html is not None:
        check_page(html)
        html = os.path.abspath(html)
    if save_preset is not None:
        check_preset(save_preset)
        save_preset = os.path.abspath(save_preset)
    plotly = None if html is None else load_plotly()
    kept = find_kept(open_named(storage), study)
    enter(kept.folder)
    task = prepare(kept.asked, known=kept.study.subject)
    asked = kept.asked._replace(storage=storage)
    conclusion = recall(task, asked, kept.study)
    require_launched(conclusion.launches, kept.study.name)
    if save_preset is not None:
        path, why = write_preset(conclusion, save_preset)
        conclusion = conclusion._replace(preset=path)
        if why:
            say(f"note: {why}")
    if html is not None and plotly is not None:
        write_page(html, plotly, conclusion, task, kept)
    print_conclusion(conclusion, as_json=as_json)
    return 0
