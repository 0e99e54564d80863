# SPDX-License-Identifier: Apache-2.0
"""OpenMP profiles: what they set, what the user's own settings do to them, and what torch sees."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import ask, clean_environment, two_cpus, xlaunch
from tests.launcher.environment.made_up import environment, library
from tests.libraries import find_library

from xlaunch.environment.contribution import Contribution
from xlaunch.environment.elf import read_program
from xlaunch.environment.libraries import OPENMP
from xlaunch.environment.openmp import PROFILES, choose_openmp, program_runtime
from xlaunch.environment.program import Program, resolve_program
from xlaunch.errors import UsageError
from xlaunch.machine.topology import CPUs
from xlaunch.planning.plans import Instance, Plan
from xlaunch.planning.request import LayoutRequest, MemoryPolicy, ProgramRequest

PROGRAM = Path(__file__).with_name("openmp_program.py")
SHRINKING = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}


def plan_of(*cpus: CPUs, threads: int | None = None, quota: float | None = None, **more) -> Plan:
    """A plan whose instances have these CPUs."""
    instances = tuple(
        Instance(index, mine, len(mine), threads or len(mine), (0,), 1, 1, 1, MemoryPolicy.NONE, ())
        for index, mine in enumerate(cpus)
    )
    everything = tuple(sorted({cpu for mine in cpus for cpu in mine}))
    options = {"count": len(cpus), "bound": True, "cpu_quota": quota} | more
    return Plan(
        instances, allowed_cpus=everything, idle_cpus=(), decisions=(), warnings=(), **options
    )


ROOMY = plan_of((0, 1), (2, 3))


def python_in(prefix: str) -> Program:
    executable = f"{prefix}/bin/python"
    loads = read_program(executable)
    return Program(executable, (executable, "x.py"), "--python", executable, prefix, loads=loads)


def choose(asked: str, plan: Plan = ROOMY, **variables: str) -> Contribution:
    variables.setdefault("XDG_CACHE_HOME", "/dev/null")
    return choose_openmp(asked, plan, python_in(sys.prefix), variables)


def proposed(choice: Contribution) -> dict[str, str]:
    return {proposal.name: proposal.value for proposal in choice.proposals}


SPINNING = {"KMP_BLOCKTIME": "1", "KMP_HOT_TEAMS_MODE": "1"}
"""What an Intel or LLVM runtime gets where each thread has a CPU."""


@pytest.fixture
def runtime(needs):
    """The file of a runtime, by the profile's name."""

    def find(name: str) -> str:
        found = find_library(name, sys.prefix, os.environ)
        needs(found, f"the {name} runtime: Debian's libomp5, pip's intel-openmp, torch")
        return found.path

    return find


def test_no_profile_can_shrink_the_main_thread():
    for profile in PROFILES.values():
        names = {*profile.settings, *profile.passive}
        assert names.isdisjoint(SHRINKING), profile.name
        assert profile.reason, profile.name
        assert profile.source, profile.name


def test_auto_leaves_the_program_s_runtime_alone():
    choice = choose("auto")
    assert (choice.proposals, choice.entries, choice.warnings) == ([], [], ())


@pytest.mark.parametrize(
    "plan",
    [
        plan_of((0, 1), quota=1.5),
        plan_of((0, 1), (0, 1)),
        plan_of((0, 1), (1, 2)),
        plan_of((0, 1), (0, 1), bound=False),
        plan_of((0, 1), threads=3, bound=False),
        plan_of((0, 1), count=4, layout=LayoutRequest(oversubscribe=True)),
    ],
    ids=["quota", "same CPUs", "a shared CPU", "unbound", "more threads", "others not seen"],
)
@pytest.mark.parametrize("asked", ["auto", "gnu", "intel", "llvm"])
def test_waiting_is_passive_where_spinning_costs_others(plan: Plan, asked: str, runtime):
    if asked != "auto":
        runtime(asked)
    variables = proposed(choose(asked, plan))
    assert variables["OMP_WAIT_POLICY"] == "passive"
    assert variables.get("KMP_BLOCKTIME") == ("0" if asked in ("intel", "llvm") else None)
    assert proposed(choose("none", plan)) == {}


