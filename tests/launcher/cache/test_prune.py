# SPDX-License-Identifier: Apache-2.0
"""Pruning: what goes first, what stays because it is in use, and that nobody waits."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.cache.entries import held
from tests.launcher.launching import wait_until

from xlaunch.cache.contents import files_of, usage_of
from xlaunch.cache.prune import clear, prune
from xlaunch.cache.store import (
    DAY_S,
    CacheDirectory,
    Hardware,
    Packages,
    begin_use,
    foreign,
    hold,
    key_of,
    not_in_use,
    stored,
)
from xlaunch.cache.table import BY_NAME
from xlaunch.cache.use import start_pruner

HARDWARE = Hardware("x86_64", ("avx2",), "GenuineIntel 6 143", (), ())
PAGE = 4096


def directory(base: Path, version: str, *, unused_days: float, ages: list[float]) -> CacheDirectory:
    """A cache of torch `version` with a page for each age in days, the oldest last in name."""
    key = key_of(BY_NAME["inductor"], HARDWARE, Packages({"torch": version}, "3.11"))
    made = begin_use(str(base), key)
    for number, age in enumerate(ages):
        path = os.path.join(made.path, f"{number}.cpp")
        with open(path, "wb") as stream:
            stream.write(b"x" * PAGE)
        os.utime(path, (time.time(), time.time() - age * DAY_S))
    os.utime(made.record, (time.time(), time.time() - unused_days * DAY_S))
    return made


@pytest.fixture
def caches(tmp_path: Path) -> list[CacheDirectory]:
    """The second was not used for longest."""
    return [
        directory(tmp_path, "2.13", unused_days=0.1, ages=[1, 2, 3]),
        directory(tmp_path, "2.9", unused_days=40, ages=[40, 41, 42]),
        directory(tmp_path, "2.11", unused_days=10, ages=[10, 12, 11]),
    ]


def files(cache: CacheDirectory) -> set[str]:
    return set(os.listdir(cache.path)) if os.path.exists(cache.path) else set()


def test_what_was_not_used_for_longest_goes_first(tmp_path, caches):
    newest, oldest, middle = caches
    assert prune(str(tmp_path), max_bytes=9 * PAGE) == []
    found = prune(str(tmp_path), max_bytes=5 * PAGE)
    assert [(it.directory, it.files, it.whole) for it in found] == [
        (oldest, 3, True),
        (middle, 1, False),
    ]
    assert stored(str(tmp_path)) == sorted([newest, middle])
    assert not os.path.exists(oldest.record)
    assert files(middle) == {"0.cpp", "2.cpp"}  # the one that was changed first went
    assert len(files(newest)) == 3


def test_by_age_alone(tmp_path, caches):
    found = prune(str(tmp_path), max_bytes=None, older_than_s=30 * DAY_S)
    assert [it.directory for it in found] == [caches[1]]
    assert len(stored(str(tmp_path))) == 2


def test_a_dry_run_removes_nothing(tmp_path, caches):
    expected = prune(str(tmp_path), max_bytes=0, dry_run=True)
    assert sum(it.files for it in expected) == 9
    assert sum(usage_of(it).files for it in caches) == 9
    assert prune(str(tmp_path), max_bytes=0) == expected
    assert stored(str(tmp_path)) == []


def test_what_is_in_use_loses_only_files_older_than_a_day(tmp_path, caches):
    oldest = caches[1]
    os.utime(os.path.join(oldest.path, "0.cpp"))
    with held(oldest):
        found = prune(str(tmp_path), max_bytes=0)
        assert (oldest, 2, False) in [(it.directory, it.files, it.whole) for it in found]
        assert files(oldest) == {"0.cpp"}
        assert clear(str(tmp_path), [oldest], dry_run=False) == []
    assert [it.directory for it in clear(str(tmp_path), [oldest], dry_run=False)] == [oldest]


def test_what_a_launch_begins_to_use_meanwhile_is_not_removed_whole(tmp_path, caches, monkeypatch):
    """It has noted its use, and is about to hold the cache."""

    @contextlib.contextmanager
    def noted_just_before(directory: CacheDirectory, *arguments: Any) -> Iterator[bool]:
        os.utime(directory.record)
        with not_in_use(directory, *arguments) as free:
            yield free

    os.utime(os.path.join(caches[0].path, "0.cpp"))
    monkeypatch.setattr("xlaunch.cache.store.not_in_use", noted_just_before)
    assert [it.whole for it in prune(str(tmp_path), max_bytes=0)] == [False] * 3
    assert clear(str(tmp_path), caches, dry_run=False) == []
    assert [files(it) for it in caches] == [{"0.cpp"}, set(), set()]  # younger than a day
    assert [os.path.exists(it.record) for it in caches] == [True] * 3


def extension(cache: CacheDirectory, name: str, *, age_days: float) -> None:
    """A source of that age, and a library that is half a day younger."""
    path = Path(cache.path, name)
    path.mkdir()
    for file, age in (("main.cpp", age_days), ("ops.so", age_days - 0.5)):
        (path / file).write_bytes(b"x" * PAGE)
        os.utime(path / file, (0, time.time() - age * DAY_S))


@pytest.mark.parametrize("used", [False, True])
def test_files_that_make_sense_only_together_go_together(tmp_path: Path, used: bool):
    key = key_of(BY_NAME["torch_extensions"], HARDWARE, Packages({"torch": "2.13"}, "3.11"))
    cache = begin_use(str(tmp_path), key)
    ages = {"a": 3.0, "b": 5.0, "c": 1.2, "d": 1.4}
    for name, age in ages.items():
        extension(cache, name, age_days=age)
    with held(cache) if used else contextlib.nullcontext():
        (removal,) = prune(str(tmp_path), max_bytes=0 if used else 5 * PAGE)
    left = {name: sorted(os.listdir(Path(cache.path, name))) for name in ages}
    whole = ["main.cpp", "ops.so"]
    # Of a, half would be enough; in use, what has a file of the last day stays.
    assert left == {"a": [], "b": [], "c": whole, "d": whole}
    assert (removal.files, removal.whole) == (4, False)


def test_what_a_killed_process_left_behind_goes_after_a_day(tmp_path, caches):
    old = [tmp_path / "inductor" / ".seeding-1", tmp_path / "numba" / ".removing-2"]
    old += [tmp_path / f".counters-{2**22 + 1}-3"]
    new = [tmp_path / "inductor" / ".seeding-4", tmp_path / ".counters-5-6"]
    running = [tmp_path / f".counters-{os.getpid()}-7"]
    for path in (*old, *new, *running):
        path.mkdir(parents=True)
    for path in (*old, *running):
        os.utime(path, (0, time.time() - 2 * DAY_S))
    prune(str(tmp_path))
    assert [it for it in (*old, *new, *running) if it.exists()] == [*new, *running]


def test_links_are_not_followed_and_what_is_foreign_is_left(tmp_path: Path):
    base, precious = tmp_path / "base", tmp_path / "precious"
    made = [directory(base, "2.13", unused_days=1, ages=[1])]
    precious.mkdir()
    (precious / "photo").write_bytes(b"x" * PAGE)
    (base / "inductor" / "mine").mkdir()
    (base / "inductor" / "mine" / "file").write_text("x")
    (base / "inductor" / f"x-{'0' * 8}").symlink_to(precious)
    (base / "triton").symlink_to(precious)
    (Path(made[0].path) / "link").symlink_to(precious)
    os.mkdir(precious / f"y-{'0' * 8}")
    (precious / ".removing-0").mkdir()
    os.utime(precious / ".removing-0", (0, 0))
    before = sorted(precious.rglob("*"))
    for remove in (
        lambda: prune(str(base), max_bytes=0, older_than_s=0),
        lambda: clear(str(base), stored(str(base)), dry_run=False),
    ):
        assert stored(str(base)) == made
        assert [it.directory for it in remove()] == made
        assert sorted(precious.rglob("*")) == before
        assert [line.split(" ", 1) for line in foreign(str(base))] == [
            [str(base / "inductor" / "mine"), "is not named by a key of xlaunch"],
            [
                str(base / "inductor" / f"x-{'0' * 8}"),
                "is a symbolic link; name the directory that it leads to",
            ],
            [str(base / "triton"), "is a symbolic link; name the directory that it leads to"],
        ]
        made = [directory(base, "2.13", unused_days=1, ages=[1])]


def test_a_cache_that_vanishes_has_no_files(tmp_path: Path, caches):
    (tmp_path / "link").symlink_to(caches[0].path)
    for path in (str(tmp_path / "gone"), str(tmp_path / "link"), caches[0].record):
        assert list(files_of(path)) == []


@pytest.mark.parametrize(
    ("begin", "variable"),
    [
        ("", "X"),  # it has inherited the descriptor
        ("os.closerange(3, 4096)", "TORCHINDUCTOR_CACHE_DIR"),
        ("os.setsid(); os.fork() and os._exit(0); os.closerange(3, 4096)", "TORCHINDUCTOR_CACHE_DIR"),
    ],
    ids=["a child", "that closes its descriptors", "a daemon"],
)  # fmt: skip
def test_a_program_holds_its_caches(tmp_path, caches, begin: str, variable: str):
    """By a descriptor, or by a variable that names them; as root, it may be any user's."""
    code = f"import os; {begin or 'pass'}; print(flush=True); os.read(0, 1)"
    with held(caches[1]):
        program = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, variable: caches[1].path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=False,
        )
    with program:
        assert program.stdout is not None
        program.stdout.readline()
        assert clear(str(tmp_path), [caches[1]], dry_run=True) == []
        assert program.stdin is not None
        program.stdin.close()
        program.stdout.read()
    wait_until(lambda: clear(str(tmp_path), [caches[1]], dry_run=True), "the end of the program")


