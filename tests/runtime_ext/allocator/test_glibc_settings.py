# SPDX-License-Identifier: Apache-2.0
"""glibc's parameters: what mallopt is given takes effect, and what it would swallow is refused."""

from __future__ import annotations

import pytest
from tests.runtime_ext.allocator.children import MIB, ask, assert_refused

pytestmark = pytest.mark.usefixtures("glibc")


def test_mmap_threshold_decides_which_blocks_have_mappings_of_their_own() -> None:
    answer = ask("""
def mapped_by(size):
    before = allocator.stats().mapped
    address = block(size)
    held = allocator.stats().mapped
    free(address)
    return [held - before, allocator.stats().mapped - before]

heap.write("trim_threshold", -1)
low = heap.write("mmap_threshold", MIB)
own = mapped_by(8 * MIB)
high = heap.write("mmap_threshold", 16 * MIB)
shared = mapped_by(8 * MIB)
tell(low=low, own=own, high=high, shared=shared, read=heap.read("mmap_threshold"),
     listed=[setting.name for setting in heap.settings()])
""")
    assert answer["own"][0] >= 8 * MIB
    assert answer["own"][1] == 0
    assert answer["shared"][1] >= 7 * MIB
    name, value, unit, writable, note = answer["low"]
    assert (name, value, unit, writable) == ("mmap_threshold", MIB, "bytes", True)
    assert "no longer adjusts mmap_threshold" in note
    assert answer["high"][1] == answer["read"] == 16 * MIB
    assert answer["listed"] == ["trim_threshold", "mmap_threshold"]


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
import os, tempfile, xml.etree.ElementTree as xml
{limit}
in_thread(lambda: [block(1000) for _ in range(100)])
with tempfile.TemporaryFile() as file:
    program.fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(program.fdopen(os.dup(file.fileno()), b"w"))
    program.malloc_info(0, stream)
    program.fclose(stream)
    file.seek(0)
    tell(heaps=len(xml.parse(file).getroot().findall("heap")))
"""
    assert ask(count.format(limit=""))["heaps"] >= 2
    assert ask(count.format(limit='heap.write("arena_max", 1)'))["heaps"] == 1


REFUSED = [
    ("mmap_threshold", -1, "SettingValueError", "allowed are 0 to 2147483647"),
    ("mmap_threshold", 1 << 32, "SettingValueError", "allowed are 0 to 2147483647"),
    ("trim_threshold", -2, "SettingValueError", "allowed are -1 to"),
    ("top_pad", True, "SettingTypeError", "True is not an integer"),
    ("top_pad", 1.5, "SettingTypeError", "1.5 is not an integer"),
    ("mmap_treshold", 1, "UnknownSettingError", "there are trim_threshold"),
]


def test_value_that_mallopt_would_swallow_is_refused() -> None:
    refused = f"[refusal(heap.write, name, value) for name, value, *_ in {REFUSED!r}]"
    answer = ask(f"tell(refused={refused}, listed=heap.settings())")
    assert_refused(REFUSED, answer["refused"])
    assert answer["listed"] == []


def test_parameter_that_nobody_wrote_is_not_made_up() -> None:
    answer = ask(
        """tell(known=refusal(heap.read, "arena_max"), unknown=refusal(heap.read, "arenas"))""",
        GLIBC_TUNABLES="glibc.malloc.arena_max=3",
    )
    assert answer["known"][0] == "AllocatorUnsupportedError"
    assert "GLIBC_TUNABLES requested 3" in answer["known"][1]
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
        "glibc.malloc.arena_max": ("1", False),
        "glibc.malloc.top_pad": ("4096", False),
        "MALLOC_MMAP_THRESHOLD_": ("131072", False),
    }
    assert all("glibc does not report" in note for *_, note in answer["settings"])


def test_counts_of_an_older_glibc_are_the_same_below_their_limit() -> None:
    """mallinfo is all that glibc before 2.33 has, and newer ones still have it."""
    answer = ask("""
address = block(8 * MIB)
from xruntime.allocator.glibc import _MallInfo
tell(new=heap.stats()[:6], old=heap._stats("mallinfo", _MallInfo)[:6])
""")
    for new, old in zip(answer["new"], answer["old"], strict=True):
        assert old == (None if new is None else pytest.approx(new, abs=MIB))
    assert answer["old"][0] > 8 * MIB
