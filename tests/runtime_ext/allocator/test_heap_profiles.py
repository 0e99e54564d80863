# SPDX-License-Identifier: Apache-2.0
"""jemalloc's heap profile: switched on where it may be, dumped to a file, else an error that helps."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runtime_ext.allocator.children import MIB, ask

OFF_UNTIL_ASKED = {"MALLOC_CONF": "prof:true,prof_active:false,lg_prof_sample:12"}


@pytest.fixture
def profiling_jemalloc(jemalloc: str, needs: Callable[[object, str], None]) -> str:
    built = ask("""tell(built=jemalloc.read("config.prof"))""", jemalloc)["built"]
    needs(built, "a jemalloc that is built with heap profiles")
    return jemalloc


def test_profile_holds_what_was_allocated_while_it_was_on(
    profiling_jemalloc: str, tmp_path: Path
) -> None:
    target = tmp_path / "a.heap"
    answer = ask(
        f"""
early = [block(MIB) for _ in range(64)]
at_start = jemalloc.profiling()
jemalloc.set_profiling(True)
on = jemalloc.profiling()
held = [block(MIB) for _ in range(24)]
jemalloc.set_profiling(False)
tell(at_start=at_start, on=on, off=jemalloc.profiling(), path=str(jemalloc.dump_profile({str(target)!r})))
""",
        profiling_jemalloc,
        **OFF_UNTIL_ASKED,
    )
    assert (answer["at_start"], answer["on"], answer["off"]) == (False, True, False)
    assert answer["path"] == str(target)
    # "t*: objects: bytes [...]", see jeprof
    totals = re.search(r"^\s*t\*: \d+: (\d+) ", target.read_text(), re.MULTILINE)
    assert totals is not None
    assert 24 * MIB <= int(totals[1]) < 40 * MIB


def test_profile_that_cannot_be_written_is_an_error(
    profiling_jemalloc: str, tmp_path: Path
) -> None:
    answer = ask(
        f"""
tell(absent=refusal(jemalloc.dump_profile, {str(tmp_path / "no" / "a.heap")!r}),
     folder=refusal(jemalloc.dump_profile, {str(tmp_path)!r}))
""",
        profiling_jemalloc,
        **OFF_UNTIL_ASKED,
    )
    for error, text in answer.values():
        assert error == "SettingValueError"
        assert "the file cannot be written" in text


def test_profile_that_was_not_asked_for_at_the_start_says_how(profiling_jemalloc: str) -> None:
    answer = ask(
        """
tell(ask=refusal(jemalloc.profiling), switch=refusal(jemalloc.set_profiling, True),
     dump=refusal(jemalloc.dump_profile, "x"))
""",
        profiling_jemalloc,
    )
    for error, text in answer.values():
        assert error == "AllocatorUnsupportedError"
        assert "MALLOC_CONF=prof:true" in text
