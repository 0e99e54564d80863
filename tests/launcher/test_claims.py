# SPDX-License-Identifier: Apache-2.0
"""Launches that take cores at the same moment, in other PID namespaces, and beside other users' files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launcher.cli.commands import PATIENCE_S, XLAUNCH, ask, clean_environment, run, xlaunch
from tests.launcher.launching import wait_until
from tests.launcher.other_user import AS_NOBODY, open_directory, opened
from tests.launcher.planning.shapes import make_machine

from xlaunch import leases, shared_host
from xlaunch.claims import Claim
from xlaunch.errors import XLaunchError
from xlaunch.machine.processes import start_ticks
from xlaunch.machine.topology import Machine
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import HostRequest, Request
from xlaunch.shared_host import plan_beside_others

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")

CLAIMANTS = Path(__file__).with_name("claimants.py")
HOST = make_machine(packages=(8,), nodes=(8,), smt=1)


def take(
    directory: Path, *, exclusive: bool, ncores: int = 1, machine: Machine = HOST
) -> tuple[int, ...]:
    """Plan one instance, and record its cores for this process."""
    request = Request.of("infer.py", ncores=ncores)
    host = HostRequest(exclusive=exclusive)
    placed = plan_beside_others(request, machine, {}, host=host, directory=str(directory))
    assert placed.lease is not None
    assert placed.lease.claimed_ns == 0
    return placed.plan.instances[0].cpus


def take_at_once(directory: Path, *numbers: int) -> list[list[int]]:
    """The cores that each of some processes takes at the same instant: see `claimants`."""
    done = run([sys.executable, CLAIMANTS, directory, *map(str, numbers)])
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.out.splitlines()]


@pytest.mark.parametrize(
    ("count", "ncores", "exclusive", "successes", "rounds"),
    [
        (2, 8, True, 1, 8),
        (2, 1, False, 2, 8),
        (8, 2, True, 4, 3),
        pytest.param(2, 8, True, 1, 40, marks=pytest.mark.long),
        pytest.param(20, 2, True, 4, 10, marks=pytest.mark.long),
        pytest.param(8, 1, False, 8, 20, marks=pytest.mark.long),
    ],
)
def test_launches_of_one_instant_never_share_a_core(
    tmp_path, count, ncores, exclusive, successes, rounds
):
    for number in range(rounds):
        place = tmp_path / str(number)
        place.mkdir()
        taken = take_at_once(place, count, ncores, int(exclusive))
        assert len(taken) == count
        assert len([cpus for cpus in taken if cpus]) == successes, taken
        assert max(Counter([cpu for cpus in taken for cpu in cpus]).values()) == 1, taken


@pytest.fixture
def rival(tmp_path, monkeypatch):
    """A launch that claims cores while this process plans: `start(claimed_ns, cpus, then=...)`."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        ticks = start_ticks(process.pid)
        assert ticks is not None
        lease = leases.Lease(process.pid, ticks, os.geteuid(), (), "rival.py")
        threads: list[threading.Thread] = []
        plan_beside = shared_host._plan_beside

        def start(claimed_ns: int, *cpus: int, then: Callable[[Claim], object]) -> leases.Lease:
            claiming = lease._replace(cpus=cpus, claimed_ns=claimed_ns)

            def plan(*arguments: object, **more: object) -> Plan:
                made = plan_beside(*arguments, **more)  # type: ignore[arg-type]
                if not threads:
                    threads.append(
                        threading.Thread(target=follow, args=(Claim(claiming, str(tmp_path)),))
                    )
                    threads[0].start()
                return made

            def follow(claim: Claim) -> None:
                place = Path(claim.lease.path).parent
                wait_until(lambda: any(place.glob(f"{os.getpid()}-*")), "the claim of this process")
                then(claim)

            monkeypatch.setattr(shared_host, "_plan_beside", plan)
            return claiming

        yield start
        for thread in threads:
            thread.join()
        process.kill()