@pytest.mark.parametrize(
    "plan", [ROOMY, plan_of((0, 1), threads=1), plan_of((0, 1), (0, 1), threads=1, bound=False)]
)
def test_waiting_may_spin_where_each_thread_has_a_cpu(plan: Plan, runtime):
    runtime("intel")
    assert proposed(choose("auto", plan)) == {}
    assert proposed(choose("intel", plan)) == SPINNING


def test_name_that_is_no_profile():
    for name in ("", "Intel", "gomp", "libiomp5.so"):
        problem = f"--omp: {name!r} is not an OpenMP profile; there are auto, none, gnu,"
        assert ask("--omp", name, "true").refused().startswith(problem)


def test_runtime_of_the_user_s_stays_the_only_one(runtime):
    present = runtime("intel")
    choice = choose("llvm", LD_PRELOAD=f"x.so:{present}")
    assert (choice.entries, proposed(choice)) == ([], SPINNING)
    (warning,) = choice.warnings
    assert f"LD_PRELOAD names {present} already, which is kept" in warning
    for asked in ("intel", present):
        same = choose(asked, LD_PRELOAD=present)
        assert (same.entries, same.warnings, proposed(same)) == ([], (), SPINNING)


@pytest.mark.parametrize("soname", ["libiomp5.so", "libomp.so.5", "libgomp.so.1", "libm.so.6"])
def test_runtime_that_torch_is_linked_to(tmp_path: Path, soname: str):
    site = environment(tmp_path)
    assert program_runtime(str(tmp_path)) is None
    library(site / "torch/lib/libtorch_cpu.so", needed=["libc.so.6", soname])
    own = {"libiomp5.so": "intel", "libomp.so.5": "llvm", "libgomp.so.1": "gnu"}.get(soname)
    assert program_runtime(str(tmp_path)) == own
    if own in (None, "gnu"):
        return
    for asked in set(OPENMP) - {own}:
        with pytest.raises(UsageError, match=f"linked to the {own} runtime.*--omp {own} or auto"):
            choose_openmp(asked, ROOMY, python_in(str(tmp_path)), {})


def test_path_of_a_runtime_has_that_runtime_s_settings(runtime, tmp_path: Path):
    path = tmp_path / "renamed.so"
    tmp_path.chmod(0o755)
    shutil.copy(runtime("llvm"), path)  # known by its soname
    choice = choose(str(path))
    (preload,) = choice.entries
    assert (preload.entry, proposed(choice)) == (os.path.realpath(path), SPINNING)


def test_path_of_something_else_is_refused(tmp_path: Path):
    for path, problem in (
        (sys.executable, "is not an OpenMP runtime"),
        (f"{tmp_path}/absent.so", "No such file"),
        (PROGRAM, "is not an ELF file"),
    ):
        assert problem in ask("--omp", path, "true").refused()


