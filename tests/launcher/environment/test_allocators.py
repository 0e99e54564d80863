# SPDX-License-Identifier: Apache-2.0
"""Allocator profiles at work: pages that were freed are there again, or are not, as the row says."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import SHOW, ask, clean_environment, xlaunch
from tests.launcher.environment.made_up import AARCH64, HERE, X86_64, library
from tests.libraries import find_library
from tests.tiers import quick_first

from xlaunch.environment.allocators import (
    GLIBC_VARIABLES,
    PROFILES,
    allocator_settings,
    choose_profile,
    merge_tunables,
)
from xlaunch.environment.variables import Proposal
from xlaunch.errors import UsageError
from xlaunch.machine.sysfs import glibc_version

ROUNDS = """
import ctypes, resource, sys, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def work():
    faults = []
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [libc.malloc(mib << 20) for mib in (100, 30, 7, 1)]
        for block, mib in zip(blocks, (100, 30, 7, 1)):
            libc.memset(block, 1, mib << 20)
        for block in blocks:
            libc.free(block)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    print(min(faults[10:]))  # the kernel's NUMA balancing adds faults to some

if sys.argv[1] == "thread":
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
"""
PAGES = (138 << 20) // os.sysconf("SC_PAGE_SIZE")
"""Of the 138 MiB that each round touches."""
LARGE_PAGES = (100 << 20) // os.sysconf("SC_PAGE_SIZE")
"""Of its one block above 32 MiB."""


def faults_of_late_rounds(profile: str, *, thread: bool = False) -> int:
    """Fewest page faults of a round in which blocks are allocated, written and freed, after ten such."""
    # Huge pages would hide 512 faults in one. How much may be kept depends on the number of threads.
    options = ("-q", "--ncores", "1", "--allocator", profile, "--thp", "never", "--")
    where = "thread" if thread else "main"
    return int(xlaunch(*options, sys.executable, "-c", ROUNDS, where).out)


@pytest.fixture(scope="module", autouse=True)
def _glibc(needs: Callable[..., None]) -> None:
    needs(glibc_version(), "glibc")


def test_glibc_as_it_is_gives_large_blocks_back():
    # Its threshold follows the blocks that were freed, up to 32 MiB (M_MMAP_THRESHOLD, mallopt(3)).
    assert faults_of_late_rounds("glibc") > 0.9 * LARGE_PAGES


@pytest.mark.parametrize("profile", ["auto", "glibc-tuned", "glibc-one-arena"])
def test_tuned_glibc_has_the_pages_again(profile):
    assert faults_of_late_rounds(profile) < 0.01 * PAGES


@pytest.mark.long
def test_frugal_glibc_keeps_small_blocks_and_returns_large_ones():
    assert 0.9 * LARGE_PAGES < faults_of_late_rounds("glibc-frugal") < 1.1 * LARGE_PAGES


@pytest.mark.long
def test_arenas_of_threads_are_why_there_is_a_profile_with_one():
    assert faults_of_late_rounds("glibc-tuned", thread=True) > 0.5 * PAGES
    assert faults_of_late_rounds("glibc-one-arena", thread=True) < 0.01 * PAGES


@pytest.mark.long
@pytest.mark.parametrize("profile", ["jemalloc", "tcmalloc", "mimalloc"])
def test_preloaded_allocator_has_the_pages_again(profile: str, needs: Callable[..., None]):
    needs(find_library(profile, sys.prefix, os.environ), f"the library of {profile}")
    assert faults_of_late_rounds(profile) < 0.05 * PAGES


LOADS_TORCH = (sys.executable, "-c", "import torch")


def preload_of(*program: str, **variables: str) -> tuple[str, bool]:
    """The name of what is preloaded under `--allocator auto`, and whether glibc is tuned."""
    env = clean_environment(**variables)
    told = json.loads(ask("env", "--format", "json", "--", *program, env=env).out)["environment"]
    return os.path.basename(told.get("LD_PRELOAD", "")), "GLIBC_TUNABLES" in told


def test_auto_is_an_installed_tcmalloc_for_torch_and_else_tuned_glibc(needs):
    library = find_library("tcmalloc", sys.prefix, os.environ)
    assert preload_of("/bin/sh") == ("", True)
    assert preload_of(sys.executable, "-c", "import json") == ("", True)
    needs(library, "tcmalloc (Debian: libtcmalloc-minimal4)")
    needs(importlib.util.find_spec("torch"), "torch")
    name = os.path.basename(library.path)
    assert preload_of(*LOADS_TORCH) == (name, False)
    assert preload_of(*LOADS_TORCH, GLIBC_TUNABLES="glibc.malloc.arena_max=3") == ("", True)


def test_auto_adds_nothing_to_an_allocator_that_the_user_preloads(needs):
    library = find_library("jemalloc", None, {})
    needs(library, "jemalloc (Debian: libjemalloc2)")
    assert preload_of(*LOADS_TORCH, LD_PRELOAD=library.path) == ("", False)


def tuned(
    share_bytes: int | None = None, *, threads: int = 3, huge_pages: bool = False, **inherited: str
) -> Proposal:
    """What glibc-tuned sets for a process with this share of the memory."""
    (tunables,) = allocator_settings(
        PROFILES["glibc-tuned"], inherited,
        memory_share_bytes=share_bytes, threads=threads, huge_pages=huge_pages,
    )  # fmt: skip
    return tunables


@pytest.mark.parametrize(
    ("share_bytes", "threads", "kept_bytes", "shown"),
    [
        # The process and a loader worker for each thread, which inherit this, keep half of it together.
        (8 << 30, 3, 1 << 30, "up to 1 GiB"),
        (34 << 30, 64, 1 << 30, "up to 1 GiB"),
        (1 << 30, 1, 256 << 20, "up to 256 MiB"),
        (12 << 30, 1, 3 << 30, "up to 3 GiB"),
        (None, 3, 64 << 30, "up to 64 GiB"),
    ],
)
def test_share_of_memory_bounds_what_is_kept(
    share_bytes: int | None, threads: int, kept_bytes: int, shown: str
):
    tunables = tuned(share_bytes, threads=threads)
    assert f"trim_threshold={kept_bytes}:" in f"{tunables.value}:"
    assert tunables.reason.endswith(shown)


def test_huge_pages_are_a_tunable():
    assert tuned(huge_pages=True).value.endswith("glibc.malloc.hugetlb=1")


def test_users_tunables_win_name_by_name():
    merged = merge_tunables("a.b=1:c.d=2", "c.d=3:e.f=4")
    assert dict(entry.split("=") for entry in merged.split(":")) == {
        "a.b": "1",
        "c.d": "2",
        "e.f": "4",
    }
    entries = tuned(GLIBC_TUNABLES="glibc.malloc.mmap_max=65536").value.split(":")
    assert "glibc.malloc.mmap_max=65536" in entries
    assert "glibc.malloc.mmap_max=0" not in entries


def test_path_has_the_settings_of_the_allocator_that_its_file_name_tells():
    profile = choose_profile("/opt/tcmalloc-tests/libmimalloc.so.2", glibc=(2, 36))
    assert profile.variables == PROFILES["mimalloc"].variables
    assert choose_profile("/opt/jemalloc/lib/libown.so", glibc=(2, 36)).variables == {}


@pytest.mark.parametrize(
    ("asked", "glibc", "chosen"),
    [
        ("auto", (2, 36), "glibc-tuned"),
        ("auto", (2, 17), "glibc"),
        ("auto", None, "glibc"),
        ("tcmalloc", None, "tcmalloc"),
        ("/opt/lib/libjemalloc.so.2", (2, 36), "/opt/lib/libjemalloc.so.2"),
    ],
)
def test_which_profile(asked, glibc, chosen):
    assert choose_profile(asked, glibc=glibc).name == chosen


@pytest.mark.parametrize("asked", ["jemaloc", "", "glibc-tuned"])
def test_profile_that_cannot_be_had(asked):
    with pytest.raises(UsageError, match="--allocator"):
        choose_profile(asked, glibc=None)


def test_second_allocator_is_refused(needs: Callable[..., None]):
    theirs = find_library("jemalloc", sys.prefix, os.environ)
    needs(theirs, "libjemalloc2")
    needs(find_library("tcmalloc", sys.prefix, os.environ), "libtcmalloc-minimal4")
    assert theirs is not None
    env = clean_environment(LD_PRELOAD=theirs.path)
    message = ask("--allocator", "tcmalloc", "true", env=env).refused()
    assert message.startswith("--allocator: LD_PRELOAD already names")


# What the user has chosen by variables


def changed_by_auto(*options: str, **inherited: str) -> tuple[dict[str, str], str]:
    """The allocator's variables that a Python program has, and what xlaunch prints."""
    done = xlaunch(*options, SHOW, env=clean_environment(**inherited))
    names = re.compile("MALLOC|TUNABLES|LD_PRELOAD")
    return {n: v for n, v in done.only()["env"].items() if names.search(n)}, done.err


