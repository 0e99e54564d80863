# SPDX-License-Identifier: Apache-2.0
"""The report of a run as JSON: `--report FILE`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from xlaunch.errors import UsageError, XLaunchError
from xlaunch.report import Report
from xlaunch.whole_files import is_special_file, write_whole

SCHEMA_VERSION = 1

COLUMNS = {
    "index": "the instance's number",
    "cpus_asked": "affinity mask that the plan gave",
    "cpus_observed": "CPUs on which a thread of any of its processes was seen to have run (sampled)",
    "numa_nodes": "NUMA nodes of the mask",
    "exit_code": "128 + n when signal n ended it; null when it was not started",
    "wall_s": "from start to end of its own process",
    "cpu_s": "user and system time: its process, children that it waited for, and what it left behind",
    "utilisation": "cpu_s / (wall_s x CPUs asked)",
    "peak_rss_bytes": "largest sampled sum over its processes, at least its process's own peak",
    "context_switches": "voluntary and involuntary, of what cpu_s covers",
    "minor_faults": "page faults without reading a disk, of what cpu_s covers",
    "major_faults": "page faults that read a disk, of what cpu_s covers",
    "started": "false when it never became its program: no interpreter, too many arguments",
    "metrics": "of each --metric: values in all, the last, and the mean over the window of its total",
    "restarts": "times it was started anew after a failure; all that is summed is of all its runs",
    "migrations": "moves from CPU to CPU, all its threads that were seen; null where not counted",
}
"""Each column of the table and each key of an instance, and what it sums."""


def report_to_dict(report: Report) -> dict[str, Any]:
    """Plain values with the keys of `--report`."""
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
        "columns": COLUMNS,
    }


def check_report_path(path: str, *, log_folder: str | None) -> None:
    """Raise `UsageError` when no report could be written to `path`; better now than after the run.

    `log_folder` is about to be made, with the folders that it lies in.
    """
    folder = os.path.dirname(path) or "."
    if not path:
        raise UsageError("--report: the file's name is empty")
    if os.path.isdir(path):
        raise UsageError(f"--report: {path!r} is a folder; name a file")
    if not os.path.isdir(folder):
        if log_folder is not None and _lies_in(log_folder, folder):
            return
        raise UsageError(f"--report: the folder {folder!r} does not exist")
    writable = path if os.path.exists(path) else folder
    if not os.access(writable, os.W_OK):
        raise UsageError(f"--report: no permission to write {writable!r}")


def _lies_in(path: str, folder: str) -> bool:
    folder = os.path.abspath(folder)
    return os.path.commonpath((os.path.abspath(path), folder)) == folder


def write_report_or_complain(report: Report, path: str | None) -> int:
    """Write `report` to `path`, if there is one; the exit code of the run.

    A failure is printed on standard error; the exit code of a run that succeeded is then 125.
    """
    if path is None:
        return report.exit_code
    try:
        write_report(report, path)
    except OSError as error:
        print(f"xlaunch: --report: {error}", file=sys.stderr)
        return report.exit_code or XLaunchError.exit_code
    return report.exit_code


def write_report(report: Report, path: str) -> None:
    """Write `report` as JSON. A regular file appears whole or not at all."""
    text = json.dumps(report_to_dict(report), indent=1) + "\n"
    if is_special_file(path):
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
    else:
        write_whole(path, text.encode())
