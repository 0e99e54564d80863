# SPDX-License-Identifier: Apache-2.0
"""Sampling of real processes: what is summed over an instance, and how often it is looked at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests.launcher.launching import children_of, state_of, wait_until

from xlaunch.supervision.instance_run import (
    FIRST_INTERVAL_S,
    MAX_INTERVAL_S,
    MAX_PAUSE_S,
    SHARE_OF_ONE_CPU,
    Sampler,
    Samples,
)

FAMILY = """
import subprocess, sys
mine = bytearray(64 << 20)
child = [sys.executable, "-c", "import sys; more = bytearray(64 << 20); print(flush=True); sys.stdin.read()"]
with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    print(flush=True)
    sys.stdin.read()
    process.stdin.close()
"""


@pytest.fixture
def family() -> Iterator[int]:
    """A process with one child; each has written to 64 MiB."""
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


def test_memory_and_places_are_those_of_all_processes(family: int):
    seen = Samples(family)
    assert (seen.samples, seen.peak_rss_bytes, seen.migrations) == (0, 0, None)
    seen.look()
    assert (seen.samples, seen.peak_rss_bytes > 128 << 20) == (1, True)
    assert seen.cpus
    assert seen.cpus <= os.sched_getaffinity(family)
    assert sum(seen.ticks_by_cpu.values()) == seen.placed_ticks  # no thread was seen to move


def test_threads_that_did_not_run_again_add_nothing(family: int):
    seen = Samples(family)
    seen.look()
    wait_until(lambda: _is_idle(family), "the processes to wait")
    seen.look()
    before = seen.placed_ticks, dict(seen.ticks_by_cpu)
    seen.look()
    assert (seen.placed_ticks, dict(seen.ticks_by_cpu)) == before


def test_process_that_has_gone_is_no_error_and_a_zombie_has_a_cpu():
    process = subprocess.Popen(["true"])
    wait_until(lambda: state_of(process.pid) == "Z", "the process to end")
    short, gone = Samples(process.pid), Samples(process.pid)
    short.look_at_zombie()
    assert len(short.cpus) == 1
    process.wait()
    gone.look()
    gone.look_at_zombie()
    assert (gone.cpus, gone.peak_rss_bytes, gone.migrations) == (set(), 0, None)


def test_pauses_grow_with_the_run_and_with_the_cost(monkeypatch: pytest.MonkeyPatch):
    now_s, cost_s, spent_s = 100.0, 0.0, 0.0

    def thread_time() -> float:  # asked before and after a look
        nonlocal spent_s
        spent_s += cost_s
        return spent_s

    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(time, "thread_time", thread_time)
    sampler = Sampler()
    pauses = [sampler.due - now_s]
    for _ in range(20):
        sampler.look()
        pauses.append(sampler.due - now_s)
    assert pauses[0] == pytest.approx(FIRST_INTERVAL_S)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(MAX_INTERVAL_S)
    for cost_s, pause_s in (  # noqa: B007 - thread_time uses it
        (0.02, 0.02 / SHARE_OF_ONE_CPU),
        (1.0, MAX_PAUSE_S),
        (0.0, MAX_INTERVAL_S),
    ):
        sampler.look()
        assert sampler.due - now_s == pytest.approx(pause_s)


def _is_idle(pid: int) -> bool:
    return {state_of(it) for it in (pid, *children_of(pid))} == {"S"}