@pytest.mark.parametrize("name", quick_first(GLIBC_VARIABLES, 2))
def test_auto_leaves_an_allocator_alone_that_the_user_has_tuned_and_says_so(name: str):
    told, said = changed_by_auto(**{name: "2"})
    assert told == {name: "2"}
    line = f"inherited variables are kept: {name}=2 (--allocator auto sets nothing)"
    assert said == f"xlaunch: warning: {line}\n"
    shown = ask("plan", "--explain", SHOW, env=clean_environment(**{name: "2"})).out.decode()
    assert f"  allocator: left alone; {name}=2 is kept" in shown
    assert changed_by_auto(**{name: ""})[0].keys() - {name}, "an empty variable counts as unset"


def test_named_profile_keeps_what_the_user_has_tuned():
    own = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": "65536"}
    told, said = changed_by_auto("--allocator", "glibc-one-arena", **own)
    assert told.items() >= own.items()
    assert said == ""
    tunables = told["GLIBC_TUNABLES"]
    assert "glibc.malloc.mmap_max=0" in tunables
    assert "arena_max" not in tunables
    assert "trim_threshold" not in tunables


def test_named_library_says_that_glibc_s_variables_have_no_effect(
    golden: Golden, needs: Callable[..., None]
):
    needs(find_library("jemalloc", sys.prefix, {}), "Debian's libjemalloc2")
    _, said = changed_by_auto("--allocator", "jemalloc", MALLOC_ARENA_MAX="2")
    golden(said)


