# SPDX-License-Identifier: Apache-2.0
"""`xlaunch.launch`: run a plan from any Python program and get its report as a value.

The keeper changes what a process does with signals and orphans, so it is a process of its own
here, never the caller's: a notebook or a program with many threads may call this.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping

from xlaunch.environment import prepare_environment
from xlaunch.errors import XLaunchError
from xlaunch.planning.plan import Plan
from xlaunch.run import check_outputs
from xlaunch.run.report import Report


def launch(
    plan: Plan, *, environment: Mapping[str, str] | None = None, table: bool = False
) -> Report:
    """Run the instances of `plan`, supervised, and wait for the last process.

    `environment`: what the instances inherit; None: `os.environ`. `table`: print the report to
    standard error as the command line does. A failed instance is not an error here: see
    `Report.exit_code`. Raises `XLaunchError` when the run could not be started or was killed.
    """
    inherited = os.environ if environment is None else environment
    prepared = prepare_environment(plan, inherited, make_folders=True)
    check_outputs(plan)
    if sys.platform != "linux":
        from xlaunch.run.unbound import run_unbound

        reports: list[Report] = []
        run_unbound(plan, prepared, table=table, deliver=reports.append)
        return reports[0]
    task = pickle.dumps((plan, prepared, table))
    report_in, report_out = os.pipe()
    task_in, task_out = os.pipe()
    # The child must find this very package, wherever the caller found it.
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    command = (sys.executable, "-c", _CHILD, home, str(task_in), str(report_out))
    with open(task_out, "wb") as task_stream, open(report_in, "rb") as report_stream:
        keeper = subprocess.Popen(command, pass_fds=(task_in, report_out))
        os.close(task_in)
        os.close(report_out)
        try:
            task_stream.write(task)
            task_stream.close()
            data = report_stream.read()
            keeper.wait()
        except KeyboardInterrupt:
            keeper.wait()  # the terminal has interrupted it as well
            raise
        except BaseException:
            keeper.terminate()
            keeper.wait()
            raise
    if not data:
        raise XLaunchError(f"the run left no report; its keeper ended with {keeper.returncode}")
    report: Report = pickle.loads(data)  # noqa: S301 - from our own child, through our own pipe
    return report


_CHILD = """
import sys
home, task, report = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, home)
from xlaunch.run.library import serve
sys.exit(serve(task, report))
"""


def serve(task_descriptor: int, report_descriptor: int) -> int:
    """Be the keeper of one run for `launch`; the exit code for this process."""
    from xlaunch.run.supervised import run_supervised
    from xlaunch.run.syscalls import die_with_parent

    die_with_parent(signal.SIGTERM)
    with open(task_descriptor, "rb") as stream:
        plan, environment, table = pickle.loads(stream.read())  # noqa: S301 - from our parent
    os.set_inheritable(report_descriptor, False)

    def deliver(report: Report) -> None:
        with open(report_descriptor, "wb", closefd=False) as stream:
            stream.write(pickle.dumps(report))

    return run_supervised(plan, environment, table=table, deliver=deliver)