BEFORE, AFTER = 1, 1 << 62


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    ("claimed_ns", "then", "expected"),
    [
        (0, "stays", 1),  # it has core 0 already
        (BEFORE, "stays", 1),
        (BEFORE, "settle", 1),
        (AFTER, "withdraw", 0),
        (AFTER, "settle", 1),  # it had read the records before this launch wrote its own
    ],
)
def test_the_later_claim_steps_back(
    tmp_path, rival, monkeypatch, exclusive, claimed_ns, then, expected
):
    monkeypatch.setattr(shared_host, "MAX_SHARED_S", PATIENCE_S)
    rival(claimed_ns, 0, then=lambda claim: then == "stays" or getattr(claim, then)())
    assert take(tmp_path, exclusive=exclusive) == (expected,)


def test_a_claim_of_a_sibling_is_one_of_the_core(tmp_path, rival):
    machine = make_machine(packages=(4,), nodes=(4,), smt=2)
    rival(BEFORE, 4, then=lambda _: None)
    assert take(tmp_path, exclusive=True, machine=machine) == (1,)


def test_a_later_claim_that_never_ends_stops_exclusive_launches_alone(tmp_path, rival, monkeypatch):
    monkeypatch.setattr(shared_host, "MAX_EXCLUSIVE_S", 0.05)
    lease = rival(AFTER, *range(8), then=lambda _: None)
    with pytest.raises(XLaunchError) as error:
        take(tmp_path, exclusive=True)
    told = "--exclusive: other launches take the same cores at this moment: "
    assert str(error.value).startswith(f"{told}a launch (PID {lease.pid} on CPUs 0-7)")
    assert take(tmp_path, exclusive=False) == (0,)


def test_a_claim_of_the_same_launch_is_not_a_rival(tmp_path):
    assert [take(tmp_path, exclusive=True) for _ in range(3)] == [(0,)] * 3


