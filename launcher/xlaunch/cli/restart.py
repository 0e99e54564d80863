# SPDX-License-Identifier: Apache-2.0
"""`xlaunch restart`: replace the instances of a run, one after the other."""

from __future__ import annotations

import time

import click

from xlaunch.cli.ps import ask_run, find_run, state_of
from xlaunch.console import say
from xlaunch.errors import XLaunchError
from xlaunch.options.commands import CONTEXT
from xlaunch.report.run_client import RESTART
from xlaunch.text import counted, name_numbers

POLL_S = 0.25


@click.command(context_settings={**CONTEXT, "allow_interspersed_args": True})
@click.option("-q", "--quiet", is_flag=True, help="Print no notes.")
@click.argument("run", metavar="RUN")
def command(*, quiet: bool, run: str) -> None:
    """Restart the instances of a launch, one after the other.

    RUN is the PID that xlaunch ps shows, or self. Each instance gets SIGTERM, and SIGKILL after the grace
    period, and is started again at once; that is no failure. The next one follows when it is ready: when
    it answers a probe (--health), or without probes when it has run for two seconds. If one ends before
    that, the others are left as they are, and the exit code is 125.
    """
    lease = find_run(run)
    ask_run(lease, RESTART)
    state = state_of(lease)
    count, before = len(state["restarting"]), None
    while waiting := state["restarting"]:
        if waiting != before and not quiet:
            after = f"; then {name_numbers('instance', waiting[1:])}" if waiting[1:] else ""
            say(f"restarting instance {waiting[0]}{after}")
        before = waiting
        time.sleep(POLL_S)
        state = state_of(lease)
    if state["restart_problem"] is not None:
        raise XLaunchError(state["restart_problem"])
    if not quiet:
        say(f"{counted(count, 'instance')} restarted")
