# SPDX-License-Identifier: Apache-2.0
"""Run a plan: in this process's place when nothing needs a supervisor, supervised otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from xlaunch.environment import Environment
from xlaunch.errors import UsageError
from xlaunch.planning.plan import Plan
from xlaunch.run.logs import prepare_log_folder

if TYPE_CHECKING:
    from xlaunch.run.report import Report

__all__ = ["check_outputs", "run_plan"]


def check_outputs(plan: Plan) -> None:
    """Raise `UsageError`, before anything starts, when logs or report could not be written.

    The folder for logs is made, and only when nothing else is wrong. A report may lie in it.
    """
    if plan.request.pty and plan.request.log_dir is not None:
        raise UsageError("--pty contradicts --log-dir: a log file is no terminal; drop one")
    if plan.request.report is not None:
        from xlaunch.run.report import check_report_path

        check_report_path(plan.request.report, log_folder=plan.request.log_dir)
    if plan.request.log_dir is not None:
        prepare_log_folder(plan.request.log_dir)


def run_plan(
    plan: Plan,
    environment: Environment,
    *,
    note: Callable[[str], None],
    table: bool = True,
    deliver: Callable[[Report], None] | None = None,
) -> int:
    """Run the instances of `plan`; the exit code for this process.

    Returns never when the one instance replaces this process. `note` takes lines for the user,
    `table` puts the report on standard error at the end, `deliver` gets it as a value.
    """
    if sys.platform != "linux":
        from xlaunch.run.unbound import UNBOUND, run_unbound

        note(UNBOUND)
        return run_unbound(plan, environment, table=table, deliver=deliver)
    if plan.request.pty and _has_terminal(plan):
        plan = plan._replace(request=plan.request._replace(pty=False))
    if not plan.supervised and deliver is None:
        from xlaunch.run.start import replace_this_process

        replace_this_process(plan, environment.programs[0], environment.variables[0], note)
    from xlaunch.run.supervised import run_supervised

    return run_supervised(plan, environment, table=table, deliver=deliver)


def _has_terminal(plan: Plan) -> bool:
    """Whether the plan's only instance writes to the real terminal itself, untouched by us."""
    alone = len(plan.instances) == 1 and not plan.tagged and not plan.request.metric
    return alone and os.isatty(1) and os.isatty(2)
