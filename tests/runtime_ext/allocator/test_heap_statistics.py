# SPDX-License-Identifier: Apache-2.0
"""Statistics follow what a program allocates and frees, and `release` gives it back to the system."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.runtime_ext.allocator.children import MIB, ask

ALLOCATORS = ["glibc", "jemalloc", "tcmalloc", "mimalloc"]

MOVES = """
before = allocator.stats()
address = block(64 * MIB)
held = allocator.stats()
free(address)
after = allocator.stats()
tell(before=before._asdict(), held=held._asdict(), after=after._asdict())
"""

# What each tells, besides the kernel's two numbers.
TOLD = {
    "glibc": {"allocated", "mapped", "free"},
    "jemalloc": {"allocated", "resident", "mapped", "free", "retained"},
    "tcmalloc": {"allocated", "resident", "mapped", "free", "retained"},
    "mimalloc": {"mapped", "peak_mapped"},
}
SLACK = 3 * MIB
"""Python allocates in between, and an allocator rounds up."""
PAGES_SLACK = 8 * MIB
"""The same where whole pages count, which may be huge ones."""


@pytest.mark.parametrize("name", ALLOCATORS)
def test_numbers_move_by_what_is_allocated(name: str, library: Callable[[str], str | None]) -> None:
    answer = ask(MOVES, library(name))
    before, held, after = answer["before"], answer["held"], answer["after"]
    process = {"process_resident", "process_peak_resident"}
    for numbers in (before, held, after):
        told = {field for field, value in numbers.items() if value is not None}
        # Newer versions of mimalloc count what is allocated.
        assert told - process - ({"allocated"} if name == "mimalloc" else set()) == TOLD[name]
        assert told >= process
        assert numbers["process_resident"] <= numbers["process_peak_resident"] + MIB
    assert 64 * MIB <= held["mapped"] - before["mapped"] <= (64 + 32) * MIB
    assert held["process_resident"] - before["process_resident"] == pytest.approx(
        64 * MIB, abs=PAGES_SLACK
    )
    assert after["process_peak_resident"] >= before["process_resident"] + 60 * MIB
    if before["allocated"] is not None:
        assert held["allocated"] - before["allocated"] == pytest.approx(64 * MIB, abs=SLACK)
        assert after["allocated"] == pytest.approx(before["allocated"], abs=SLACK)
        assert held["allocated"] <= held["mapped"]
    if before["resident"] is not None:
        assert held["resident"] - before["resident"] == pytest.approx(64 * MIB, abs=PAGES_SLACK)
    if before["peak_mapped"] is not None:
        assert after["peak_mapped"] >= held["mapped"] - SLACK


# 128 MiB in blocks below every threshold, the last of which stays, so that no heap ends free. The
# variables below let everything that is freed stay with the allocator.
GIVEN_BACK = """
blocks = [block(100_000) for _ in range(1342)]
full = exact_resident()
for address in blocks[:-1]:
    free(address)
kept = exact_resident()
stats = allocator.stats()
released = allocator.release()
tell(full=full, kept=kept, free=stats.free, released=released, resident=exact_resident())
"""
KEEPING = {
    "glibc": {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1073741824"},
    "jemalloc": {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"},
    "tcmalloc": {"TCMALLOC_RELEASE_RATE": "0"},
    "mimalloc": {
        "MIMALLOC_DECOMMIT_DELAY": "3600000",
        "MIMALLOC_SEGMENT_DECOMMIT_DELAY": "3600000",
        "MIMALLOC_PURGE_DELAY": "3600000",
    },
}


@pytest.mark.parametrize("name", ALLOCATORS)
def test_release_lowers_the_resident_set_by_what_it_says(
    name: str, library: Callable[[str], str | None]
) -> None:
    answer = ask(GIVEN_BACK, library(name), **KEEPING[name])
    assert answer["kept"] > answer["full"] - 8 * MIB
    if answer["free"] is not None:
        assert answer["free"] >= 120 * MIB
    # mimalloc 2.0 keeps the segment that is partly in use, of 32 MiB.
    assert answer["released"] >= (64 if name == "mimalloc" else 120) * MIB
    assert answer["kept"] - answer["resident"] == pytest.approx(answer["released"], abs=PAGES_SLACK)


def test_nothing_to_give_back_is_no_negative_number(glibc: None) -> None:
    answer = ask("allocator.release()\ntell(second=allocator.release())")
    assert 0 <= answer["second"] < MIB


def test_glibc_counts_the_arenas_of_all_threads(glibc: None) -> None:
    """The manual page says otherwise of old versions; malloc/malloc.c sums over them."""
    answer = ask("""
before = allocator.stats().allocated
in_thread(lambda: [block(10_000) for _ in range(2000)])
tell(grown=allocator.stats().allocated - before)
""")
    assert answer["grown"] == pytest.approx(20_000_000, abs=SLACK)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_statistics_can_be_read_while_threads_allocate(
    name: str, library: Callable[[str], str | None]
) -> None:
    answer = ask(
        """
stop = threading.Event()

def allocate():
    rounds = 0
    while not stop.is_set():
        for address in [block(size) for size in (100, 5_000, 70_000, 3_000_000)]:
            free(address)
        rounds += 1
    return rounds

def read():
    return [allocator.stats() for _ in range(50)]

rounds, read_by = [], []
workers = [threading.Thread(target=lambda: rounds.append(allocate())) for _ in range(2)]
readers = [threading.Thread(target=lambda: read_by.append(read())) for _ in range(3)]
for thread in workers + readers:
    thread.start()
for thread in readers:
    thread.join()
stop.set()
for thread in workers:
    thread.join()
tell(rounds=rounds, stats=[stats._asdict() for reading in read_by for stats in reading])
""",
        library(name),
    )
    assert len(answer["rounds"]) == 2
    assert len(answer["stats"]) == 150
    for stats in answer["stats"]:
        assert 0 < stats["mapped"] < 1 << 30
        if stats["allocated"] is not None and name == "jemalloc":
            assert 0 < stats["allocated"] <= stats["mapped"]
