# SPDX-License-Identifier: Apache-2.0
"""What speaks for a want of memory: counts of both versions of control groups, and words."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden import Golden

from xtune.launches.meters import MemoryWatch


class Machine:
    """A tree with a process in the control group /batch/job."""

    def __init__(self, root: Path, version: int) -> None:
        self.root = str(root)
        self._root = root
        kind = "memory" if version == 1 else ""
        self._mount = f"/sys/fs/cgroup/{kind}".rstrip("/")
        number = "4:memory" if version == 1 else "0:"
        system = "cgroup cgroup rw,memory" if version == 1 else "cgroup2 cgroup rw"
        self._version = version
        self.write("/proc/self/cgroup", f"{number}:/batch/job\n")
        self.write("/proc/self/mountinfo", f"30 20 0:26 / {self._mount} rw - {system}\n")
        self.write("/proc/vmstat", "nr_free_pages 5\noom_kill 3\n")
        for group in ("", "/batch", "/batch/job"):
            self.count(group)

    def write(self, path: str, text: str) -> None:
        place = self._root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def count(self, group: str, *, kills: int = 1, full: int = 7) -> None:
        directory = f"{self._mount}{group}"
        if self._version == 1:
            oom = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
            self.write(f"{directory}/memory.oom_control", oom)
            self.write(f"{directory}/memory.failcnt", f"{full}\n")
        else:
            events = f"low 0\nhigh 0\nmax {full}\noom 2\noom_kill {kills}\n"
            self.write(f"{directory}/memory.events", events)


@pytest.fixture(params=[1, 2])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


def test_kill_in_our_group_or_one_around_it(machine: Machine):
    for group in ("/batch/job", "/batch", ""):
        watch = MemoryWatch(machine.root)
        machine.count(group, kills=2)
        told = "the kernel's out-of-memory killer ran once meanwhile"
        assert watch.explain(killed=True, stderr="") == told
        assert watch.explain(killed=False, stderr="worker 3 was killed by signal: Killed.") == told
        machine.count(group)


def test_one_kill_that_is_counted_in_many_places_is_one(golden: Golden, machine: Machine):
    watch = MemoryWatch(machine.root)
    machine.write("/proc/vmstat", "oom_kill 5\n")
    for group in ("", "/batch", "/batch/job"):
        machine.count(group, kills=3)
    golden(watch.explain(killed=True, stderr=""))


def test_kill_of_the_whole_system_is_ours_if_something_was_killed(machine: Machine):
    watch = MemoryWatch(machine.root)
    machine.write("/proc/vmstat", "oom_kill 4\n")
    assert watch.explain(killed=True, stderr="")
    assert watch.explain(killed=False, stderr="ValueError: no such file") is None


def test_kill_in_a_full_group(golden: Golden, machine: Machine):
    watch = MemoryWatch(machine.root)
    assert watch.explain(killed=True, stderr="") is None
    machine.count("/batch", full=9)
    golden(watch.explain(killed=True, stderr=""))
    assert watch.explain(killed=False, stderr="") is None


@pytest.mark.parametrize(
    "line",
    [
        "MemoryError",
        "numpy.exceptions._ArrayMemoryError: Unable to allocate 2 GiB: MemoryError",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes",
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: Out of memory",
        "run.sh: line 3: 4711 Killed   python train.py",
    ],
)
def test_words_that_say_it(golden: Golden, line: str, tmp_path: Path):
    told = MemoryWatch(str(tmp_path)).explain(killed=False, stderr=f"Traceback\n{line}\n")
    golden(told)


@pytest.mark.parametrize(
    ("killed", "text"),
    [(False, "IndexError: list index out of range\nskilled workers\nmemory 3 GiB"), (True, "")],
)
def test_nothing_speaks_for_it(killed: bool, text: str, tmp_path: Path):
    assert MemoryWatch(str(tmp_path)).explain(killed=killed, stderr=text) is None
