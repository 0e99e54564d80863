# SPDX-License-Identifier: Apache-2.0
"""A launch within a launch: what the outer one set is replaced, what the user set stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.launcher.cli.commands import (
    SHOW,
    XLAUNCH,
    allowed_cpus,
    clean_environment,
    run,
    two_cpus,
)
from tests.libraries import find_library

from xlaunch.machine.architecture import glibc_version

TUNABLES = "GLIBC_TUNABLES"
DEBIAN = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4", "llvm": "libomp5"}
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"

pytestmark = pytest.mark.skipif(not glibc_version(), reason="GLIBC_TUNABLES are glibc's")


def launched(*levels: tuple[str, ...], **own: str) -> dict[str, str]:
    """The environment of a program under launches one within the other, each with its options.

    `own` is the user's, in addition to what these tests run in. A level that does not begin with a
    dash is a command between two launches, such as ``("env", "A=1")``.
    """
    words: list[Any] = []
    for level in levels:
        if level and not level[0].startswith("-"):
            words += level
        else:
            words += [*XLAUNCH, *level, "--"]
    without = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_CONF", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")
    kept = {name: v for name, v in clean_environment().items() if name not in without}
    told: dict[str, str] = run((*words, SHOW), env=kept | own).shown()[0]["env"]
    return told


def entries(told: dict[str, str]) -> dict[str, str]:
    """GLIBC_TUNABLES by name."""
    pairs = [entry.partition("=")[::2] for entry in told.get(TUNABLES, "").split(":") if entry]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@pytest.fixture
def library(needs: Callable[[object, str], None]) -> Callable[[str], str]:
    """The file of an allocator or an OpenMP runtime of the system's, by the profile's name."""

    def find(name: str) -> str:
        found = find_library(name, None, os.environ)
        needs(found, f"{name} (Debian: {DEBIAN[name]})")
        assert found is not None
        return found.path

    return find


def test_outer_tunables_are_replaced_by_the_inner_profile():
    frugal, tuned = ("--allocator", "glibc-frugal"), ("--allocator", "glibc-tuned")
    alone = entries(launched(tuned))
    assert "glibc.malloc.arena_max" in entries(launched(frugal))
    assert entries(launched(frugal, tuned)) == alone
    assert entries(launched(tuned, frugal, tuned)) == alone
    assert TUNABLES not in launched(tuned, ("--allocator", "glibc"))


def test_users_tunables_pass_through_every_launch():
    frugal, tuned, plain = (("--allocator", f"glibc{kind}") for kind in ("-frugal", "-tuned", ""))
    own = "glibc.malloc.mmap_max=65536:glibc.malloc.check=0"
    alone = launched(tuned, **{TUNABLES: own})
    assert entries(alone)["glibc.malloc.mmap_max"] == "65536"
    for levels in ((frugal, tuned), (tuned, frugal, tuned), (plain, tuned)):
        assert entries(launched(*levels, **{TUNABLES: own})) == entries(alone)
    for levels in ((tuned, plain), (frugal, tuned, plain)):
        assert launched(*levels, **{TUNABLES: own})[TUNABLES] == own
    by_option = launched((*frugal, "--env", f"{TUNABLES}={own}"), tuned)
    assert entries(by_option) == entries(alone)


def test_what_is_changed_between_two_launches_is_the_user_s(tmp_path):
    frugal, tuned = ("--allocator", "glibc-frugal"), ("--allocator", "glibc-tuned")
    told = launched(frugal, ("env", f"{TUNABLES}=glibc.malloc.mmap_max=7"), tuned)
    assert entries(told)["glibc.malloc.mmap_max"] == "7"
    assert "glibc.malloc.arena_max" not in entries(told)
    told = launched(("--cache-dir", str(tmp_path)), ("env", f"{INDUCTOR}=/mine"), ())
    assert told[INDUCTOR] == "/mine"
    told = launched(frugal, ("env", "-u", TUNABLES), ("--allocator", "glibc"))
    assert TUNABLES not in told


def test_outer_allocator_gives_way_to_the_inner_one(library: Callable[[str], str]):
    jemalloc, tcmalloc = library("jemalloc"), library("tcmalloc")
    outer = launched(("--allocator", "jemalloc"))
    assert outer["LD_PRELOAD"] == jemalloc
    assert "dirty_decay_ms:-1" in outer["MALLOC_CONF"]
    inner = launched(("--allocator", "jemalloc"), ("--allocator", "tcmalloc"))
    assert inner["LD_PRELOAD"] == tcmalloc
    assert "MALLOC_CONF" not in inner
    inner = launched(("--allocator", "jemalloc"), ("--allocator", "glibc"))
    assert not {"LD_PRELOAD", "MALLOC_CONF", TUNABLES} & set(inner)
    inner = launched(("--allocator", "jemalloc"), ("--allocator", "jemalloc"))
    assert (inner["LD_PRELOAD"], inner["MALLOC_CONF"]) == (jemalloc, outer["MALLOC_CONF"])


def test_users_preload_and_configuration_stay(library: Callable[[str], str]):
    library("jemalloc")
    tcmalloc, openmp = library("tcmalloc"), library("llvm")
    outer, own = ("--allocator", "jemalloc"), {"LD_PRELOAD": openmp, "MALLOC_CONF": "narenas:1"}
    told = launched(outer, ("--allocator", "tcmalloc"), **own)
    assert (told["LD_PRELOAD"], told["MALLOC_CONF"]) == (f"{openmp}:{tcmalloc}", "narenas:1")
    told = launched(outer, ("--allocator", "glibc"), **own)
    assert (told["LD_PRELOAD"], told["MALLOC_CONF"]) == (openmp, "narenas:1")


def test_inner_launch_decides_anew_on_the_openmp_runtime(library: Callable[[str], str]):
    path = library("llvm")
    glibc = ("--allocator", "glibc")
    llvm = ("--omp", "llvm", *glibc)
    outer = launched(llvm)
    assert (outer["LD_PRELOAD"], outer["KMP_BLOCKTIME"]) == (path, "1")
    assert not {"LD_PRELOAD", "KMP_BLOCKTIME"} & set(launched(llvm, glibc))
    told = launched(llvm, glibc, KMP_BLOCKTIME="1")
    assert (told["KMP_BLOCKTIME"], "LD_PRELOAD" in told) == ("1", False)


def test_inner_launch_decides_anew_on_the_caches(tmp_path):
    one, other = ("--cache-dir", str(tmp_path / "one")), ("--cache-dir", str(tmp_path / "other"))
    assert launched(one)[INDUCTOR].startswith(one[1])
    assert launched(one, other)[INDUCTOR].startswith(other[1])
    without = launched(one, ("--no-cache",))
    assert INDUCTOR not in without
    assert without["XRUNTIME_CACHE_DIR"] == "0"
    for levels in ((one, ("--no-cache",)), (one, ()), ((*one, "--supervise"), ())):
        assert launched(*levels, **{INDUCTOR: "/mine"})[INDUCTOR] == "/mine"
    assert launched(one, other, **{INDUCTOR: "/mine"})[INDUCTOR].startswith(other[1])


def test_output_shows_as_it_is_written_within_a_launch_that_relays():
    assert launched(("--metric", "x"), ())["PYTHONUNBUFFERED"] == "1"
    assert launched(("--metric", "x"), (), ())["PYTHONUNBUFFERED"] == "1"
    assert launched(("--metric", "x"), (), PYTHONUNBUFFERED="x")["PYTHONUNBUFFERED"] == "x"
    assert "PYTHONUNBUFFERED" not in launched((), ())


@pytest.mark.long
def test_waiting_stays_passive_where_the_outer_launch_lets_instances_share(needs: Any):
    cpu = str(two_cpus(needs)[0])
    sharing = (
        "--cpus",
        cpu,
        "--instances",
        "2",
        "--ncores",
        "1",
        "--oversubscribe",
        "--no-tag",
        "-q",
    )
    assert launched(sharing, ())["OMP_WAIT_POLICY"] == "passive"
    assert launched(sharing, (), ())["OMP_WAIT_POLICY"] == "passive"
    assert launched(sharing, (), OMP_WAIT_POLICY="active")["OMP_WAIT_POLICY"] == "active"
    assert "OMP_WAIT_POLICY" not in launched(sharing, ("--omp", "none"))
    assert "OMP_WAIT_POLICY" not in launched(("--cpus", cpu), ())


@pytest.mark.long
def test_instance_s_memory_is_what_a_launch_within_it_divides():
    count = 2 * len(allowed_cpus())
    sharing = ("--instances", str(count), "--ncores", "1", "--oversubscribe", "--no-tag", "-q")
    name = "XLAUNCH_INSTANCE_MEMORY_BYTES"
    whole, part = launched(())[name], launched(sharing)[name]
    assert int(part) == int(whole) // count
    assert launched(sharing, ())[name] == launched(sharing, (), ())[name] == part
    threshold = "glibc.malloc.trim_threshold"
    tuned = ("--allocator", "glibc-tuned")
    assert entries(launched(sharing, tuned)) == entries(launched((*sharing, *tuned)))
    assert int(entries(launched(sharing, tuned))[threshold]) <= int(part) // 2


def test_environment_for_a_shell_takes_back_what_the_outer_launch_set():
    command = (
        *XLAUNCH,
        "--allocator",
        "glibc-tuned",
        "--",
        *XLAUNCH,
        "env",
        "--allocator",
        "glibc",
    )
    done = run(command, env={n: v for n, v in clean_environment().items() if n != TUNABLES})
    assert done.code == 0, done.err
    assert f"unset {TUNABLES}" in done.out.decode().splitlines()
    assert f"export {TUNABLES}" not in done.out.decode()
