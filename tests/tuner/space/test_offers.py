# SPDX-License-Identifier: Apache-2.0
"""What can be had for a program: tried on this very system, with environments made up around it."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cli.commands import clean_environment
from tests.launcher.planning.shapes import make_machine
from tests.libraries import find_library
from tests.tuner.conftest import Needs

import xlaunch
from xlaunch.environment.openmp import program_runtime
from xlaunch.errors import ProgramNotFoundError
from xlaunch.machine.limits import SystemMode, system_mode
from xlaunch.planning import Request
from xtune.space.identities import Processor
from xtune.space.offers import SWITCHES, Offers, huge_pages_to_try, read_offers

MACHINE = make_machine(packages=(4,), nodes=(4,), l3=(4,))
AMX = Processor((), ("amx_bf16", "avx512f"))
PLAIN = Processor((), ("avx2",))


def made_up_prefix(directory: Path, *packages: str) -> Path:
    """A virtual environment of this Python that packages of these names are installed with."""
    (directory / "bin").mkdir(parents=True)
    python = directory / "bin" / "python"
    python.symlink_to(sys.executable)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = os.path.dirname(os.path.realpath(sys.executable))
    (directory / "pyvenv.cfg").write_text(f"home = {home}\nversion = {version}.0\n")
    site = directory / "lib" / f"python{version}" / "site-packages"
    for package in packages:
        (site / f"{package}-1.0.dist-info").mkdir(parents=True)
    return python


@pytest.fixture
def plain_python(tmp_path: Path) -> Path:
    """A Python without torch."""
    return made_up_prefix(tmp_path / "plain", "numpy")


@pytest.fixture
def torch_python(tmp_path: Path) -> Path:
    return made_up_prefix(tmp_path / "torch", "torch")


def offered(
    python: Path,
    *arguments: str,
    processor: Processor = PLAIN,
    asked: Request | None = None,
    **env: str,
) -> Offers:
    request = (asked or Request()).replace(words=(str(python), *arguments))
    return read_offers(request, clean_environment(**env), MACHINE, processor)


def left(found: Offers) -> dict[str, str]:
    return dict(found.left_out)


def test_every_allocator_that_a_launch_would_take_is_offered(plain_python: Path) -> None:
    found = offered(plain_python)
    assert found.allocators[0] == "auto"
    prefix = str(plain_python.parents[1])
    for name in ("jemalloc", "tcmalloc", "mimalloc"):
        library = find_library(name, prefix, clean_environment())
        if library is None:
            assert name not in found.allocators
            assert f"--allocator {name}: " in left(found)[f"allocator={name}"]
            assert "To install it: " in left(found)[f"allocator={name}"]
        else:
            assert (name in found.allocators) is (f"allocator={name}" not in left(found))


def test_allocators_installed_here_are_offered(plain_python: Path, needs: Needs) -> None:
    libraries = [find_library(n, None, {}) for n in ("jemalloc", "tcmalloc", "mimalloc")]
    needs(all(libraries), "jemalloc, tcmalloc and mimalloc")
    found = offered(plain_python)
    assert {"jemalloc", "mimalloc", "tcmalloc"} <= set(found.allocators)
    assert left(found)["allocator=glibc-tuned"] == "the same as auto here"


def test_tunables_of_the_user_s_keep_auto_at_glibc(plain_python: Path, needs: Needs) -> None:
    found = offered(plain_python, GLIBC_TUNABLES="glibc.malloc.perturb=0")
    needs("glibc" in found.allocators, "programs on glibc")
    assert found.allocators[:4] == ("auto", "glibc", "glibc-one-arena", "glibc-frugal")
    assert left(found)["allocator=glibc-tuned"] == "the same as auto here"


def test_an_allocator_that_is_preloaded_already_stays(plain_python: Path, needs: Needs) -> None:
    library = find_library("tcmalloc", None, {})
    needs(library, "tcmalloc")
    found = offered(plain_python, LD_PRELOAD=library.path)
    assert found.allocators == ("auto",)
    assert left(found)["allocator"] == f"LD_PRELOAD names {library.path}, which is kept"


def test_an_allocator_that_the_user_has_tuned_stays(plain_python: Path) -> None:
    found = offered(plain_python, MALLOC_ARENA_MAX="2")
    assert found.allocators == ("auto",)
    assert left(found)["allocator"] == "MALLOC_ARENA_MAX is set, which is kept"


def test_a_preload_that_cannot_be_loaded_fixes_nothing(plain_python: Path) -> None:
    found = offered(plain_python, LD_PRELOAD="/gone/libtcmalloc.so.4")
    assert found.allocators == offered(plain_python).allocators


def test_threads_wait_in_several_ways(plain_python: Path) -> None:
    found = offered(plain_python)
    assert found.runtimes[:3] == ("auto", "auto+active", "auto+passive")
    for name in ("gnu", "llvm", "intel"):
        assert (name in found.runtimes) is (f"{name}+active" in found.runtimes)
        assert f"{name}+passive" not in found.runtimes


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_WAIT_POLICY", "active"), ("KMP_BLOCKTIME", "5"), ("GOMP_SPINCOUNT", "9")],
)
def test_a_way_to_wait_that_is_set_stays(plain_python: Path, name: str, value: str) -> None:
    found = offered(plain_python, **{name: value})
    assert not [runtime for runtime in found.runtimes if "+" in runtime]
    assert left(found)["omp: how threads wait"] == f"{name}={value} is set and kept"
    asked = Request.of(env=((name, value),))
    assert offered(plain_python, asked=asked).runtimes == found.runtimes


def test_nobody_spins_away_a_quota(golden: Golden, plain_python: Path) -> None:
    machine = make_machine(packages=(4,), quota=1.5)
    found = read_offers(Request.of(str(plain_python)), clean_environment(), machine, PLAIN)
    assert not [runtime for runtime in found.runtimes if "+" in runtime]
    golden(left(found)["omp=+active"])


@pytest.mark.parametrize(
    ("mode", "with_torch", "without"),
    [
        (SystemMode.MADVISE, ("auto", "always", "never"), ("auto", "never")),
        (SystemMode.ALWAYS, ("auto", "always", "never"), ("auto", "never")),
        (SystemMode.NEVER, ("auto",), ("auto",)),
        (SystemMode.UNKNOWN, ("auto",), ("auto",)),
    ],
)
def test_huge_pages_are_tried_where_the_system_lets(
    mode: SystemMode, with_torch: tuple[str, ...], without: tuple[str, ...]
) -> None:
    assert huge_pages_to_try(mode, torch=True) == with_torch
    assert huge_pages_to_try(mode, torch=False) == without


def test_huge_pages_of_this_system(torch_python: Path, plain_python: Path) -> None:
    for python, torch in ((torch_python, True), (plain_python, False)):
        found = offered(python)
        assert found.huge_pages == huge_pages_to_try(system_mode(), torch=torch)
        assert ("thp" in left(found)) is (found.huge_pages == ("auto",))


def test_switches_need_a_library_that_reads_them(
    golden: Golden, torch_python: Path, plain_python: Path, tmp_path: Path
) -> None:
    def names(found: Offers) -> set[str]:
        assert {switch.name for switch in SWITCHES} == {s.name for s in found.switches} | (
            {switch.name for switch in SWITCHES} & left(found).keys()
        )
        return {switch.name for switch in found.switches}

    eager, compiled = tmp_path / "eager.py", tmp_path / "compiled.py"
    eager.write_text("import re, torch\nre.compile('x')\nmodel(x)\n")
    compiled.write_text("import torch\nmodel = torch.compile(model)\n")
    inductor = {
        "TORCHINDUCTOR_CPP_WRAPPER",
        "TORCHINDUCTOR_FREEZING",
        "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM",
    }
    onednn = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    assert names(offered(plain_python, str(compiled), processor=AMX)) == set()
    assert names(offered(torch_python, str(eager))) == {onednn}
    assert names(offered(torch_python, str(compiled))) == {onednn, *inductor}
    everything = offered(torch_python, str(compiled), processor=AMX)
    assert names(everything) == {switch.name for switch in SWITCHES}
    reasons = left(offered(torch_python, str(eager)))
    golden(reasons["TORCHINDUCTOR_FREEZING"])
    golden(reasons["ONEDNN_DEFAULT_FPMATH_MODE"])
    assert "no torch" in left(offered(plain_python))[onednn]


@pytest.mark.parametrize("name", ["ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"])
def test_a_switch_that_is_set_stays(torch_python: Path, name: str) -> None:
    found = offered(torch_python, processor=AMX, **{name: "STRICT"})
    assert left(found)["ONEDNN_DEFAULT_FPMATH_MODE"] == f"{name}=STRICT is set and kept"
    asked = Request.of(env=((name, "STRICT"),))
    assert offered(torch_python, processor=AMX, asked=asked).switches == found.switches


def test_what_is_given_is_not_tried(torch_python: Path) -> None:
    asked = Request.of(allocator="glibc", omp="none")
    found = offered(torch_python, asked=asked)
    assert (found.allocators, found.runtimes) == (("auto",), ("auto",))
    assert not [name for name in left(found) if name.startswith(("allocator", "omp"))]


def test_a_program_that_is_no_python_has_no_torch() -> None:
    found = read_offers(Request.of("/bin/true"), clean_environment(), MACHINE, AMX)
    assert found.switches == ()
    assert found.allocators[0] == "auto"


def test_a_program_that_is_not_there_is_said_to_be_so() -> None:
    with pytest.raises(ProgramNotFoundError, match="'/no/such' does not exist"):
        read_offers(Request.of("/no/such"), clean_environment(), MACHINE, PLAIN)


def test_the_runtime_that_torch_has_is_not_offered_in_its_own_place(
    tmp_path: Path, needs: Needs
) -> None:
    torch = find_spec("torch")
    needs(torch, "torch")
    assert torch.origin is not None
    python = made_up_prefix(tmp_path, "torch")  # torch may lie outside of this Python's own
    (site,) = tmp_path.glob("lib/*/site-packages")
    (site / "torch").symlink_to(Path(torch.origin).parent)
    runtime = program_runtime(str(tmp_path), str(python))
    assert runtime is not None
    request = Request.of(str(python))
    found = read_offers(request, clean_environment(), xlaunch.read_machine(), PLAIN)
    assert runtime not in found.runtimes
    assert "auto" in found.runtimes
