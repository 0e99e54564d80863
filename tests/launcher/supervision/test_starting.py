# SPDX-License-Identifier: Apache-2.0
"""An instance that the kernel cannot start: the run ends, and no further one is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.golden import Golden
from tests.launcher.cli.commands import own_lines, run

CODE = """
from xlaunch.cli import main
from xlaunch.supervision import supervisor
fork, calls = supervisor.fork_instance, []
def fail_second(*arguments):
    calls.append(arguments)
    if len(calls) == 2:
        raise OSError(11, "Resource temporarily unavailable")
    return fork(*arguments)
supervisor.fork_instance = fail_second
main()
"""


def test_failed_fork_ends_the_run(golden: Golden, tmp_path: Path):
    report = tmp_path / "report.json"
    layout = ("--instances", "3", "--ncores", "1", "--oversubscribe", "--report", report)
    done = run((sys.executable, "-c", CODE, *layout, "sleep", "600"))
    assert done.code == 125
    values = json.loads(report.read_text())
    golden(own_lines(done.err), values["reason"])
    assert [(one["index"], one["signal"]) for one in values["instances"]] == [(0, "SIGTERM")]
