# SPDX-License-Identifier: Apache-2.0
"""The number of threads that compute a step: what limits it, and how it is found."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from random import Random
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.runtime_ext.generation.decoder_models import decoder  # noqa: E402

from xruntime import optimize  # noqa: E402
from xruntime.generation import decode_step, team_size  # noqa: E402
from xruntime.generation.team_size import (  # noqa: E402
    MAX_TRIALS,
    TRIALS,
    VALID_STEPS,
    Search,
    TeamSizes,
)
from xruntime.threads.team import team_of  # noqa: E402


def memory_bound(threads: int) -> float:
    return 1 / threads


def saturated_at_six(threads: int) -> float:
    """More threads than six only wait longer for each other."""
    return 1 / min(threads, 6) + threads / 100


def small(threads: int) -> float:
    return 1 + threads / 10


@pytest.mark.parametrize(
    ("most", "seconds", "best"),
    [
        (16, memory_bound, 16),
        (16, saturated_at_six, 6),
        (16, small, 1),
        (2, memory_bound, 2),
        (3, small, 1),
        (1, memory_bound, 1),
    ],
)
def test_what_a_search_finds(most: int, seconds: Callable[[int], float], best: int) -> None:
    for disturbed, trials in ((1, TRIALS), (3, MAX_TRIALS)):
        search, steps = Search(most), 0
        while not search.is_over():
            threads = search.threads()
            # Every third step is disturbed.
            search.add(threads, seconds(threads) * (disturbed if steps % 3 == 2 else 1))
            steps += 1
        assert (search.best, search.threads()) == (best, best)
        assert steps <= 2 * trials * most.bit_length()


def test_a_hopeless_number_is_tried_twice() -> None:
    search, tried = Search(16), []
    while not search.is_over():
        tried.append(search.threads())
        search.add(tried[-1], memory_bound(tried[-1]))
    assert tried == [16, 8, 16, 8, 12, 12]


def saturated_at_twenty(threads: int) -> float:
    return 1 / min(threads, 20) + threads / 2000


def quiet(random: Random, _threads: int, _step: int) -> float:
    return random.gauss(1, 0.01)


def waiting(random: Random, threads: int, _step: int) -> float:
    """Other programs use 10 of 32 CPUs: steps of more than 22 threads often wait for one of those."""
    waits = threads > 22 and random.random() < 0.7
    return random.uniform(1.5, 2.3) if waits else random.gauss(1, 0.03)


def drifting(random: Random, _threads: int, step: int) -> float:
    return random.gauss(1, 0.01) * (1 + step / 50)


@pytest.mark.parametrize(
    ("seconds", "noise", "steps"),
    [
        (saturated_at_twenty, quiet, 15),
        (saturated_at_twenty, waiting, None),
        (saturated_at_twenty, drifting, None),
        (memory_bound, quiet, 6),
        (memory_bound, waiting, None),
        (memory_bound, drifting, None),
        (small, quiet, 30),
        (small, waiting, None),
        (small, drifting, None),
    ],
)
def test_the_mean_step_is_short(
    seconds: Callable[[int], float],
    noise: Callable[[Random, int, int], float],
    steps: int | None,
) -> None:
    """The numbers that 40 searches find are together within a tenth of the best, in the mean of all steps.

    steps
        How many a search takes at most on a quiet machine.
    """

    def mean_of(threads: int) -> float:
        return seconds(threads) * fmean(noise(Random(seed), threads, 0) for seed in range(500))

    means = {threads: mean_of(threads) for threads in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)}
    found = []
    for seed in range(40):
        search, random = Search(32), Random(seed)
        for step in itertools.count():
            if search.is_over():
                break
            threads = search.threads()
            search.add(threads, seconds(threads) * noise(random, threads, step))
        found.append(means[search.best])
        assert steps is None or step <= steps
    assert fmean(found) <= 1.1 * min(means.values())


@pytest.mark.parametrize("seed", range(20))
def test_disturbed_steps_do_not_count(seed: int) -> None:
    search, random = Search(16), Random(seed)
    while not search.is_over():
        threads = search.threads()
        search.add(threads, memory_bound(threads) * random.choice((1, 1, 1, 2, 4)))
    assert search.best == 16


def test_a_search_that_was_disturbed_as_a_whole_is_corrected() -> None:
    search, found = Search(16), []
    for step in range(200):
        threads = search.threads()
        # Until step 30 other programs run on all CPUs but one.
        search.add(threads, small(threads) if step < 30 else memory_bound(threads))
        if search.is_over() and found[-1:] != [search.best]:
            found.append(search.best)
    assert (found[0], found[-1]) == (1, 16)


def test_a_search_begins_anew() -> None:
    search = Search(2)

    def find(seconds: Callable[[int], float]) -> int:
        while not search.is_over():
            search.add(search.threads(), seconds(search.threads()))
        return search.best

    assert find(small) == 1  # while another program takes a CPU
    for _ in range(VALID_STEPS):
        search.add(1, small(1))
    assert find(memory_bound) == 2


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine of 16 CPUs, with a team on all of them."""
    made = SimpleNamespace(quota=None, team=16, cpus=16, mask={0})
    library = SimpleNamespace(omp_get_num_procs=lambda: made.cpus)
    monkeypatch.setattr(team_size, "native", SimpleNamespace(library=lambda: library))
    monkeypatch.setattr(team_size, "team_size", lambda: made.team)
    monkeypatch.setattr(team_size, "_quota", lambda _: made.quota)
    monkeypatch.setattr(team_size, "_steps", team_size._Steps())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: made.mask)
    return made


