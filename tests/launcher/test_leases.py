# SPDX-License-Identifier: Apache-2.0
"""Records of running launches: who may write them, when they count, and that exclusive ones are disjoint."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launcher.launching import wait_until

from xlaunch import leases
from xlaunch.leases import Lease, own_lease, read_leases, record
from xlaunch.machine.processes import start_ticks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")


def of(process: subprocess.Popen[bytes], cpus: tuple[int, ...] = (1,), **more: object) -> Lease:
    ticks = start_ticks(process.pid)
    assert ticks is not None
    return Lease(process.pid, ticks, os.geteuid(), cpus, "nap.py")._replace(**more)  # type: ignore[arg-type]


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


def test_a_record_counts_while_its_process_runs(tmp_path, sleeper):
    lease = of(sleeper, (0, 1, 5), instances=2, log_dir="/l o g", metric="3 images/s")
    path = record(lease, str(tmp_path))
    assert path is not None
    assert read_leases(str(tmp_path)) == [lease]
    assert str(lease) == f"nap.py (PID {sleeper.pid} on CPUs 0-1,5)"
    assert 0 <= lease.uptime_s < 60
    sleeper.kill()
    sleeper.wait()
    assert read_leases(str(tmp_path)) == []
    own = own_lease((2,), "test")
    assert own is not None
    assert record(own, str(tmp_path))
    assert not Path(path).exists(), "the record of an ended process is removed by the next one"


def test_a_pid_that_was_given_to_another_process_does_not_count(tmp_path, sleeper):
    record(of(sleeper)._replace(start_ticks=1), str(tmp_path))
    assert read_leases(str(tmp_path)) == []


def test_everybody_may_read_and_nobody_else_write(tmp_path, sleeper):
    before = os.umask(0o077)
    try:
        path = record(of(sleeper), str(tmp_path))
    finally:
        os.umask(before)
    assert path is not None
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o755


@pytest.mark.parametrize(
    "fault", ["writable", "link", "another's name", "pipe", "nonsense", "large"]
)
def test_what_others_could_have_written_is_not_read(tmp_path, sleeper, fault):
    path = Path(record(of(sleeper), str(tmp_path)) or "")
    if fault == "writable":
        path.parent.chmod(0o777)
    elif fault == "link":
        moved = path.rename(tmp_path / "moved")
        path.symlink_to(moved)
    elif fault == "another's name":
        path.parent.rename(tmp_path / "xlaunch-launches-12345")
    elif fault == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        path.write_text({"nonsense": "pid x\n\0", "large": "x" * 100_000}[fault])
    assert read_leases(str(tmp_path)) == []


def test_record_with_control_characters_is_read_without_them(tmp_path, sleeper):
    evil = dict.fromkeys(("program", "log_dir", "metric"), "\x1b]0;a\x07\u202eb")
    record(of(sleeper, **evil, gpus=("\x1b[2J",)), str(tmp_path))
    shown = dict.fromkeys(evil, "?]0;a??b")
    assert read_leases(str(tmp_path)) == [of(sleeper, **shown, gpus=("?[2J",))]


def test_records_are_not_written_to_a_directory_of_others(tmp_path, sleeper):
    place = tmp_path / f"xlaunch-launches-{os.geteuid()}"
    place.symlink_to(tmp_path)
    assert record(of(sleeper), str(tmp_path)) is None
    assert record(of(sleeper), str(tmp_path / "absent")) is None
    assert list(tmp_path.iterdir()) == [place]


def test_nested_launches_and_ranks_of_one_job_do_not_see_themselves(sleeper):
    other, rank = of(sleeper), of(sleeper, job=7)
    parent = Lease(os.getppid(), 1, 0, (0,), "outer")
    assert leases.of_others([other, parent, rank], job=7) == [other]
    assert leases.of_others([rank]) == [rank]


def test_the_lock_is_waited_for_and_then_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "MAX_LOCK_WAIT_S", 0.05)
    with leases.table(str(tmp_path)) as first, leases.table(str(tmp_path)) as second:
        assert (first, second) == (True, False)
    with leases.table(str(tmp_path)) as again, leases.table(str(tmp_path / "absent")) as nowhere:
        assert (again, nowhere) == (True, False)


TAKE = """
import os, sys, time
from xlaunch import leases
directory, leases.MAX_LOCK_WAIT_S = sys.argv[1], 100.0
for _ in range(49):
    if os.fork() == 0:
        break
with leases.table(directory) as held:
    assert held
    taken = set(leases.taken_cpus(leases.read_leases(directory)))
    cpu = min(set(range(64)) - taken)
    leases.record(leases.own_lease((cpu,), "take", exclusive=True), directory)
os.write(1, b"%d\\n" % cpu)
time.sleep(100)
"""


def test_fifty_at_once_never_share_a_core(tmp_path):
    command = [sys.executable, "-c", TAKE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as first:
        assert first.stdout is not None
        try:
            cpus = [int(first.stdout.readline()) for _ in range(50)]
            assert sorted(cpus) == list(range(50))
            assert len(read_leases(str(tmp_path))) == 50
        finally:
            os.killpg(first.pid, signal.SIGKILL)
    wait_until(lambda: read_leases(str(tmp_path)) == [], "the end of all records")
