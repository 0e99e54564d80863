# SPDX-License-Identifier: Apache-2.0
"""tcmalloc's properties: they are read and written, take effect, and are never clipped in silence."""

from __future__ import annotations

import pytest
from tests.runtime_ext.allocator.children import MIB, ask, assert_refused


def test_any_property_can_be_read(tcmalloc: str) -> None:
    answer = ask(
        """
names = ["generic.heap_size", "generic.current_allocated_bytes", "tcmalloc.slack_bytes",
         "tcmalloc.pageheap_free_bytes", "tcmalloc.pageheap_unmapped_bytes"]
tell(read=[heap.read(name) for name in names], refused=refusal(heap.read, "generic.heapsize"))
""",
        tcmalloc,
    )
    size, allocated, slack, free, unmapped = answer["read"]
    assert size >= allocated > MIB
    assert slack == pytest.approx(free + unmapped, abs=MIB)
    assert answer["refused"][0] == "UnknownSettingError"


def test_what_is_written_is_read_back(tcmalloc: str) -> None:
    written = {
        "tcmalloc.max_total_thread_cache_bytes": 16 * MIB,
        "tcmalloc.aggressive_memory_decommit": 1,
        "tcmalloc.heap_limit_mb": 4096,
    }
    answer = ask(
        f"""
told = [heap.write(name, value)[:2] for name, value in {written!r}.items()]
tell(told=told, read=[heap.read(name) for name in {list(written)!r}],
     listed={{s.name: s.value for s in heap.settings()}})
""",
        tcmalloc,
    )
    assert answer["told"] == [list(pair) for pair in written.items()]
    assert answer["read"] == list(written.values())
    assert written.items() <= answer["listed"].items()


def test_aggressive_decommit_gives_back_at_once(tcmalloc: str) -> None:
    fall = """
{write}
addresses = [block(MIB) for _ in range(64)]
full = exact_resident()
for address in addresses:
    free(address)
tell(fell=full - exact_resident())
"""
    write = 'heap.write("tcmalloc.aggressive_memory_decommit", 1)'
    assert ask(fall.format(write=write), tcmalloc)["fell"] >= 60 * MIB
    kept = ask(fall.format(write=""), tcmalloc, TCMALLOC_RELEASE_RATE="0")
    assert kept["fell"] < 8 * MIB


def test_heap_limit_makes_malloc_fail(tcmalloc: str) -> None:
    answer = ask(
        """
heap.write("tcmalloc.heap_limit_mb", allocator.stats().mapped // MIB + 64)
below, above = malloc(16 * MIB), malloc(256 * MIB)
tell(below=bool(below), above=bool(above))
""",
        tcmalloc,
    )
    assert answer == {"below": True, "above": False}


CACHE = "tcmalloc.max_total_thread_cache_bytes"
REFUSED = [
    (CACHE, 1000, "SettingValueError", "would replace"),
    (CACHE, 1 << 40, "SettingValueError", "would replace"),
    (CACHE, -1, "SettingValueError", "allowed are 0 to"),
    (CACHE, 1 << 70, "SettingValueError", "allowed are 0 to"),
    (CACHE, "1", "SettingTypeError", "not an integer"),
    (CACHE, 1.0, "SettingTypeError", "not an integer"),
    ("tcmalloc.aggressive_memory_decommit", 2, "SettingValueError", "allowed are 0 to 1"),
    ("generic.heap_size", 1, "ReadOnlySettingError", "is read-only"),
    ("generic.heapsize", 1, "UnknownSettingError", "not a property of tcmalloc"),
]


def test_value_that_tcmalloc_would_clip_is_refused(tcmalloc: str) -> None:
    answer = ask(
        f"""
before = heap.settings()
refused = [refusal(heap.write, name, value) for name, value, *_ in {REFUSED!r}]
tell(refused=refused, same=heap.settings() == before)
""",
        tcmalloc,
    )
    assert_refused(REFUSED, answer["refused"])
    assert answer["same"]
