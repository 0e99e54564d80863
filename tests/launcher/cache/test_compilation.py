# SPDX-License-Identifier: Apache-2.0
"""What a run compiled: files that are new in its caches, and torch's counters of its processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.launcher.cache.entries import fill, put

from xlaunch.cache.store import CacheDirectory
from xlaunch.cache.use import CacheSettings, UsedCache
from xlaunch.report import Report, TorchCompilation
from xlaunch.supervision.watches import COUNTERS, CompilationWatch

REPORT = Report(0, "", 1.0, 1, (), (), ())


@pytest.fixture
def inductor(tmp_path: Path) -> CacheDirectory:
    """A cache with files from before the run."""
    return fill(tmp_path, "inductor")[0]


def watch(base: Path | None, *used: CacheDirectory) -> CompilationWatch:
    """A run that begins now with these caches."""
    return CompilationWatch(
        CacheSettings(
            used=tuple([UsedCache(it, "used") for it in used]),
            base=None if base is None else str(base),
        )
    )


def test_new_files_are_counted_and_locks_are_not(tmp_path: Path, inductor: CacheDirectory):
    run = watch(tmp_path, inductor)
    for name in ("24/c99.cpp", "aa/caa.so", "locks/c99.lock"):
        os.utime(put(Path(inductor.path, name), b"x" * 5000))
    whole = run.add_to(REPORT)
    (report,), compilation = whole.caches, whole.compilation
    assert (report.cache, report.directory, report.warmth) == ("inductor", inductor.path, "used")
    assert (report.new_files, compilation) == (2, None)
    assert report.new_bytes >= 10_000  # on disk
    assert not list(tmp_path.glob(".counters-*"))


def test_counters_of_all_processes_are_summed(tmp_path: Path, inductor: CacheDirectory):
    run = watch(tmp_path, inductor)
    directory = Path(run.variables(0)[COUNTERS])
    assert directory.stat().st_mode & 0o777 == 0o700
    for number in (1, 2):
        counters = {"backend_compile_s": 1.5, "graph_hits": number, "graph_misses": 10}
        (directory / f"{number}.json").write_text(json.dumps(counters))
    for number, text in enumerate(("", '{"graph_hits"', '{"other": 1}', "[]", "3")):
        (directory / f"killed-{number}.json").write_text(text)
    assert run.add_to(REPORT).compilation == TorchCompilation(2, 3.0, 3, 20)
    assert not directory.exists()


@pytest.mark.parametrize("what", ["no base", "no cache", "base is gone"])
def test_nothing_is_counted_where_nothing_is_kept(
    tmp_path: Path, inductor: CacheDirectory, what: str
):
    base = {"no base": None, "no cache": tmp_path, "base is gone": tmp_path / "gone"}[what]
    run = watch(base, *([] if what == "no cache" else [inductor]))
    assert run.variables(0) == {}
    report = run.add_to(REPORT)
    assert [cache.new_files for cache in report.caches] == [0] * len(report.caches)
    assert report.compilation is None
