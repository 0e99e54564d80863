# SPDX-License-Identifier: Apache-2.0
"""The supervisor's process from its start to its exit code: the run, the table, the report."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from xlaunch.cache.warm import CompilationWatch
from xlaunch.console import terminal_width
from xlaunch.files import is_special_file
from xlaunch.report import Report
from xlaunch.report.json_file import files_of_run, write_report_or_complain
from xlaunch.report.run_table import render_report
from xlaunch.supervision.job import Job
from xlaunch.supervision.supervisor import ENDING, Supervisor

STDERR = 2


def supervise(
    job: Job,
    commands: int,
    signal_mask: set[int],
    fifo_directory: str | None,
    *,
    others_run: bool,
) -> int:
    """Run the instances; return the exit code of the first failure, or 0. For the arguments see
    `Supervisor`.
    """
    watch = CompilationWatch(job.environment.caches)
    more = watch.variables()
    variables = tuple([{**own, **more} for own in job.environment.variables])
    supervisor = Supervisor(
        job._replace(environment=job.environment._replace(variables=variables)),
        commands=commands,
        signal_mask=signal_mask,
        fifo_directory=fifo_directory,
        others_run=others_run,
    )
    report = supervisor.run()
    caches, compilation = watch.finish()
    report = report._replace(caches=caches, compilation=compilation)
    if job.table:
        width = terminal_width(STDERR)
        supervisor.messages.say_block(render_report(report, explain=job.explain, width=width))
    supervisor.flush()
    if job.report_descriptor is not None:
        _send(report, job.report_descriptor)
    code = _write_report(report, job, commands)
    if supervisor.ended_by_ctrl_c:
        # The keeper recognizes this, and does the same.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.kill(os.getpid(), signal.SIGINT)
    return code or supervisor.exit_code


def _send(report: Report, descriptor: int) -> None:
    import pickle

    # A caller that was killed reads no report.
    with contextlib.suppress(BrokenPipeError), open(descriptor, "wb", closefd=False) as stream:
        stream.write(pickle.dumps(report))


def _write_report(report: Report, job: Job, commands: int) -> int:
    """Write the report, if one was asked for; return the exit code of the run.

    A pipe without a reader would block this process for ever: a signal ends the wait.
    """
    path, run = job.run.report, job.run
    if path is None or not is_special_file(path):
        indices = [instance.index for instance in job.plan.instances]
        inputs = files_of_run(job.environment.programs, indices, run.log_dir)
        return write_report_or_complain(report, path, force=run.force, inputs=inputs)
    import threading

    codes: list[int] = []
    writer = threading.Thread(
        target=lambda: codes.append(write_report_or_complain(report, path)), daemon=True
    )
    writer.start()
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(commands, select.POLLIN)
    while not codes and writer.is_alive():
        writer.join(0.05)
        if poll.poll(0):
            numbers = os.read(commands, 1)
            if not numbers:
                return report.exit_code  # the keeper is gone: nobody reads the code
            if numbers[0] in ENDING:
                return report.exit_code or 128 + numbers[0]
    return codes[0]
