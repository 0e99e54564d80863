# SPDX-License-Identifier: Apache-2.0
"""A supervised run: the keeper in this process, the supervisor in its child."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from xlaunch.environment import Environment
from xlaunch.planning.plans import Plan
from xlaunch.report import Report
from xlaunch.report.json_file import write_report_or_tell
from xlaunch.report.occupancy import StolenTime, anything_runs
from xlaunch.report.table import render_report
from xlaunch.supervision.keeper import keep
from xlaunch.supervision.supervisor import ENDING, Supervisor
from xlaunch.whole_files import is_special_file

if TYPE_CHECKING:
    from xlaunch.measurement.live import LiveWriter
    from xlaunch.measurement.measuring import Measure


def run_supervised(
    plan: Plan,
    environment: Environment,
    *,
    table: bool,
    deliver: Callable[[Report], None] | None,
    live: LiveWriter | None = None,
    caller: int | None = None,
) -> int:
    """Run `plan` under a keeper and a supervisor; the exit code of the first failure, or 0.

    `live` gets what instances measure as it comes in. `caller`: as `keep` has it.
    """
    cpus = {cpu for instance in plan.instances for cpu in instance.cpus}
    maybe_busy = cpus if anything_runs() else ()
    folder, problem = _folder_for(plan)
    measure = _measure_for(plan, folder, live)

    def supervise(commands: int, signal_mask: set[signal.Signals]) -> int:
        supervisor = Supervisor(
            plan,
            environment,
            commands,
            signal_mask,
            measure=measure,
            quiet=not table,
            maybe_busy=maybe_busy,
        )
        if problem is not None:
            supervisor.warn(problem)
        stolen = StolenTime(cpus)
        try:
            report = supervisor.run()
        finally:
            _remove(folder)
        if (lost := stolen.describe()) is not None:
            supervisor.warn(lost)
            report = report._replace(warnings=(*report.warnings, lost))
        if table:
            supervisor.say_block(render_report(report))
        supervisor.flush()
        if deliver is not None:
            deliver(report)
        code = _write_report(report, plan.request.report, commands)
        if supervisor.ended_by_ctrl_c:
            # Told to the keeper by example, see keeper.keep().
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            os.kill(os.getpid(), signal.SIGINT)
        return code or supervisor.exit_code

    try:
        return keep(supervise, caller=caller)
    finally:
        _remove(folder)  # where the supervisor was killed


def _write_report(report: Report, path: str | None, commands: int) -> int:
    """Write the report, if one was asked for; the exit code of the run.

    A pipe that nobody reads would hold this process up for ever: a signal ends the wait.
    """
    if path is None or not is_special_file(path):
        return write_report_or_tell(report, path)
    import threading

    codes: list[int] = []
    writer = threading.Thread(
        target=lambda: codes.append(write_report_or_tell(report, path)), daemon=True
    )
    writer.start()
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(commands, select.POLLIN)
    while not codes and writer.is_alive():
        writer.join(0.05)
        if poll.poll(0):
            numbers = os.read(commands, 1)
            if not numbers:
                return report.exit_code  # the keeper is gone, and nobody is told
            if numbers[0] in ENDING:
                return report.exit_code or 128 + numbers[0]
    return codes[0]


def _folder_for(plan: Plan) -> tuple[str | None, str | None]:
    """A private folder for FIFOs if the plan measures; a line for the user where there is none."""
    if not plan.request.metric:
        return None, None
    from xlaunch.measurement.measuring import make_folder

    try:
        return make_folder(), None
    except OSError as error:
        return None, f"no start barrier: cannot make a folder for it ({error})"


def _measure_for(plan: Plan, folder: str | None, live: LiveWriter | None) -> Measure | None:
    if not plan.request.metric and live is None:
        return None
    from xlaunch.measurement.measuring import measure_of

    return measure_of(plan, folder, live)


def _remove(folder: str | None) -> None:
    if folder is not None:
        from xlaunch.measurement.measuring import remove_folder

        remove_folder(folder)
