# SPDX-License-Identifier: Apache-2.0
"""Waiting for CPUs that others use, from a made-up /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xlaunch.machine.processes import TICKS_PER_SECOND
from xtune.launches import meters
from xtune.launches.meters import CpuWait


class Host:
    """The kernel's counters, and the clock."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.now_s = 100.0
        (root / "proc/pressure").mkdir(parents=True)
        self.counts()

    def counts(self, *, waited_s: float = 0.0, busy_s: float = 0.0, stolen_s: float = 0.0) -> None:
        """All since the beginning. The busy time is on the first allowed CPU."""
        pressure = (
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={5_000_000 + waited_s * 1e6:.0f}\n"
        )
        Path(self.root, "proc/pressure/cpu").write_text(f"{pressure}full avg10=0.00 total=0\n")
        user, stolen = (round(time_s * TICKS_PER_SECOND) for time_s in (busy_s, stolen_s))
        allowed = sorted(os.sched_getaffinity(0))
        rows = [f"cpu{cpu} 0 0 0 900 0 0 0 0 0 0" for cpu in allowed[1:]]
        first = f"cpu{allowed[0]} {user} 0 0 900 0 0 0 {stolen} 0 0"
        other = f"cpu{allowed[-1] + 1} 99999999 0 0 0 0 0 0 0 0 0"
        lines = ["cpu 1 1 1 1 1 1 1 1 1 1", first, *rows, other]
        Path(self.root, "proc/stat").write_text("\n".join(lines))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(meters.time, "monotonic", lambda: made.now_s)
    return made


def test_waiting_for_others_is_a_share_of_the_time(host: Host) -> None:
    wait = CpuWait(host.root)
    host.now_s += 10.0
    host.counts(waited_s=4.0, busy_s=16.0)
    assert wait.share(9.0) == pytest.approx(0.4)


def test_threads_of_the_launch_that_wait_for_each_other_do_not_count(host: Host) -> None:
    wait = CpuWait(host.root)
    host.now_s += 10.0
    host.counts(waited_s=9.0, busy_s=20.0)
    assert wait.share(19.5) == pytest.approx(0.05)
    assert wait.share(20.5) == 0.0


def test_time_stolen_by_a_host_counts_as_used_by_others(host: Host) -> None:
    wait = CpuWait(host.root)
    host.now_s += 10.0
    host.counts(waited_s=3.0, busy_s=5.0, stolen_s=2.0)
    assert wait.share(5.0) == pytest.approx(0.2)


def test_it_is_unknown_without_the_kernels_counters_or_the_launchs_time(host: Host) -> None:
    wait = CpuWait(host.root)
    assert wait.share(1.0) is None  # no time has passed
    host.now_s += 10.0
    assert wait.share(None) is None
    Path(host.root, "proc/pressure/cpu").unlink()
    assert wait.share(1.0) is None
    assert CpuWait(host.root).share(1.0) is None
