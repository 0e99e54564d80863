# SPDX-License-Identifier: Apache-2.0
"""tcmalloc's properties: read, written, taking effect, and never bent in silence."""

from __future__ import annotations

import pytest
from tests.runtime_ext.allocator.children import MIB, ask


def test_every_property_of_the_table_is_known(tcmalloc: str) -> None:
    answer = ask(
        """
from xruntime.allocator.controllers.tcmalloc import PROPERTIES
read = {}
for name in PROPERTIES:
    try:
        read[name] = heap.read(name)
    except errors.UnknownSettingError:
        pass
tell(read=read, absent=sorted(set(PROPERTIES) - set(read)))
""",
        tcmalloc,
    )
    assert set(answer["absent"]) <= {"tcmalloc.min_per_thread_cache_bytes"}
    read = answer["read"]
    assert read["generic.heap_size"] >= read["generic.current_allocated_bytes"] > MIB
    assert read["tcmalloc.slack_bytes"] == pytest.approx(
        read["tcmalloc.pageheap_free_bytes"] + read["tcmalloc.pageheap_unmapped_bytes"], abs=MIB
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tcmalloc.max_total_thread_cache_bytes", 16 * MIB),
        ("tcmalloc.aggressive_memory_decommit", 1),
        ("tcmalloc.aggressive_memory_decommit", True),
        ("tcmalloc.heap_limit_mb", 4096),
        ("tcmalloc.release_rate", 3.5),
        ("tcmalloc.release_rate", 0),
    ],
)
def test_what_is_written_is_read_back(name: str, value: float, tcmalloc: str) -> None:
    answer = ask(
        f"""
told = heap.write({name!r}, {value!r})
tell(told=told, read=heap.read({name!r}), listed={{s.name: s.value for s in heap.settings()}})
""",
        tcmalloc,
    )
    assert answer["told"][:2] == [name, value]
    assert answer["read"] == answer["listed"][name] == value


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


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("tcmalloc.max_total_thread_cache_bytes", 1000, "SettingValueError", "would make"),
        ("tcmalloc.max_total_thread_cache_bytes", 1 << 40, "SettingValueError", "would make"),
        ("tcmalloc.max_total_thread_cache_bytes", -1, "SettingValueError", "0 and above"),
        ("tcmalloc.max_total_thread_cache_bytes", 1 << 70, "SettingValueError", "0 and above"),
        ("tcmalloc.max_total_thread_cache_bytes", "1", "SettingTypeError", "no whole number"),
        ("tcmalloc.max_total_thread_cache_bytes", 1.0, "SettingTypeError", "no whole number"),
        ("tcmalloc.aggressive_memory_decommit", 2, "SettingValueError", "allowed are 0 and 1"),
        ("generic.heap_size", 1, "ReadOnlySettingError", "can only be read"),
        ("generic.heapsize", 1, "UnknownSettingError", "did you mean generic.heap_size?"),
        ("tcmalloc.release_rate", -0.5, "SettingValueError", "out of range"),
        ("tcmalloc.release_rate", float("nan"), "SettingValueError", "out of range"),
        ("tcmalloc.release_rate", "fast", "SettingTypeError", "no number"),
    ],
)
def test_value_that_tcmalloc_would_bend_is_refused(
    name: str, value: object, error: str, words: str, tcmalloc: str
) -> None:
    shown = "float('nan')" if value != value else repr(value)
    answer = ask(
        f"""
before = heap.settings()
refused = refusal(heap.write, {name!r}, {shown})
tell(refused=refused, same=heap.settings() == before)
""",
        tcmalloc,
    )
    assert answer["refused"][0] == error
    assert words in answer["refused"][1]
    assert answer["same"]
