# SPDX-License-Identifier: Apache-2.0
"""The report of a run as JSON: `--report FILE`."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from xlaunch.environment.program import Program, named_files
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.files import PRIVATE, OutputKind, check_output, is_special_file, write_whole
from xlaunch.output.destinations import log_files
from xlaunch.report import Report

SCHEMA_VERSION = 1
CANNOT_REPLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""Errors for a file that may be writable all the same."""

COLUMNS = {
    "index": "the instance's number",
    "cpus_asked": "affinity mask from the plan",
    "cpus_observed": "CPUs on which a thread of any of its processes was seen (sampled)",
    "numa_nodes": "NUMA nodes of the mask",
    "exit_code": "128 + n when signal n ended it; null when it was not started",
    "wall_s": "from start to end of its own process",
    "cpu_s": "user and system time of its process, children that it waited for, and processes it left behind",
    "utilisation": "cpu_s / (wall_s x CPUs asked)",
    "peak_rss_bytes": "largest sampled sum over its processes, at least the peak of its own process",
    "context_switches": "voluntary and involuntary, of the processes of cpu_s",
    "minor_faults": "page faults without disk access, of the processes of cpu_s",
    "major_faults": "page faults with disk access, of the processes of cpu_s",
    "started": "false when its program could not be executed: no interpreter, too many arguments",
    "metrics": "of each --metric: number of values, the last, and the mean over the window of its total",
    "gpus": "GPUs of its own (--gpus-per-instance): PCI addresses, or names where these are unknown",
    "restarts": "restarts after a failure; sums are over all its runs",
    "migrations": "migrations between CPUs of its sampled threads; null where the kernel does not count them",
}
"""What each key of an instance means."""


def report_to_dict(report: Report) -> dict[str, Any]:
    """The report as plain values, with the keys of `--report`."""
    instances = []
    for instance in report.instances:
        values = instance._asdict()
        values |= {name: list(v) for name, v in values.items() if isinstance(v, tuple)}
        values["metrics"] = [metric._asdict() for metric in instance.metrics]
        instances.append(values)
    return {
        "schema_version": SCHEMA_VERSION,
        "argv": [argument.encode(errors="backslashreplace").decode() for argument in report.argv],
        "exit_code": report.exit_code,
        "reason": report.reason,
        "wall_s": report.wall_s,
        "count": report.count,
        "instances": instances,
        "metrics": [{**total._asdict(), "notes": list(total.notes)} for total in report.metrics],
        "warnings": list(report.warnings),
        "caches": [cache._asdict() for cache in report.caches],
        "compilation": None if report.compilation is None else report.compilation._asdict(),
        "devices": None if report.devices is None else report.devices.as_dict(),
        "columns": COLUMNS,
    }


REPORT = OutputKind(
    "a report of xlaunch",
    lambda head: re.match(rb'\s*\{\s*"schema_version":\s*\d+,\s*"argv":', head) is not None,
)


def files_of_run(
    programs: Iterable[Program], indices: Iterable[int], log_directory: str | None
) -> Iterator[str]:
    """The files that a report of the run never replaces: its programs, their arguments and its logs."""
    if log_directory is not None:
        yield from log_files(log_directory, indices)
    for program in {program.argv: program for program in programs}.values():
        yield program.executable
        if program.interpreter is not None:
            yield program.interpreter
        yield from named_files(program.argv)
        yield from program.command[:1]  # behind nice and the like, by its path


def check_report_path(
    path: str, *, log_directory: str | None, force: bool = False, inputs: Iterable[str] = ()
) -> None:
    """Raise `UsageError`, before the run, when no report could be written to `path`.

    `log_directory` is about to be made, with its parents. `force`, `inputs`: see `check_output`.
    """
    if not path:
        raise UsageError("--report: the file's name is empty")
    if path == "-":
        raise UsageError("--report: name a file; standard output is /dev/stdout")
    if os.path.isdir(path):
        raise UsageError(f"--report: {path!r} is a directory; name a file")
    place = path if is_special_file(path) else os.path.realpath(path)
    directory = os.path.dirname(place)
    writable = place
    try:
        os.stat(place)
    except FileNotFoundError:
        if not os.path.isdir(directory):
            logs = os.path.realpath(log_directory or "/")
            if os.path.commonpath((logs, directory)) == directory:  # it is made with its parents
                check_output(path, REPORT, option="--report", force=force, inputs=inputs)
                return
            raise UsageError(f"--report: the directory {directory!r} does not exist") from None
        writable = directory
    except OSError as error:
        raise UsageError(f"--report: {path!r} cannot be written: {error.strerror}") from None
    if not os.access(writable, os.W_OK):
        raise UsageError(f"--report: no permission to write {writable!r}")
    check_output(path, REPORT, option="--report", force=force, inputs=inputs)


def write_report_or_complain(
    report: Report, path: str | None, *, force: bool = False, inputs: Iterable[str] = ()
) -> int:
    """Write `report` to `path`, if one is given; return the exit code of the run.

    If it cannot be written, or the program has put another file there (`check_output`), the error is
    printed, and a run that succeeded gets the exit code 125.
    """
    if path is None:
        return report.exit_code
    try:
        check_output(path, REPORT, option="--report", force=force, inputs=inputs)
        write_report(report, path)
    except (OSError, UsageError) as error:
        problem = "--report" if isinstance(error, OSError) else "error: no report is written"
        print(f"xlaunch: {problem}: {error}", file=sys.stderr)
        return report.exit_code or XLaunchError.exit_code
    return report.exit_code


def write_report(report: Report, path: str) -> None:
    """Write `report` as JSON. A regular file appears whole or not at all, unless it cannot be replaced.

    One that is mounted into a container, or whose directory is not writable, is overwritten.
    """
    text = json.dumps(report_to_dict(report), indent=1) + "\n"
    mode = "a"
    if not is_special_file(path):
        try:
            write_whole(path, text.encode(), mode=PRIVATE)
        except OSError as error:
            if error.errno not in CANNOT_REPLACE or not os.path.isfile(path):
                raise
            mode = "w"
        else:
            return
    with open(path, mode, encoding="utf-8") as stream:
        stream.write(text)