def test_a_locked_record_is_not_waited_for_without_limit(caches, monkeypatch):
    monkeypatch.setattr("xlaunch.cache.store.HOLD_TIMEOUT_S", 0.05)
    with not_in_use(caches[0], frozenset()) as free:
        assert free
        assert hold(caches[0]) is None
    with held(caches[0]):
        pass


def test_descriptors_fit_below_a_low_limit(caches):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        number = hold(caches[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert number is not None
    assert os.get_inheritable(number)
    os.close(number)


def test_a_launch_starts_a_pruner_once_a_day(tmp_path, caches):
    environment = {**os.environ, "XLAUNCH_CACHE_MAX_SIZE": str(6 * PAGE)}
    code = f"from xlaunch.cache.use import start_pruner; start_pruner({str(tmp_path)!r})"

    def launch() -> None:
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)

    launch()  # the first one only begins to count
    stamp = tmp_path / "pruned"
    assert len(stored(str(tmp_path))) == 3
    os.utime(stamp, (0, time.time() - 2 * DAY_S))
    launch()
    assert time.time() - stamp.stat().st_mtime < DAY_S
    wait_until(lambda: len(stored(str(tmp_path))) < 3, "the pruner")
    assert not os.path.exists(caches[1].path)


def test_no_pruner_below_a_directory_that_is_gone(tmp_path):
    start_pruner(str(tmp_path / "gone"))
    assert list(tmp_path.iterdir()) == []


def test_the_pruner_keeps_nothing_of_its_launch_open(tmp_path):
    """A reader of the launch's pipe does not wait for the pruner."""
    reading, writing = os.pipe()
    shown = tmp_path / "shown"
    show = f"ls -l /proc/$$/fd /proc/$$/cwd > {shown}.new; mv {shown}.new {shown}"
    code = f"from xlaunch.cache.use import _detach; _detach(['/bin/sh', '-c', {show!r}])"
    subprocess.run([sys.executable, "-c", code], check=True, pass_fds=(writing,), cwd=tmp_path)
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)
    wait_until(shown.exists, "what it shows")
    assert "pipe:" not in shown.read_text()
    assert "cwd -> /\n" in shown.read_text()
