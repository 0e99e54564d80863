# SPDX-License-Identifier: Apache-2.0
"""Hosts that hide files of /sys and /proc, or change them: containers with lxcfs, sandboxes.

Each command runs in a mount namespace of its own, where other files are mounted over the real ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import XLAUNCH, Done, Word, allowed_cpus, run, two_cpus

from xlaunch.text import format_cpu_list, name_numbers

pytestmark = pytest.mark.machine  # kernels may refuse user namespaces

CPU = "/sys/devices/system/cpu"
PROGRAM = (sys.executable, "-c", "import os; print(os.environ['XLAUNCH_INSTANCE_CPUS'])")
Host = Callable[..., Done]


@pytest.fixture
def hidden(needs: Any) -> Host:
    """Run a command of xlaunch where empty file systems hide the directories that are named first."""

    def command(directories: str, *words: Word) -> Done:
        needs(all(Path(it).is_dir() for it in directories.split()), f"a kernel with {directories}")
        mounts = [f"mount -t tmpfs none {directory}" for directory in directories.split()]
        return run((*in_namespace(needs, mounts), *XLAUNCH, *words))

    return command


@pytest.fixture
def shortened(needs: Any, tmp_path: Path) -> Host:
    """Run a command of xlaunch on some CPUs, where only the first is shown, as lxcfs shows quotas."""
    first = two_cpus(needs)[0]
    (tmp_path / "online").write_text(f"{first}\n")
    processors = Path("/proc/cpuinfo").read_text().split("\n\n")
    (tmp_path / "cpuinfo").write_text(processors[first] + "\n\n")
    mounts = [
        f"mount --bind {tmp_path}/online {CPU}/online",
        f"mount --bind {tmp_path}/cpuinfo /proc/cpuinfo",
    ]

    def command(cpus: list[int], *words: Word) -> Done:
        mask = ("taskset", "-c", format_cpu_list(cpus))
        return run((*in_namespace(needs, mounts), *mask, *XLAUNCH, *words))

    return command


def cpus_of(done: Done) -> list[str]:
    """The CPUs that each instance of `PROGRAM` printed."""
    return done.out.decode().splitlines()


def in_namespace(needs: Any, mounts: list[str]) -> tuple[str, ...]:
    """The beginning of a command line that runs a command after these commands of a shell."""
    unshare = ("unshare", "--mount", "--map-root-user", "sh", "-ec")
    probe = (*unshare, "mount -t tmpfs none /sys")
    allowed = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    needs(allowed, "user namespaces (unshare of util-linux)")
    return (*unshare, "\n".join([*mounts, 'exec "$@"']), "sh")


def test_the_affinity_mask_counts_where_fewer_cpus_are_shown(shortened: Host, needs: Any) -> None:
    first, second = two_cpus(needs)
    done = shortened([second], *PROGRAM)
    assert (done.code, cpus_of(done)) == (0, [f"{second}"])
    done = shortened([first, second], "--smt", *PROGRAM)
    assert (done.code, cpus_of(done)) == (0, [format_cpu_list([first, second])])


def test_a_capture_holds_the_cpus_of_the_mask_where_fewer_are_shown(
    shortened: Host, needs: Any, tmp_path: Path
) -> None:
    cpus, capture = two_cpus(needs), tmp_path / "this.tar.xz"
    assert shortened(cpus, "topology", "--capture", capture).code == 0
    facts = json.loads(run((*XLAUNCH, "topology", "--json", "--sysroot", capture)).out)
    assert facts["online_cpus"] == cpus


@pytest.mark.parametrize(
    ("directories", "unknown"),
    [
        ("/sys", "cores, NUMA nodes, CPU quotas"),
        (CPU, "cores"),
        (f"{CPU} /sys/devices/system/node", "cores, NUMA nodes"),
        ("/sys /proc", "cores, NUMA nodes, CPU quotas"),
    ],
)
def test_the_affinity_mask_counts_where_no_cpu_is_shown(
    hidden: Host, directories: str, unknown: str
) -> None:
    done = hidden(directories, *PROGRAM)
    assert (done.code, cpus_of(done)) == (0, [format_cpu_list(allowed_cpus())])
    (line,) = [line for line in done.err.splitlines() if CPU in line]
    assert line == (
        f"xlaunch: warning: {CPU} shows no CPUs (is /sys hidden?): the affinity mask counts, "
        f"{name_numbers('CPU', allowed_cpus())}; not known: {unknown}"
    )


def test_hidden_numa_nodes_are_said(golden: Golden, hidden: Host) -> None:
    done = hidden("/sys/devices/system/node", *PROGRAM)
    assert (done.code, cpus_of(done)) == (0, [format_cpu_list(allowed_cpus())])
    golden(done.err)


@pytest.mark.parametrize(
    "words", [["plan"], ["plan", "--json"], ["topology"], ["topology", "--ncores", "1"], ["env"]]
)
def test_commands_that_show_something_say_once_that_no_cpu_is_shown(
    hidden: Host, words: list[str]
) -> None:
    done = hidden("/sys", *words)
    assert done.code == 0, done.err
    assert (done.out.decode() + done.err).count("shows no CPUs") == 1


def test_a_machine_that_shows_no_cpu_is_not_captured(hidden: Host, tmp_path: Path) -> None:
    told = hidden("/sys", "topology", "--capture", tmp_path / "this.tar.xz").refused()
    assert told == f"--capture: {CPU} shows no CPUs to capture; is /sys hidden?"


def test_two_instances_and_a_supervised_one_run_without_sys_and_proc(
    hidden: Host, needs: Any
) -> None:
    cpus = two_cpus(needs)
    pair = ("--instances", "2", "--ncores", "1", "--no-tag")
    done = hidden("/sys /proc", *pair, *PROGRAM)
    assert (done.code, sorted(cpus_of(done))) == (0, [str(cpu) for cpu in cpus])
    done = hidden("/sys /proc", "--supervise", *PROGRAM)
    assert (done.code, cpus_of(done)) == (0, [format_cpu_list(allowed_cpus())])


def test_ps_says_that_it_sees_no_launches_without_proc(golden: Golden, hidden: Host) -> None:
    done = hidden("/proc", "ps")
    assert done.code == 0
    golden(done.err)
