# SPDX-License-Identifier: Apache-2.0
"""A launch within a launch: what the outer one set is replaced, what the user set stays."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.cli.commands import (
    SHOW,
    XLAUNCH,
    allowed_cpus,
    ask,
    clean_environment,
    run,
    two_cpus,
)
from tests.launcher.cli.commands import program as executable
from tests.launcher.options.settings import typed
from tests.libraries import find_library

from xlaunch.environment import prepare_environment
from xlaunch.machine import read_machine
from xlaunch.machine.sysfs import glibc_version
from xlaunch.planning import plan

TUNABLES = "GLIBC_TUNABLES"
DEBIAN = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4", "llvm": "libomp5"}
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
SHARING = ("--ncores", "1", "--oversubscribe")
FRUGAL, TUNED, PLAIN = (("--allocator", f"glibc{kind}") for kind in ("-frugal", "-tuned", ""))

Environment = dict[str, str]

pytestmark = pytest.mark.skipif(not glibc_version(), reason="GLIBC_TUNABLES are glibc's")


def before_all_launches(own: Environment) -> Environment:
    """What the user has set, in what these tests run in."""
    without = (TUNABLES, "LD_PRELOAD", "MALLOC_CONF", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")
    return {name: v for name, v in clean_environment().items() if name not in without} | own


def planned(
    *levels: tuple[str, ...] | Environment, program: Path = SHOW, **own: str
) -> Environment:
    """The environment of a program under launches one within the other, each with its options.

    Nothing is launched: each level gets the environment and the CPUs that the one around it plans.
    A level that is a dictionary is what a program between two launches sets; an empty value unsets.
    """
    environment, machine = before_all_launches(own), read_machine()
    for level in levels:
        if isinstance(level, dict):
            changed = environment | level
            environment = {name: value for name, value in changed.items() if value}
            continue
        request = typed(*level, str(program)).request
        made = plan(request.layout, machine)
        found = prepare_environment(made, request.program, environment, run=request.run)
        environment = found.variables[0]
        limits = machine.limits._replace(allowed_cpus=made.instances[0].cpus)
        machine = machine._replace(limits=limits)
    return environment


def entries(told: Environment) -> Environment:
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


def test_real_launches_give_what_is_planned(library: Callable[[str], str]):
    """One process after the other, with a library preloaded into the inner launchers."""
    library("jemalloc")
    levels = (("--allocator", "jemalloc"), TUNED, PLAIN)
    own = {TUNABLES: "glibc.malloc.check=0", INDUCTOR: "/mine"}
    words = [word for level in levels for word in (*XLAUNCH, *level, "--")]
    real = run((*words, SHOW), env=before_all_launches(own)).only()["env"]
    assert real == planned(*levels, **own)


def test_outer_tunables_are_replaced_by_the_inner_profile():
    alone = entries(planned(TUNED))
    assert "glibc.malloc.arena_max" in entries(planned(FRUGAL))
    assert entries(planned(FRUGAL, TUNED)) == alone
    assert entries(planned(TUNED, FRUGAL, TUNED)) == alone
    assert TUNABLES not in planned(TUNED, PLAIN)


def test_users_tunables_pass_through_every_launch():
    own = "glibc.malloc.mmap_max=65536:glibc.malloc.check=0"
    alone = planned(TUNED, **{TUNABLES: own})
    assert entries(alone)["glibc.malloc.mmap_max"] == "65536"
    for levels in ((FRUGAL, TUNED), (TUNED, FRUGAL, TUNED), (PLAIN, TUNED)):
        assert entries(planned(*levels, **{TUNABLES: own})) == entries(alone)
    for levels in ((TUNED, PLAIN), (FRUGAL, TUNED, PLAIN)):
        assert planned(*levels, **{TUNABLES: own})[TUNABLES] == own
    by_option = planned((*FRUGAL, "--env", f"{TUNABLES}={own}"), TUNED)
    assert entries(by_option) == entries(alone)


def test_what_is_changed_between_two_launches_is_the_user_s(tmp_path):
    told = planned(FRUGAL, {TUNABLES: "glibc.malloc.mmap_max=7"}, TUNED)
    assert entries(told)["glibc.malloc.mmap_max"] == "7"
    assert "glibc.malloc.arena_max" not in entries(told)
    told = planned(("--cache-dir", str(tmp_path)), {INDUCTOR: "/mine"}, ())
    assert told[INDUCTOR] == "/mine"
    assert TUNABLES not in planned(FRUGAL, {TUNABLES: ""}, PLAIN)


def test_outer_allocator_gives_way_to_the_inner_one(library: Callable[[str], str]):
    jemalloc, tcmalloc = library("jemalloc"), library("tcmalloc")
    asked = ("--allocator", "jemalloc")
    outer = planned(asked)
    assert outer["LD_PRELOAD"] == jemalloc
    assert "dirty_decay_ms:-1" in outer["MALLOC_CONF"]
    inner = planned(asked, ("--allocator", "tcmalloc"))
    assert inner["LD_PRELOAD"] == tcmalloc
    assert "MALLOC_CONF" not in inner
    assert not {"LD_PRELOAD", "MALLOC_CONF", TUNABLES} & set(planned(asked, PLAIN))
    inner = planned(asked, asked)
    assert (inner["LD_PRELOAD"], inner["MALLOC_CONF"]) == (jemalloc, outer["MALLOC_CONF"])


def test_users_preload_and_configuration_stay(library: Callable[[str], str]):
    library("jemalloc")
    tcmalloc, openmp = library("tcmalloc"), library("llvm")
    outer, own = ("--allocator", "jemalloc"), {"LD_PRELOAD": openmp, "MALLOC_CONF": "narenas:1"}
    told = planned(outer, ("--allocator", "tcmalloc"), **own)
    assert (told["LD_PRELOAD"], told["MALLOC_CONF"]) == (f"{openmp}:{tcmalloc}", "narenas:1")
    told = planned(outer, PLAIN, **own)
    assert (told["LD_PRELOAD"], told["MALLOC_CONF"]) == (openmp, "narenas:1")


def test_inner_launch_decides_anew_on_the_openmp_runtime(library: Callable[[str], str]):
    path = library("llvm")
    llvm = ("--omp", "llvm", *PLAIN)
    outer = planned(llvm)
    assert (outer["LD_PRELOAD"], outer["KMP_BLOCKTIME"]) == (path, "1")
    assert not {"LD_PRELOAD", "KMP_BLOCKTIME"} & set(planned(llvm, PLAIN))
    assert planned(llvm, llvm)["LD_PRELOAD"] == path
    told = planned(llvm, PLAIN, KMP_BLOCKTIME="1")
    assert (told["KMP_BLOCKTIME"], "LD_PRELOAD" in told) == ("1", False)


def test_inner_launch_decides_anew_on_the_caches(tmp_path):
    one, other = ("--cache-dir", str(tmp_path / "one")), ("--cache-dir", str(tmp_path / "other"))
    assert planned(one)[INDUCTOR].startswith(one[1])
    assert planned(one, other)[INDUCTOR].startswith(other[1])
    without = planned(one, ("--no-cache",))
    assert INDUCTOR not in without
    assert without["XRUNTIME_CACHE_DIR"] == "0"
    for levels in ((one, ("--no-cache",)), (one, ()), ((*one, "--supervise"), ())):
        assert planned(*levels, **{INDUCTOR: "/mine"})[INDUCTOR] == "/mine"
    assert planned(one, other, **{INDUCTOR: "/mine"})[INDUCTOR].startswith(other[1])


def test_output_shows_as_it_is_written_within_a_launch_that_relays():
    relayed, name = ("--metric", "x"), "PYTHONUNBUFFERED"
    assert planned(relayed, ())[name] == planned(relayed, (), ())[name] == "1"
    assert planned(relayed, (), PYTHONUNBUFFERED="x")[name] == "x"
    assert name not in planned((), ())


def test_waiting_stays_passive_where_the_outer_launch_lets_instances_share(needs: Any):
    cpu = str(two_cpus(needs)[0])
    sharing, name = ("--cpus", cpu, "--instances", "2", *SHARING), "OMP_WAIT_POLICY"
    assert planned(sharing, ())[name] == planned(sharing, (), ())[name] == "passive"
    assert planned(sharing, (), OMP_WAIT_POLICY="active")[name] == "active"
    assert name not in planned(sharing, ("--omp", "none"))
    assert name not in planned(("--cpus", cpu), ())


def test_instance_s_memory_is_what_a_launch_within_it_divides():
    count = 2 * len(allowed_cpus())
    sharing = ("--instances", str(count), *SHARING)
    name, threshold = "XLAUNCH_INSTANCE_MEMORY_BYTES", "glibc.malloc.trim_threshold"
    whole, part = planned(())[name], planned(sharing)[name]
    assert int(part) == int(whole) // count
    assert planned(sharing, ())[name] == planned(sharing, (), ())[name] == part
    assert entries(planned(sharing, TUNED)) == entries(planned((*sharing, *TUNED)))
    assert int(entries(planned(sharing, TUNED))[threshold]) <= int(part) // 2


@pytest.mark.parametrize("own", [None, "7"])
def test_outer_launch_s_threads_are_not_the_user_s(own: str | None):
    inherited = {} if own is None else {"OMP_NUM_THREADS": own}
    inner = ("--cpus", str(allowed_cpus()[0]))
    for levels in ((inner,), ((), inner), ((), (), inner)):
        assert planned(*levels, **inherited).get("OMP_NUM_THREADS") == own


def test_program_that_starts_ranks_gets_no_thread_count(tmp_path: Path):
    names = ("OMP_NUM_THREADS", "PYTHON_CPU_COUNT", "RAYON_NUM_THREADS")
    torchrun = executable(tmp_path / "torchrun", f"#!{sys.executable}\n")
    for options in ((), ("--ncores", "1"), ("--instances", "2", *SHARING)):
        assert not set(names) & set(planned(options, program=torchrun))
    told = planned(("--ncores", "1"), program=torchrun, OMP_NUM_THREADS="7")
    assert told["OMP_NUM_THREADS"] == "7"
    # A launcher around this one has set a number for one process.
    assert "OMP_NUM_THREADS" not in planned(("--ncores", "1"), (), program=torchrun)
    out = ask("plan", "--explain", torchrun).out.decode()
    assert "thread counts: left to the program, which starts ranks of its own" in out


def test_environment_for_a_shell_takes_back_what_the_outer_launch_set():
    told = ask("env", *PLAIN, env=planned(TUNED)).out.decode()
    assert f"unset {TUNABLES}" in told.splitlines()
    assert f"export {TUNABLES}" not in told
