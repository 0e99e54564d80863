# SPDX-License-Identifier: Apache-2.0
"""mimalloc's options: the number that stands for a name is the one that this version gives it."""

from __future__ import annotations

import itertools
import re

import pytest
from tests.runtime_ext.allocator.children import MIB, ask

from xruntime.allocator.controllers.mimalloc import TABLES, version_of

DISTURBING = re.compile(
    r"verbose|.*large_os_pages|disallow_.*|limit_os_alloc|reserve_huge.*|arena_(reserve|max).*|guarded_.*|max_vabits"
)
"""Options that would print, ask for huge pages, or leave too little memory, at a made-up value."""


@pytest.mark.parametrize(
    ("number", "version"),
    [(207, (2, 0, 7)), (209, (2, 0, 9)), (225, (2, 2, 5)), (301, (3, 0, 1)), (30600, (3, 6, 0))],
)
def test_number_of_a_version_is_taken_apart(number: int, version: tuple[int, int, int]) -> None:
    assert version_of(number) == version


def test_tables_do_not_overlap_and_name_each_number_once() -> None:
    for (_, last, _), (first, _, _) in itertools.pairwise(TABLES):
        assert last < first
    for first, last, options in TABLES:
        assert first <= last
        assert len(set(options.values())) == len(options)


def test_each_name_is_the_option_that_its_variable_sets(mimalloc: str) -> None:
    """Every option is given a value of its own at the start, by name, and must have it by number."""
    names = ask("tell(names=[setting.name for setting in heap.settings()])", mimalloc)["names"]
    given = {
        name: 100 + index for index, name in enumerate(names) if not DISTURBING.fullmatch(name)
    }
    assert len(given) >= 10
    variables = {f"MIMALLOC_{name.upper()}": str(value) for name, value in given.items()}
    answer = ask(
        "import os\ntell(read={setting.name: [setting.value, setting.unit] for setting in "
        "heap.settings()})\nsys.stdout.flush()\nos._exit(0)",
        mimalloc,
        **variables,
    )
    for name, value in given.items():
        read, unit = answer["read"][name]
        # Sizes are given in KiB there, rounded as the version likes.
        assert read == value or (unit == "KiB" and read <= value), name


def test_what_is_written_is_read_back_and_takes_effect(mimalloc: str) -> None:
    """Memory that a free would have given back soon stays when the delay is an hour."""
    answer = ask(
        """
names = {setting.name for setting in heap.settings()}
delays = sorted(names & {"segment_decommit_delay", "decommit_delay", "purge_delay"})
told = [heap.write(name, 3_600_000) for name in delays]
addresses = [block(MIB) for _ in range(128)]
full = exact_resident()
for address in addresses:
    free(address)
kept = exact_resident()
tell(delays=delays, told=told, read=[heap.read(name) for name in delays], full=full, kept=kept,
     released=allocator.release())
""",
        mimalloc,
    )
    assert answer["delays"]
    for name, value, unit, writable, _ in answer["told"]:
        assert (value, unit, writable) == (3_600_000, "ms", True), name
    assert answer["read"] == [3_600_000] * len(answer["delays"])
    assert answer["kept"] >= answer["full"] - 8 * MIB
    assert answer["released"] >= 64 * MIB


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ('write("max_errors", 3)', "ReadOnlySettingError", "MIMALLOC_MAX_ERRORS"),
        ('write("reserve_os_memory", 3)', "ReadOnlySettingError", "only at the program's start"),
        ('write("show_errors", "1")', "SettingTypeError", "no whole number"),
        ('write("show_errors", 1 << 63)', "SettingValueError", "allowed are -9223372036854775808"),
        ('read("show_error")', "UnknownSettingError", "did you mean show_errors?"),
        ('read("reset_delay")', "UnknownSettingError", "decommit_delay in 2.0, purge_delay since"),
    ],
)
def test_each_misuse_has_its_error(call: str, error: str, words: str, mimalloc: str) -> None:
    name, text = ask(f"tell(refused=refusal(lambda: heap.{call}))", mimalloc)["refused"]
    assert name == error, text
    assert words in text


def test_option_of_another_version_is_refused_with_its_name_there(mimalloc: str) -> None:
    answer = ask(
        """
other = "purge_delay" if heap.version.startswith("2.0.") else "decommit_delay"
tell(version=heap.version, refused=refusal(heap.write, other, 10))
""",
        mimalloc,
    )
    assert answer["refused"][0] == "UnknownSettingError"
    assert f"mimalloc {answer['version']}" in answer["refused"][1]
    assert "in 2.0" in answer["refused"][1] or "since 2.1" in answer["refused"][1]


def test_version_whose_numbers_nobody_compared_is_refused(mimalloc: str) -> None:
    """With no table for it, no number is guessed: options are refused, the rest works."""
    answer = ask(
        """
from xruntime.allocator.controllers import mimalloc
lists = heap._file.address_of("mi_options_print_out") is not None
mimalloc.TABLES = ()
refused = [] if lists else refusal(heap.write, "show_errors", 0)
tell(lists=lists, refused=refused, notes=heap.notes, mapped=allocator.stats().mapped)
""",
        mimalloc,
    )
    assert answer["mapped"] > 0
    if not answer["lists"]:
        assert answer["refused"][0] == "AllocatorUnsupportedError"
        assert "are not known here" in answer["refused"][1]
        assert any("options" in note for note in answer["notes"])