@pytest.mark.parametrize(
    ("name", "value", "under"),
    [
        ("OMP_PROC_BIND", "close", ["auto", "gnu", "intel", "llvm"]),
        ("OMP_PROC_BIND", "TRUE", ["auto", "gnu", "intel", "llvm"]),
        ("OMP_PROC_BIND", "false", []),
        ("OMP_PLACES", "cores", ["auto", "gnu", "intel", "llvm"]),
        ("GOMP_CPU_AFFINITY", "0-3", ["auto", "gnu", "intel", "llvm"]),
        ("KMP_AFFINITY", "granularity=fine,compact,1,0", ["intel", "llvm"]),
        ("KMP_AFFINITY", "verbose,none", []),
        ("KMP_AFFINITY", "disabled", []),
    ],
)
def test_user_s_binding_stays_and_is_warned_of(name: str, value: str, under: list[str], runtime):
    warned = []
    for asked in PROFILES:
        if PROFILES[asked].library is not None:
            runtime(asked)
        choice = choose(asked, **{name: value, "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]})
        assert name not in proposed(choice)
        if any(f"{name}={value} is set and kept" in warning for warning in choice.warnings):
            warned.append(asked)
    assert warned == under


AFFINITY = {"KMP_AFFINITY": "granularity=fine,compact,1,0"}


def binding_warnings(program: Program, **inherited: str) -> list[str]:
    variables = {"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"], **AFFINITY, **inherited}
    choice = choose_openmp("auto", ROOMY, program, variables)
    return [text for text in choice.warnings if "KMP_AFFINITY" in text]


@pytest.mark.parametrize("kind", ["intel", "llvm"])
def test_affinity_is_warned_of_where_the_user_preloads_the_runtime(kind: str, runtime):
    path = runtime(kind)
    (warning,) = binding_warnings(python_in(sys.prefix), LD_PRELOAD=path)
    assert f"with {path} it shrinks" in warning
    # This runtime heeds KMP_AFFINITY first.
    assert binding_warnings(python_in(sys.prefix), LD_PRELOAD=path, OMP_PROC_BIND="false")
    for harmless in ("granularity=fine", "verbose", "none"):
        assert not binding_warnings(python_in(sys.prefix), LD_PRELOAD=path, KMP_AFFINITY=harmless)


def test_affinity_is_warned_of_where_the_program_loads_the_runtime(golden: Golden, tmp_path: Path):
    site = environment(tmp_path / "plain", "numpy-2.3.0")
    plain = python_in(str(tmp_path / "plain"))
    assert not binding_warnings(plain)
    library(site / "some.libs" / "libomp-0123abcd.so.5")
    (warning,) = binding_warnings(plain)
    golden(warning)
    linked = environment(tmp_path / "linked", "torch-2.13.0") / "torch" / "lib"
    library(linked / "libtorch_cpu.so", needed=("libiomp5.so",))
    (warning,) = binding_warnings(python_in(str(tmp_path / "linked")))
    golden(warning)
    environment(tmp_path / "mkl", "mkl-2025.0")
    request = ProgramRequest((str(tmp_path / "mkl" / "bin" / "python"),))
    (warning,) = binding_warnings(resolve_program(request, {"PATH": os.environ["PATH"]}))
    golden(warning)
    native = library(tmp_path / "program", needed=("libomp.so.5", "libc.so.6"))
    own = resolve_program(ProgramRequest((str(native),)), {})
    assert binding_warnings(own)


@pytest.mark.long
def test_affinity_does_what_the_warning_says(runtime, needs):
    needs(find_spec("torch"), "torch")
    two_cpus(needs)
    env = clean_environment(LD_PRELOAD=runtime("intel"), **AFFINITY)
    done = xlaunch(PROGRAM, env=env)
    assert "KMP_AFFINITY=granularity=fine,compact,1,0 is set and kept" in done.err
    told = json.loads(done.out)
    # In a forked child, which loads nothing anew, this runtime restores the mask.
    assert len(told["mask"]) == len(told["spawned"]) == 1


@pytest.mark.long
def test_binding_does_what_the_warning_says(needs):
    needs(find_spec("torch"), "torch")
    two_cpus(needs)
    done = xlaunch(PROGRAM, env=clean_environment(OMP_PROC_BIND="close"))
    assert "OMP_PROC_BIND=close is set and kept" in done.err
    told = json.loads(done.out)
    assert len(told["mask"]) == len(told["forked"]) == len(told["spawned"]) == 1


# Through the command line


def environment_of(*options: str, **variables: str) -> dict[str, str]:
    """What a program would get, which tests/launcher/cli/test_env_command.py compares with what it gets."""
    env = clean_environment(**variables)
    done = ask("env", "--format", "json", *options, env=env)
    environment: dict[str, str] = json.loads(done.out)["environment"]
    return environment


def test_settings_and_preload_reach_the_program(runtime):
    path = runtime("llvm")
    plain = ("--allocator", "glibc")
    told = environment_of("--omp", "llvm", *plain)
    assert (told["LD_PRELOAD"], told["KMP_BLOCKTIME"]) == (path, "1")
    assert not {"LD_PRELOAD", "KMP_BLOCKTIME", "OMP_WAIT_POLICY"} & set(environment_of(*plain))


def test_user_s_settings_win_and_the_preload_is_added_to(runtime, needs):
    path = runtime("llvm")
    jemalloc = find_library("jemalloc", None, {})
    needs(jemalloc, "Debian's libjemalloc2")
    variables = {"KMP_BLOCKTIME": "7", "LD_PRELOAD": jemalloc.path}
    given = [word for pair in variables.items() for word in ("--env", "=".join(pair))]
    for told in (
        environment_of("--omp", "llvm", **variables),
        environment_of("--omp", "llvm", *given),
    ):
        assert (told["KMP_BLOCKTIME"], told["LD_PRELOAD"]) == ("7", f"{jemalloc.path}:{path}")


def test_env_option_counts_where_an_outer_launch_has_set_the_same():
    set_by_it = {"OMP_NUM_THREADS": "77", "XLAUNCH_SET": "OMP_NUM_THREADS=77"}
    assert environment_of(**set_by_it).get("OMP_NUM_THREADS") != "77"
    told = environment_of("--env", "OMP_NUM_THREADS=77", **set_by_it)
    assert told["OMP_NUM_THREADS"] == "77"


def test_plan_shows_what_is_set_and_why(runtime):
    path = runtime("llvm")
    text = ask("plan", "--omp", "llvm", "--explain", "true").out.decode()
    assert f"LD_PRELOAD={path}  (OpenMP llvm" in text
    _, _, grouped = text.partition("\n  OpenMP llvm: ")
    assert "\n    KMP_BLOCKTIME=1\n    KMP_HOT_TEAMS_MODE=1\n" in grouped


def test_warning_reaches_the_user(runtime):
    env = clean_environment(LD_PRELOAD=runtime("intel"))
    words = ("--omp", "llvm", "true")
    warning = "LD_PRELOAD names"
    assert warning in xlaunch(*words, env=env).err
    assert xlaunch("-q", *words, env=env).err == ""
    assert warning in ask("plan", *words, env=env).out.decode()
    made = json.loads(ask("plan", "--json", *words, env=env).out)
    assert [warning in line for line in made["warnings"]] == [True]


# What torch makes of it


@pytest.mark.parametrize(
    "profile",
    ["auto", *(pytest.param(one, marks=pytest.mark.long) for one in ("gnu", "intel", "llvm"))],
)
def test_torch_runs_on_the_runtime_with_all_threads_and_the_whole_mask(
    profile: str, runtime, needs
):
    needs(find_spec("torch"), "torch")
    cpus = two_cpus(needs)
    path = runtime("gnu" if profile == "auto" else profile)
    words = ("--omp", profile, "--cpus", ",".join(map(str, cpus)), "-q", PROGRAM)
    env = clean_environment(OPENBLAS_NUM_THREADS="1")  # its threads would be counted as well
    done = xlaunch(*words, env=env)
    assert done.code == 0, done.err
    assert json.loads(done.out) == {
        "runtime": path,
        "threads": 2,
        "started": 1,
        "after_import": cpus,
        "mask": cpus,
        "forked": cpus,
        "spawned": cpus,
    }


@pytest.mark.long
@pytest.mark.parametrize("profile", ["gnu", "intel", "llvm"])
def test_libraries_with_a_copy_of_their_own_share_the_runtime(profile: str, runtime, needs):
    needs(find_spec("torch") and find_spec("sklearn"), "torch and scikit-learn")
    two_cpus(needs)
    path = runtime(profile)
    env = clean_environment(OPENBLAS_NUM_THREADS="1")
    done = xlaunch("--cpus", "0-1", "--omp", profile, "-q", PROGRAM, "sklearn first", env=env)
    assert done.code == 0, done.err
    told = json.loads(done.out)
    # With two runtimes there would be two teams.
    assert (told["runtime"], told["started"]) == (path, told["threads"] - 1)
