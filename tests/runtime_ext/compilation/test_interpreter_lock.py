# SPDX-License-Identifier: Apache-2.0
"""Measuring whether a call holds the interpreter's lock, on calls of which it is known."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable

import pytest

from xruntime.compilation.interpreter_lock import LockShare, lock_exists, lock_share

Needs = Callable[[object, str], None]

SLEEP_US = 20_000


def hold() -> None:
    """Sleeps 20 ms; ctypes.PyDLL keeps the lock."""
    ctypes.PyDLL(None).usleep(SLEEP_US)


def release() -> None:
    """Sleeps 20 ms; ctypes.CDLL gives the lock up meanwhile."""
    ctypes.CDLL(None).usleep(SLEEP_US)


@pytest.fixture
def two_cpus(needs: Needs) -> None:
    needs(len(os.sched_getaffinity(0)) >= 2, "two CPUs")
    needs(lock_exists(), "an interpreter with a lock")


def test_call_that_holds_the_lock(two_cpus: None) -> None:
    share = lock_share(hold)
    assert share.unknown is None
    assert share.held_share > 0.5
    assert share.longest_freeze_s > 0.5 * SLEEP_US * 1e-6
    assert share.held_s > 0.5 * SLEEP_US * 1e-6


def test_call_that_gives_the_lock_up(two_cpus: None) -> None:
    share = lock_share(release)
    assert share.held_share < 0.5
    assert share.held_share < lock_share(hold).held_share
    assert share.call_s >= SLEEP_US * 1e-6


def test_half_a_call_is_between(two_cpus: None) -> None:
    def both() -> None:
        hold()
        release()

    assert lock_share(release).held_share < lock_share(both).held_share
    assert lock_share(both).held_share < lock_share(hold).held_share


def test_with_one_cpu_it_cannot_be_known(needs: Needs) -> None:
    needs(lock_exists(), "an interpreter with a lock")
    before = os.sched_getaffinity(0)
    calls = []
    os.sched_setaffinity(0, {min(before)})
    try:
        share = lock_share(lambda: calls.append(None))
    finally:
        os.sched_setaffinity(0, before)
    assert share[:2] == (None, None)
    assert "one CPU only" in share.unknown
    assert share.held_s == 0
    assert calls == [None]


def test_without_a_lock_nothing_is_held(monkeypatch) -> None:
    # What a free-threaded interpreter answers; this one has a lock.
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert not lock_exists()
    share = lock_share(release)
    assert share == LockShare(0.0, 0.0, share.call_s, None)


def test_error_of_the_call_is_raised_and_the_ticker_ends(two_cpus: None) -> None:
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        lock_share(fail)
    assert "lock share" not in {thread.name for thread in threading.enumerate()}