@pytest.mark.parametrize(
    ("facts", "threads"),
    [
        ({}, 16),
        ({"team": 4}, 4),
        ({"team": 64}, 16),
        ({"quota": 4.0}, 4),
        ({"quota": 1.5}, 1),
        ({"quota": 0.5}, 1),
        ({"cpus": 2}, 2),
    ],
)
def test_limits(facts: dict[str, Any], threads: int, machine: Any) -> None:
    vars(machine).update(facts)
    with TeamSizes().chosen(1, 64) as (found, search):
        assert (found, search.best) == (threads, threads)


@pytest.mark.parametrize(
    ("own", "other", "quota", "threads"),
    [
        ({0}, {0}, None, 8),
        ({0, 1}, {2, 3}, None, 16),
        ({0, 1}, {2, 3}, 4.0, 2),
    ],
)
def test_conversations_at_once(
    own: set[int], other: set[int], quota: float | None, threads: int, machine: Any
) -> None:
    machine.quota = quota
    running, ending = threading.Event(), threading.Event()

    def run() -> None:
        with TeamSizes().chosen(1, 64):
            running.set()
            ending.wait(60)

    machine.mask = other
    thread = threading.Thread(target=run)
    thread.start()
    assert running.wait(60)
    machine.mask = own
    with TeamSizes().chosen(1, 64) as (found, _):
        assert found == threads
    ending.set()
    thread.join()


def test_a_thread_counts_until_its_next_step_would_have_come(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(perf_counter=lambda: clock.now, monotonic=lambda: 0.0, now=100.0)
    monkeypatch.setattr(team_size, "time", clock)

    def run() -> None:
        with TeamSizes().chosen(1, 64):
            clock.now += 0.5

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for later, threads in ((0.1, 8), (2.0, 16)):
        clock.now += later
        with TeamSizes().chosen(1, 64) as (found, _):
            assert found == threads


def test_a_quota_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SimpleNamespace(cpu_quota=2.5)
    monkeypatch.setattr(team_size, "read_machine", lambda: SimpleNamespace(limits=limits))
    team_size._quota.cache_clear()
    assert team_size._quota(1) == 2.5
    limits.cpu_quota = None
    assert team_size._quota(1) == 2.5
    assert team_size._quota(2) is None
    team_size._quota.cache_clear()


def test_tokens_do_not_depend_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("qwen3")
    options = {"max_new_tokens": 40, "min_new_tokens": 40, "do_sample": False}
    expected = model.generate(torch.arange(3, 9)[None], **options)
    used: list[int] = []
    original = decode_step.DecodeStep._computed

    def with_any_number(self: Any, call: Any, _: int) -> Any:
        used.append(len(used) % 5)  # 0 and more than the team: all
        return original(self, call, used[-1])

    monkeypatch.setattr(decode_step.DecodeStep, "_computed", with_any_number)
    with team_of(3):
        assert torch.equal(optimize(model).generate(torch.arange(3, 9)[None], **options), expected)
    assert set(used) == set(range(5))
