# SPDX-License-Identifier: Apache-2.0
"""The highest rate that keeps a bound is found, and latency counts from the moment of arrival."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
from benchmarks.streams import arrivals
from benchmarks.streams.arrivals import Processes, Trial, best_of, drive, highest


def contender(capacity: float) -> Callable[[float], Trial]:
    """Latency grows to infinity where the rate nears the capacity."""

    def trial(rate: float) -> Trial:
        if rate >= capacity:
            return Trial(rate, 300, 1e3, 1e4, True)
        return Trial(rate, 300, 1.0, 10.0 / (1 - rate / capacity), False)

    return trial


@pytest.mark.parametrize("start", [20.0, 95.0, 400.0])
def test_the_search_ends_near_the_highest_rate(start: float) -> None:
    # The bound of 100 ms is kept up to 90 % of the capacity.
    trials = highest(contender(100.0), start, 100.0)
    best = best_of(trials, 100.0)
    assert best is not None
    assert 60.0 < best.rate <= 90.0
    assert len(trials) <= arrivals.MAX_TRIALS + 1


def test_a_contender_that_never_keeps_the_bound_has_no_rate() -> None:
    assert best_of(highest(contender(1e-6), 10.0, 100.0), 100.0) is None


def test_arrivals_do_not_wait_for_earlier_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MIN_REQUESTS", 20)
    held: list[Callable[[], None]] = []
    gate = threading.Event()

    def submit(done: Callable[[], None]) -> None:
        if gate.is_set():
            done()
            return
        held.append(done)
        if len(held) == 20:  # all were submitted, and none is done
            gate.set()
            for one in held:
                one()

    trial = drive(submit, 1000.0, 0.0, 60.0, seed=0)
    assert trial.requests == 20
    assert not trial.overloaded
    assert trial.p99_ms > trial.p50_ms > 0.0


def test_a_rate_that_is_too_high_ends_early() -> None:
    held: list[Callable[[], None]] = []

    def submit(done: Callable[[], None]) -> None:
        held.append(done)
        if len(held) == 151:
            threading.Timer(1.0, lambda: [one() for one in held]).start()

    # 100 may wait, and 5 * 10 for a bound of a millisecond.
    trial = drive(submit, 10_000.0, 10.0, 0.001, seed=0)
    assert trial.overloaded
    assert trial.requests == 151
    assert not trial.keeps(1e9)


def test_processes_take_their_share_of_what_waits() -> None:
    """Two processes, played by this test at the other ends of their sockets."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    group = Processes([mine for mine, _ in pairs])
    group.max_batch = 4
    finished = threading.Semaphore(0)
    for _ in range(9):
        group.submit(finished.release)
    one, other = (theirs for _, theirs in pairs)
    assert [one.recv(1), other.recv(1)] == [b"\x01", b"\x01"]
    # Seven wait, then three, then one.
    for link, taken in ((one, 4), (other, 2), (one, 1)):
        link.send(b"x")
        assert link.recv(1)[0] == taken
    for link in (one, other):
        link.send(b"x")
    for _ in range(9):
        assert finished.acquire(timeout=60)
    for mine, theirs in pairs:
        theirs.close()
        mine.close()
