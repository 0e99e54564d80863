# SPDX-License-Identifier: Apache-2.0
"""A supervised run: the keeper in this process, the supervisor in its child."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from xlaunch.environment import Environment
from xlaunch.planning.plan import Plan
from xlaunch.run.keeper import keep
from xlaunch.run.report import Report, render_report, write_report_or_tell
from xlaunch.run.supervisor import Supervisor


def run_supervised(
    plan: Plan,
    environment: Environment,
    *,
    table: bool,
    deliver: Callable[[Report], None] | None,
) -> int:
    """Run `plan` under a keeper and a supervisor; the exit code of the first failure, or 0."""

    def supervise(commands: int, signal_mask: set[signal.Signals]) -> int:
        supervisor = Supervisor(plan, environment, commands, signal_mask)
        report = supervisor.run()
        if table:
            supervisor.say_block(render_report(report))
        supervisor.flush()
        if deliver is not None:
            deliver(report)
        code = write_report_or_tell(report, plan.request.report)
        if supervisor.ended_by_ctrl_c:
            # Told to the keeper by example, see keeper.keep().
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            os.kill(os.getpid(), signal.SIGINT)
        return code

    return keep(supervise)
