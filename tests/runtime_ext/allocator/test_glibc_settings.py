# SPDX-License-Identifier: Apache-2.0
"""glibc's parameters: what mallopt is given takes effect, and what it would swallow is refused."""

from __future__ import annotations

import pytest
from tests.runtime_ext.allocator.children import MIB, ask

pytestmark = pytest.mark.usefixtures("glibc")


def test_mmap_threshold_decides_which_blocks_have_mappings_of_their_own() -> None:
    answer = ask("""
def mapped_by(size):
    before = heap.heap_info().mapped_blocks
    address = block(size)
    grown = heap.heap_info().mapped_blocks - before
    free(address)
    return grown

low = heap.write("mmap_threshold", MIB)
own = mapped_by(2 * MIB)
high = heap.write("mmap_threshold", 16 * MIB)
shared = mapped_by(2 * MIB)
tell(low=low, own=own, high=high, shared=shared, read=heap.read("mmap_threshold"),
     listed=[setting.name for setting in heap.settings()])
""")
    assert answer["own"] >= 2 * MIB
    assert answer["shared"] == 0
    name, value, unit, writable, note = answer["low"]
    assert (name, value, unit, writable) == ("mmap_threshold", MIB, "bytes", True)
    assert "does not adjust mmap_threshold" in note
    assert answer["high"][1] == answer["read"] == 16 * MIB
    assert answer["listed"] == ["mmap_threshold"]


def test_trim_threshold_keeps_what_is_freed() -> None:
    answer = ask("""
heap.write("mmap_max", 0)
rounds = {}
for threshold in (-1, 0):
    heap.write("trim_threshold", threshold)
    free(block(64 * MIB))
    rounds[threshold] = allocator.stats().mapped
tell(kept=rounds[-1], given_back=rounds[0])
""")
    assert answer["kept"] - answer["given_back"] >= 60 * MIB


def test_top_pad_is_taken_with_the_next_growth() -> None:
    answer = ask("""
heap.write("mmap_threshold", 1 << 30)
before = allocator.stats().mapped
heap.write("top_pad", 48 * MIB)
address = block(8 * MIB)
tell(grown=allocator.stats().mapped - before)
""")
    assert answer["grown"] >= 48 * MIB


def test_one_arena_for_all_threads() -> None:
    count = """
import xml.etree.ElementTree as xml
{limit}
in_thread(lambda: [block(1000) for _ in range(100)])
tell(heaps=len(xml.fromstring(heap.report()).findall("heap")))
"""
    assert ask(count.format(limit=""))["heaps"] >= 2
    assert ask(count.format(limit='heap.write("arena_max", 1)'))["heaps"] == 1


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("mmap_threshold", -1, "SettingValueError", "allowed are 0 to 2147483647 bytes"),
        ("mmap_threshold", 1 << 32, "SettingValueError", "GLIBC_TUNABLES=glibc.malloc.mmap_thresh"),
        ("trim_threshold", -2, "SettingValueError", "allowed are -1 to"),
        ("arena_test", 0, "SettingValueError", "allowed are 1 to"),
        ("mxfast", 161, "SettingValueError", "allowed are 0 to 160 bytes"),
        ("top_pad", True, "SettingTypeError", "True is no whole number"),
        ("top_pad", 1.5, "SettingTypeError", "1.5 is no whole number"),
        ("mmap_treshold", 1, "UnknownSettingError", "did you mean mmap_threshold?"),
    ],
)
def test_value_that_mallopt_would_swallow_is_refused(
    name: str, value: object, error: str, words: str
) -> None:
    answer = ask(f"tell(refused=refusal(heap.write, {name!r}, {value!r}), listed=heap.settings())")
    assert answer["refused"][0] == error
    assert words in answer["refused"][1]
    assert answer["listed"] == []


def test_parameter_that_nobody_wrote_is_not_made_up() -> None:
    answer = ask(
        """tell(known=refusal(heap.read, "arena_max"), unknown=refusal(heap.read, "arenas"))""",
        GLIBC_TUNABLES="glibc.malloc.arena_max=3",
    )
    assert answer["known"][0] == "AllocatorUnsupportedError"
    assert "GLIBC_TUNABLES asked for 3" in answer["known"][1]
    assert answer["unknown"][0] == "UnknownSettingError"


def test_tunables_and_variables_of_the_start_are_told_as_such() -> None:
    """glibc 2.36 cuts the variable up in the process's own environment; all parts are found."""
    answer = ask(
        """
import os
os.environ["GLIBC_TUNABLES"] = "glibc.malloc.perturb=5"  # too late: not told
tell(settings=heap.settings())
""",
        GLIBC_TUNABLES="glibc.malloc.arena_max=1:glibc.pthread.rseq=0:glibc.malloc.top_pad=4096",
        MALLOC_MMAP_THRESHOLD_="131072",
    )
    told = {name: (value, writable) for name, value, _, writable, _ in answer["settings"]}
    assert told == {
        "glibc.malloc.arena_max": (1, False),
        "glibc.malloc.top_pad": (4096, False),
        "MALLOC_MMAP_THRESHOLD_": ("131072", False),
    }
    assert all("glibc does not tell" in note for *_, note in answer["settings"])


def test_counts_of_an_older_glibc_are_the_same_below_their_limit() -> None:
    """mallinfo, which glibc before 2.33 has alone, is still there to be compared."""
    answer = ask("""
address = block(8 * MIB)
tell(new=heap.heap_info(), old=heap._old_heap_info())
""")
    for new, old in zip(answer["new"], answer["old"], strict=True):
        assert old == pytest.approx(new, abs=MIB)
    assert answer["old"][2] + answer["old"][1] > 8 * MIB


@pytest.mark.parametrize(
    "call",
    [
        'jemalloc.read("stats.allocated")',
        'jemalloc.write("background_thread", True)',
        'jemalloc.call("arena.0.purge")',
        "jemalloc.create_arena()",
        "jemalloc.arenas()",
        'jemalloc.dump_profile("x.heap")',
        "allocator.arena().__enter__()",
    ],
)
def test_what_needs_jemalloc_says_who_serves_and_what_to_do(call: str) -> None:
    name, text = ask(f"tell(refused=refusal(lambda: {call}))")["refused"]
    assert name == "AllocatorUnsupportedError"
    assert "glibc" in text
    assert "xlaunch --allocator jemalloc" in text
