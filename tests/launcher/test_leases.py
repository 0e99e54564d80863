# SPDX-License-Identifier: Apache-2.0
"""Records of running launches: who may read and write them, when they count, and what others' can cost."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from xlaunch import leases
from xlaunch.claims import own_lease, record
from xlaunch.leases import Lease, boot_id, described
from xlaunch.machine.processes import pid_namespace, start_ticks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")

ELSEWHERE = "pid:[4026000000]"
"""No PID namespace of this machine: the numbers of real ones are larger."""


def of(process: subprocess.Popen[bytes], cpus: tuple[int, ...] = (1,), **more: object) -> Lease:
    ticks = start_ticks(process.pid)
    assert ticks is not None
    return Lease(process.pid, ticks, os.geteuid(), cpus, "nap.py")._replace(**more)  # type: ignore[arg-type]


def read_leases(directory: Path) -> list[Lease]:
    """What the owner of the records is shown."""
    return [described(it) for it in leases.read_leases(str(directory), cpu_count=8)]


def text_of(pid: int, ticks: int, **changed: object) -> str:
    """A record that another user may have written."""
    fields = {
        "settled": 1,
        "pid": pid,
        "start_ticks": ticks,
        "pid_namespace": pid_namespace(),
        "boot": boot_id(),
        "cpus": "1",
        "gpus": "",
        "exclusive": 1,
        "job": 0,
        "locked": 0,
        "claimed_ns": 0,
    }
    return "".join([f"{name} {value}\n" for name, value in (fields | changed).items()])


@contextlib.contextmanager
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


@pytest.fixture
def sleeper():
    with sleeping() as process:
        yield process


def test_a_record_counts_while_its_process_runs(tmp_path, sleeper):
    lease = of(sleeper, (0, 1, 5), instances=2, log_dir="/l o g", metric="3 images/s")
    lease = record(lease, str(tmp_path))
    assert read_leases(tmp_path) == [lease]
    assert str(lease) == f"nap.py (PID {sleeper.pid} on CPUs 0-1,5)"
    assert 0 <= lease.uptime_s < 60
    sleeper.kill()
    sleeper.wait()
    assert read_leases(tmp_path) == []
    own = own_lease((2,), "test")
    assert own is not None
    own = record(own, str(tmp_path))
    left = {path.name for path in Path(own.path).parent.iterdir()}
    name = Path(own.path).name
    assert left == {name, f"{name}.details"}, "the next launch removes the record of an ended one"


def test_a_pid_that_was_given_to_another_process_does_not_count(tmp_path, sleeper):
    record(of(sleeper)._replace(start_ticks=1), str(tmp_path))
    assert read_leases(tmp_path) == []


def test_everybody_may_read_who_has_which_cores_and_only_the_user_what_runs(tmp_path, sleeper):
    before = os.umask(0o077)
    try:
        path = Path(record(of(sleeper, log_dir="/secret"), str(tmp_path)).path)
    finally:
        os.umask(before)
    details = Path(f"{path}.details")
    modes = [stat.S_IMODE(it.stat().st_mode) for it in (path.parent, path, details)]
    assert modes == [0o755, 0o644, 0o600]
    assert "nap.py" not in path.read_text()
    assert "/secret" not in path.read_text()
    assert "/secret" in details.read_text()


@pytest.mark.parametrize(
    "fault", ["writable", "link", "linked directory", "pipe", "nonsense", "large", "another's name"]
)
def test_what_is_no_record_is_not_read(tmp_path, sleeper, fault):
    path = Path(record(of(sleeper), str(tmp_path)).path)
    if fault == "writable":
        path.parent.chmod(0o777)
    elif fault == "link":
        path.symlink_to(path.rename(tmp_path / "moved"))
    elif fault == "linked directory":
        path.parent.symlink_to(path.parent.rename(tmp_path / "moved"))
    elif fault == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif fault == "another's name":
        path.rename(path.with_name(f"1{path.name}"))
    else:
        path.write_text({"nonsense": "pid x\n\0", "large": "x" * 100_000}[fault])
    assert read_leases(tmp_path) == []


@pytest.mark.parametrize(
    ("cpus", "counts"),
    [
        ("0-7", True),
        ("", True),
        ("8", False),
        ("0-1048575", False),
        ("0-99999999999", False),
        ("0,1,2,3,4,5,6,7,7", False),
        ("0-7," * 400 + "1", False),
        ("x", False),
    ],
)
def test_records_may_name_only_cpus_of_the_machine(tmp_path, sleeper, cpus, counts):
    lease = record(of(sleeper), str(tmp_path))
    Path(lease.path).write_text(text_of(lease.pid, lease.start_ticks, cpus=cpus))
    assert len(read_leases(tmp_path)) == counts


def test_record_with_control_characters_is_read_without_them(tmp_path, sleeper):
    evil = dict.fromkeys(("program", "log_dir", "metric"), "\x1b]0;a\x07\u202eb")
    lease = record(of(sleeper, **evil, gpus=("\x1b[2J",)), str(tmp_path))
    shown = dict.fromkeys(evil, "?]0;a??b")
    assert read_leases(tmp_path) == [lease._replace(**shown, gpus=("?[2J",))]


@pytest.mark.parametrize("taken_by", ["link", "pipe", "file", "directory"])
def test_directory_whose_name_another_user_has_taken_is_done_without(tmp_path, sleeper, taken_by):
    place = tmp_path / f"xlaunch-launches-{os.geteuid()}"
    if taken_by == "link":
        place.symlink_to(tmp_path)
    elif taken_by == "pipe":
        os.mkfifo(place)
    elif taken_by == "file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777)
    lease = record(of(sleeper), str(tmp_path))
    assert read_leases(tmp_path) == [lease]
    with sleeping() as another:
        second = record(of(another, (2,)), str(tmp_path))
        assert Path(second.path).parent == Path(lease.path).parent
        assert len(list(tmp_path.iterdir())) == 2
        assert len(read_leases(tmp_path)) == 2


def test_records_need_a_directory(tmp_path, sleeper):
    with pytest.raises(FileNotFoundError):
        record(of(sleeper), str(tmp_path / "absent"))
    assert leases.read_leases(str(tmp_path / "absent")) == []


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({"pid_namespace": ELSEWHERE}, True),  # nothing says that it has ended
        ({"pid_namespace": ELSEWHERE, "boot": "another"}, False),
        ({"pid_namespace": ELSEWHERE, "boot": ""}, True),
        ({"pid_namespace": ELSEWHERE, "locked": 1}, False),  # and nobody holds the lock
        ({}, False),
    ],
)
def test_record_of_another_pid_namespace_counts_until_its_process_has_surely_ended(
    tmp_path, sleeper, changed, counts
):
    pid, ticks = 1, 1  # no process of this namespace
    lease = record(of(sleeper), str(tmp_path))
    namespace = str(changed.get("pid_namespace", pid_namespace())).strip("pid:[]")
    path = Path(lease.path).with_name(f"{pid}-{ticks}-{namespace}")
    path.write_text(text_of(pid, ticks, **changed))
    found = [it for it in read_leases(tmp_path) if it != lease]
    assert [(it.path, it.is_local) for it in found] == [(str(path), False)] * counts
    with sleeping() as another:
        record(of(another), str(tmp_path))
    assert path.exists() == counts


def test_nested_launches_and_ranks_of_one_job_do_not_see_themselves(sleeper):
    other, rank = of(sleeper), of(sleeper, job=7)
    parent = Lease(os.getppid(), 1, 0, (0,), "outer")
    assert leases.of_others([other, parent, rank], job=7) == [other]
    assert leases.of_others([rank]) == [rank]
    elsewhere = [it._replace(is_local=False) for it in (parent, rank)]
    assert leases.of_others(elsewhere, job=7) == elsewhere
    inside = {"XLAUNCH_INSTANCE_CPUS": "1"}
    assert leases.of_others(elsewhere, job=7, environment=inside) == elsewhere[:1]


def test_own_records_are_found_however_many_files_others_make(tmp_path, sleeper):
    lease = record(of(sleeper), str(tmp_path))
    for number in range(leases.MAX_NAMES):
        (tmp_path / f"xlaunch-launches-{number + 100000}").touch()
    assert read_leases(tmp_path) == [lease]


def fill(directory: Path, uid: int, count: int) -> None:
    """Write records of `uid` that count: nothing says that they have ended."""
    place = directory / f"xlaunch-launches-{uid}"
    place.mkdir()
    for number in range(1, count + 1):
        path = place / f"{number}-{number}-4026000000"
        path.write_text(text_of(number, number, pid_namespace=ELSEWHERE))
        os.chown(path, uid, -1)
    os.chown(place, uid, -1)


def test_the_number_of_records_that_are_read_is_limited(tmp_path):
    fill(tmp_path, os.geteuid(), 5000)
    assert len(read_leases(tmp_path)) == leases.MAX_OWN_RECORDS + 8  # CPUs


@pytest.mark.machine
def test_one_user_does_not_crowd_out_the_others(tmp_path, needs):
    needs(os.geteuid() == 0, "root, who can give files away")
    crowd, other = 54321, 54322
    fill(tmp_path, crowd, 5000)
    fill(tmp_path, other, 3)
    found = [lease.uid for lease in read_leases(tmp_path)]
    assert found.count(crowd) == leases.MAX_RECORDS_OF_USER + 8  # CPUs
    assert found.count(other) == 3