def stale_entries(tmp_path: Path) -> dict[str, str]:
    """Entries of LD_PRELOAD with an allocator's name that no program loads."""
    other = AARCH64 if HERE != AARCH64 else X86_64
    text = tmp_path / "text" / "libjemalloc.so.2"
    text.parent.mkdir()
    text.write_text("not a library")
    return {
        "gone": str(tmp_path / "gone" / "libjemalloc.so.2"),
        "text": str(text),
        "foreign": str(library(tmp_path / "foreign" / "libtcmalloc.so.4", machine=other)),
        "nowhere": "libmimalloc.so.3",
    }


@pytest.mark.parametrize("kind", ["gone", "text", "foreign", "nowhere"])
def test_preload_that_cannot_be_loaded_is_no_choice_of_an_allocator(tmp_path: Path, kind: str):
    entry = stale_entries(tmp_path)[kind]
    needed = find_library("mimalloc", None, {})
    if kind == "nowhere" and needed is not None and needed.path.endswith(".so.3"):
        entry = "libmimalloc.so.2.77"
    made = ask("plan", "--json", SHOW, env=clean_environment(LD_PRELOAD=entry))
    plain = ask("plan", "--json", SHOW, env=clean_environment(LD_PRELOAD=""))
    (told, bare) = (json.loads(it.out)["instances"][0]["environment"] for it in (made, plain))
    assert told.pop("LD_PRELOAD", entry).split(":")[0] == entry
    bare.pop("LD_PRELOAD", None)
    assert told == bare
    (warning,) = json.loads(made.out)["warnings"]
    assert warning.startswith(
        f"LD_PRELOAD names {entry}, which cannot be loaded, and does not count: "
    )


def test_allocator_that_the_loader_finds_by_its_name_is_the_user_s_choice(
    needs: Callable[..., None],
):
    found = find_library("jemalloc", None, {})
    needs(found and found.origin == "a system directory", "Debian's libjemalloc2")
    told, said = changed_by_auto(LD_PRELOAD="libjemalloc.so.2")
    assert (told, said) == ({"LD_PRELOAD": "libjemalloc.so.2"}, "")
