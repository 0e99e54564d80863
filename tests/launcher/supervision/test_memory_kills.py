# SPDX-License-Identifier: Apache-2.0
"""Processes that the kernel killed for lack of memory are told from those that SIGKILL ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import EAT_MEMORY, XLAUNCH, in_group, own_lines, run
from tests.launcher.machine.trees import write_files

from xlaunch.supervision.instance_run import KILLER, MemoryKills


class Machine:
    """A tree of files with the counters of a process's control groups, of version 1 or 2."""

    def __init__(self, root: Path, version: int) -> None:
        self.root = root
        self._version = version
        mount = "/sys/fs/cgroup/memory" if version == 1 else "/sys/fs/cgroup"
        own = "4:memory:/batch/job" if version == 1 else "0::/batch/job"
        system = "cgroup cgroup rw,memory" if version == 1 else "cgroup2 cgroup rw"
        self._mount = mount.lstrip("/")
        write_files(
            root,
            {
                "proc/self/cgroup": own,
                "proc/self/mountinfo": f"30 20 0:26 / {mount} rw - {system}",
                "proc/vmstat": "nr_free_pages 5\noom_kill 3",
            },
        )
        unlimited = str((1 << 63) - 4096) if version == 1 else "max"
        for group, limit in (("", unlimited), ("/batch", str(1 << 30)), ("/batch/job", unlimited)):
            name = "limit_in_bytes" if version == 1 else "max"
            write_files(root, {f"{self._mount}{group}/memory.{name}": limit})
            self.kills(group, 1)

    def kills(self, group: str, count: int) -> None:
        name = "oom_control" if self._version == 1 else "events"
        text = f"low 0\nunder_oom 0\noom_kill {count}"
        write_files(self.root, {f"{self._mount}{group}/memory.{name}": text})


@pytest.fixture(params=[1, 2])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


def test_each_kill_is_attributed_once_with_the_limit_that_was_reached(machine: Machine):
    kills = MemoryKills(str(machine.root))
    assert kills.attribute() is None
    for group in ("/batch/job", "/batch", ""):
        machine.kills(group, 3)
    assert kills.attribute() == kills.attribute() == f"{KILLER} (limit 1 GiB)"
    assert kills.attribute() is None


def test_a_kill_of_a_machine_without_memory_has_no_limit(machine: Machine):
    kills = MemoryKills(str(machine.root))
    write_files(machine.root, {"proc/vmstat": "oom_kill 4"})
    assert kills.attribute() == KILLER
    assert kills.attribute() is None


def test_a_machine_without_counters(tmp_path: Path):
    assert MemoryKills(str(tmp_path)).attribute() is None


@pytest.mark.machine
@pytest.mark.parametrize("shell", [False, True])
def test_an_instance_that_the_kernel_killed_says_so(
    golden: Golden, limited_group: Path, shell: bool
):
    program = [sys.executable, "-c", EAT_MEMORY]
    if shell:
        program = ["sh", "-c", '"$@"; exit $?', "sh", *program]
    done = run(in_group(limited_group, *XLAUNCH, "--supervise", *program))
    assert done.code == 137
    golden(own_lines(done.err))


def test_an_instance_that_sigkill_ended_was_not_killed_by_the_kernel(golden: Golden):
    done = run((*XLAUNCH, "--supervise", "sh", "-c", "kill -9 $$"))
    assert done.code == 137
    golden(own_lines(done.err))
