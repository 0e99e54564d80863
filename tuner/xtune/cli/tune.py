# SPDX-License-Identifier: Apache-2.0
"""`xtune`: find the best way to run a program on this machine."""

from __future__ import annotations

from typing import Any

import click

import xtune
from xlaunch.errors import UsageError
from xlaunch.options.commands import CONTEXT
from xtune.cli import COMMANDS, RESERVED, say
from xtune.cli.options import SearchCommand, with_search_options
from xtune.request import search_request


@click.command(cls=SearchCommand, context_settings=CONTEXT)
@with_search_options
@click.version_option(xtune.__version__, message="xtune %(version)s")
def command(
    *,
    save_preset: str | None,
    force: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Find the best way to run PROGRAM on this machine, with evidence.

    \b
    xtune infer.py                      compare wall time
    xtune --metric 'images/s' infer.py  compare a number that it prints
    xtune --metric ms --require 'rss<=8GiB' --budget 20m serve.py
    xtune --only-params --param batch=1,2,4,8 -- infer.py --batch {batch}

    PROGRAM is launched repeatedly: without xlaunch (the bare command), with xlaunch's defaults and
    with other settings. In a final, the best ones and the bare command take turns. The verdict is a
    gain with its confidence interval, no gain, or inconclusive. Ctrl-C prints the verdict so far.

    Write -- or a path before a program that has the name of a command.
    """
    context = click.get_current_context()
    asked = search_request({**options, "quiet": quiet, "verbose": verbose})
    program = asked.request.program
    _refuse_command_names(program.words, context.obj, module=program.module)

    from xlaunch.options.presets import check_preset_path
    from xtune.cli.searching import OutputOptions, StartObserver, run_search
    from xtune.preparation import silent
    from xtune.search.events import Observer
    from xtune.searches import begin

    if save_preset is not None:
        check_preset_path(save_preset, force=force, program=program.words)
    observer, tell = (Observer(), silent) if quiet else (StartObserver(), say)
    session = begin(asked, context.obj, observer=observer, say=tell, show_output=verbose)
    context.call_on_close(session.study.storage.close)
    return run_search(session, OutputOptions(save_preset, as_json, verbose, quiet, force))


command.modules = COMMANDS


def _refuse_command_names(program: tuple[str, ...], arguments: Any, *, module: bool) -> None:
    # click drops `--`, but `arguments`, which end with the program's words, still have it.
    word = program[0]
    if not module and word in RESERVED and "--" not in arguments[: -len(program)][-1:]:
        raise UsageError(
            f"{word!r} is a command of xtune: put it first, or write '-- {word}' or a path for a "
            "program of that name"
        )
