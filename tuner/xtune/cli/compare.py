# SPDX-License-Identifier: Apache-2.0
"""`xtune compare`: which of two commands is better, with evidence."""

from __future__ import annotations

from typing import Any

import click

from xlaunch.errors import UsageError
from xlaunch.options.commands import CONTEXT, with_options
from xtune.cli.options import AS_JSON, COMPARED, RUNS


@click.command("compare", context_settings={**CONTEXT, "allow_interspersed_args": True})
@click.argument("commands", nargs=-1, metavar="'COMMAND' 'COMMAND'")
@with_options(COMPARED, [AS_JSON])
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
def command(*, commands: tuple[str, ...], **options: Any) -> int:
    """Compare two commands, with evidence.

    \b
    xtune compare 'python a.py' 'python b.py'
    xtune compare --metric 'images/s' infer.py 'xlaunch infer.py'

    They run in turns until the verdict is known: the better one, with the confidence interval of the
    ratio, or no difference. After the last run it may be inconclusive.
    """
    if len(commands) != 2:
        raise UsageError(
            f"compare takes two commands, each quoted as one word, and got {len(commands)}:"
            " xtune compare 'COMMAND' 'COMMAND'"
        )
    if options["runs"] is not None and options["runs"] not in RUNS:
        raise UsageError(
            f"--runs {options['runs']}: a verdict takes {RUNS[0]} to {RUNS[-1]} runs of each"
        )
    from xtune.cli.comparing import run_comparison

    return run_comparison(commands, options)