def test_exclusive_says_why_it_cannot_leave_a_record(tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    for directory, reason in ((tmp_path / "absent", "No such file"), (blocked, "Not a directory")):
        with pytest.raises(XLaunchError) as error:
            take(directory, exclusive=True)
        problem = f"{directory}/xlaunch-launches-{os.geteuid()}: {reason}"
        assert f"--exclusive must leave a record for other launches: {problem}" in str(error.value)
        request = Request.of("infer.py")
        assert plan_beside_others(request, HOST, {}, directory=str(directory)).lease is None


def settled(records: Path) -> list[Path]:
    """The records of launches that have their cores."""
    found = [path for path in records.glob("*/*") if path.name.count("-") == 2]
    return [it for it in found if not it.suffix and it.read_text().startswith("settled 1")]


@pytest.fixture
def records(tmp_path):
    """The directory for the records of all users."""
    place = tmp_path / "records"
    place.mkdir()
    return place


@pytest.mark.machine
@pytest.mark.parametrize("options", [[], ["--supervise"]])
def test_launches_of_two_pid_namespaces_see_each_other(records, unshared, options):
    variable = f"XLAUNCH_RECORDS_DIR={records}"
    env = clean_environment(XLAUNCH_RECORDS_DIR=str(records))
    cpu = str(min(os.sched_getaffinity(0)))
    words = [*XLAUNCH, "-q", "--exclusive", "--cpus", cpu, "--ncores", "1"]
    # The lock outlives a second exec, and a child that has inherited the file.
    program = ["sh", "-c", "sleep 1000 & exec sleep 1000"]
    first = unshared("--mount-proc", "env", variable, *words, *options, "--", *program)
    wait_until(lambda: settled(records), "the record of the first launch")
    (found,) = settled(records)
    for prefix in ([], ["unshare", "--fork", "--pid", "--mount-proc"]):
        refused = run([*prefix, *words, "true"], env=env)
        assert refused.code == XLaunchError.exit_code
        where = f"(PID 1 in another PID namespace on CPUs {cpu}; its record is {found})"
        assert f"held by sh {where}" in refused.err
        assert settled(records) == [found]
    (shown,) = json.loads(ask("ps", "--json", env=env).out)["launches"]
    assert (shown["pid"], shown["same_pid_namespace"], shown["cpus"]) == (1, False, [int(cpu)])
    assert (shown["program"], shown["cpu_percent"], shown["rss_bytes"]) == ("sh", None, None)
    assert "1 (other namespace)" in ask("ps", env=env).out.decode()
    first.kill()
    wait_until(lambda: run([*words, "true"], env=env).code == 0, "the end of the first launch")
    assert not found.exists()


@pytest.mark.machine
def test_launch_inside_a_launch_may_have_its_cores_in_another_pid_namespace(records, unshared):
    words = [*XLAUNCH, "-q", "--exclusive", "--ncores", "1"]
    inner = ["unshare", "--fork", "--pid", "--mount-proc", *words, "echo", "inner"]
    nested = unshared("--mount-proc", "env", f"XLAUNCH_RECORDS_DIR={records}", *words, *inner)
    assert nested.communicate() == ("inner\n", "")


def test_files_of_others_do_not_stop_a_launch(records):
    for name in ("xlaunch-launches.lock", f"xlaunch-launches-{os.geteuid()}", "xlaunch-launches-1"):
        os.mkfifo(records / name)
    env = clean_environment(XLAUNCH_RECORDS_DIR=str(records))
    for words in (["--exclusive"], []):
        done = xlaunch(
            "-q", *words, "--ncores", "1", "--", "sh", "-c", "ls $XLAUNCH_RECORDS_DIR", env=env
        )
        assert (done.code, done.err) == (0, "")
        assert f"xlaunch-launches-{os.geteuid()}-" in done.out.decode()


@pytest.mark.machine
def test_only_the_user_is_shown_what_runs(needs):
    needs(os.geteuid() == 0, "root, who can become another user")
    needs(shutil.which("setpriv"), "setpriv (util-linux)")
    for place in open_directory():
        records = place / "records"
        records.mkdir()
        records.chmod(0o1777)
        env = clean_environment(XLAUNCH_RECORDS_DIR=str(records))
        words = ["-q", "--supervise", "--ncores", "1", "--log-dir", str(place / "logs"), "--"]
        with subprocess.Popen([*XLAUNCH, *words, "sleep", "1000"], env=env) as launch:
            try:
                wait_until(lambda place=records: settled(place), "the record")
                own = ask("ps", "--json", env=env)
                others = run([*opened(place), *AS_NOBODY, *XLAUNCH, "ps", "--json"], env=env)
            finally:
                launch.terminate()
        (mine,), (theirs,) = [json.loads(it.out)["launches"] for it in (own, others)]
        assert (mine["program"], mine["instances"]) == ("sleep", 1)
        assert mine["log_dir"] == str(place / "logs")
        assert theirs["program"] != "sleep"  # the name of the keeper's process
        assert (theirs["instances"], theirs["log_dir"]) == (None, None)
        same = ("pid", "cpus", "user", "exclusive")
        assert [mine[key] for key in same] == [theirs[key] for key in same]


@pytest.mark.machine
def test_launches_are_seen_where_proc_has_processes_alone(records, needs):
    mount = [
        "unshare",
        "--mount",
        "sh",
        "-ec",
        'mount -t proc -o subset=pid proc /proc; exec "$@"',
        "sh",
    ]
    needs(
        shutil.which("unshare") and run([*mount, "true"]).code == 0,
        "unshare (util-linux), as root, and subset=pid of Linux 5.8",
    )
    env = clean_environment(XLAUNCH_RECORDS_DIR=str(records))
    cpu = str(min(os.sched_getaffinity(0)))
    with subprocess.Popen([*XLAUNCH, "-q", "--cpus", cpu, "sleep", "1000"], env=env) as launch:
        wait_until(lambda: settled(records), "the record")
        shown = run([*mount, *XLAUNCH, "ps", "--json"], env=env)
        refused = run([*mount, *XLAUNCH, "--exclusive", "--cpus", cpu, "true"], env=env)
        launch.terminate()
    assert [one["pid"] for one in json.loads(shown.out)["launches"]] == [launch.pid]
    assert f"held by sleep (PID {launch.pid} on CPUs {cpu})" in refused.err
