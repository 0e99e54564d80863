# SPDX-License-Identifier: Apache-2.0
"""Two machines that tune one program together, by the command line and a real PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.tuner.cli.commands import PATIENCE_S, XTUNE, Desk, started
from tests.tuner.conftest import Needs

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

MARKED = """\
import os, sys, time
with open("launches", "a") as marks:
    marks.write(os.uname().nodename + "\\n")
while os.path.exists("hang-" + os.uname().nodename):
    time.sleep(0.01)
for turn in range(8):
    time.sleep(0.005)
    print(f"{int(sys.argv[1]) * 100} items/s", flush=True)
"""
"""Prints the rate that it is told, notes that it began and where, and hangs there if it shall."""


def machine(desk: Desk, name: str, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """xtune in a UTS and PID namespace of its own, as another host has them."""
    directory = desk.directory / f"run-{name}"
    directory.mkdir(mode=0o700, exist_ok=True)
    inside = f'hostname {name} && exec "$@"'
    command = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return started(
        [*command, "sh", "-c", inside, "xtune", *XTUNE, *words],
        cwd=desk.directory,
        env={**desk.environment, "XDG_RUNTIME_DIR": str(directory)},
    )


def launches(directory: Path) -> Counter[str]:
    """How many each machine has begun."""
    marks = directory / "launches"
    return Counter(marks.read_text().split() if marks.exists() else [])


def test_a_machine_dies_amid_a_launch_and_the_other_ends_the_search(
    desk: Desk, url: str, needs: Needs
) -> None:
    needs(os.geteuid() == 0 and shutil.which("unshare"), "root and unshare (util-linux)")
    desk.write("marked.py", MARKED)
    begin = [
        "--metric", "items/s", "--only-params", "--param", "n=1,2,4", "--storage", url,
        "--study", "fleet", "--budget", "24", "marked.py", "{n}",
    ]  # fmt: skip
    hang = desk.directory / "hang-node1"
    with machine(desk, "node1", *begin) as first:
        until = time.monotonic() + PATIENCE_S
        while launches(desk.directory)["node1"] < 5:
            assert first.poll() is None, first.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)
        hang.touch()
        begun = launches(desk.directory)["node1"]
        with machine(desk, "node2", "--json", *begin) as second:
            while launches(desk.directory)["node2"] < 3:
                assert second.poll() is None, second.communicate()
                assert time.monotonic() < until
                time.sleep(0.02)
            first.send_signal(signal.SIGKILL)
            _, err = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, err
    assert "continuing study 'fleet'" in err
    assert "waiting for node1" in err

    kept = desk.xtune("export", "fleet", "--storage", url).found["launches"]
    hosts = Counter(one["host"].split()[0] for one in kept)
    made = launches(desk.directory)
    # What node1 was doing when it died is given up; nothing else is lost or counted twice.
    assert hosts["node2"] == made["node2"]
    assert made["node1"] - 2 <= hosts["node1"] < made["node1"]
    assert made["node1"] in (begun, begun + 1)
    assert len({one["number"] for one in kept}) == len(kept)
    baselines = [one["host"].split()[0] for one in kept if one["stage"] == "baseline"]
    assert sorted(baselines) == ["node1", "node2"]

    hang.unlink()
    ended = desk.xtune("resume", "fleet", "--storage", url, "--budget", "40", "--json")
    assert ended.code == 0, ended.err
    assert ended.found["verdict"] == "gain"
    assert ended.found["best"] == {"n": 4}
    report = desk.xtune("report", "fleet", "--storage", url, "--json")
    assert report.found["verdict"] == "gain"
