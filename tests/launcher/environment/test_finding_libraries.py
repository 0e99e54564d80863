# SPDX-License-Identifier: Apache-2.0
"""Which files are found for a library, in which order, and why some are refused."""

from __future__ import annotations

import os
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.environment.made_up import AARCH64, X86_64, elf_bytes, environment, library
from tests.libraries import find_library

from xlaunch.environment.elf import read_program
from xlaunch.environment.libraries import NAMES, Library, find_libraries, kind_of, places
from xlaunch.errors import UsageError

OTHER = AARCH64 if os.uname().machine == "x86_64" else X86_64


@pytest.fixture(autouse=True)
def directories_that_only_we_can_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system without any library."""
    path = tmp_path / "root"
    (path / "usr/lib").mkdir(parents=True)
    return path


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    path = tmp_path / "prefix"
    environment(path)
    return path


def find(name: str, prefix: Path | None, root: Path, **variables: str) -> list[Library]:
    place = None if prefix is None else str(prefix)
    loads = read_program(None if place is None else f"{place}/bin/python")
    return list(find_libraries((name,), place, variables, loads=loads, root=str(root)))


FILES = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "tcmalloc": ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4", "libtcmalloc_minimal.so.4.5.10", "libtcmalloc.so"),
    "mimalloc": ("libmimalloc.so.2", "libmimalloc.so.2.0", "libmimalloc.so.3"),
    "intel": ("libiomp5.so",),
    "llvm": ("libomp.so.5", "libomp.so"),
    "gnu": ("libgomp.so.1", "libgomp.so.1.0.0"),
    None: (
        "libjemalloc.so.1", "libjemalloc_pic.a", "libtcmalloc_minimal_debug.so.4",
        "libtcmalloc_and_profiler.so.4", "libmimalloc-secure.so.2", "libiomp5_db.so",
        "libompd.so", "libomptarget.so", "libgomp-plugin-nvptx.so.1", "libgomp.spec", "xlibomp.so",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_names_that_distributions_use(root: Path, name: str | None):
    for file in FILES[name]:
        path = library(root / "usr/lib/x86_64-linux-gnu" / file)
        found = find_libraries(NAMES, None, {}, loads=None, root=str(root))
        assert kind_of(file) == name
        if name is None:
            assert found == ()
        else:
            version = found[0].version
            assert found == (Library(name, str(path), version, "a system directory", None),)
        path.unlink()


@pytest.mark.parametrize(
    "directory",
    [
        "usr/local/lib", "usr/local/lib/x86_64-linux-gnu", "usr/local/lib64", "usr/lib64",
        "usr/lib/aarch64-linux-gnu", "usr/lib/riscv64-linux-gnu", "lib/arm-linux-gnueabihf", "lib",
        "usr/lib/x86_64-linux-musl", "usr/lib/llvm-14/lib", "opt/intel/oneapi/compiler/latest/lib",
    ],
)  # fmt: skip
def test_system_directories(root: Path, directory: str):
    path = library(root / directory / "libomp.so.5")
    assert [found.path for found in find("llvm", None, root)] == [str(path)]


def test_named_directories_are_searched_instead_of_the_system_s(root: Path, tmp_path: Path):
    library(root / "usr/lib/libjemalloc.so.2")
    assert find("jemalloc", None, root)
    named = library(tmp_path / "named" / "libjemalloc.so.2")
    directories = f"relative:{named.parent}"
    found = find("jemalloc", None, root, XLAUNCH_SYSTEM_LIBRARY_DIRS=directories)
    assert [it.path for it in found] == [str(named)]
    assert find("jemalloc", None, root, XLAUNCH_SYSTEM_LIBRARY_DIRS="") == []


def test_order_of_places(tmp_path: Path, root: Path, prefix: Path):
    site = next(prefix.glob("lib/python*/site-packages"))
    expected = [
        ("the program's prefix", prefix / "lib"),
        ("a package's lib directory", site / "torch/lib"),
        ("a wheel's .libs", site / "some.libs"),
        ("conda", tmp_path / "conda/lib"),
        ("what the program's environment was made from", tmp_path / "prefix-base/lib"),
        ("LD_LIBRARY_PATH", tmp_path / "first"),
        ("LD_LIBRARY_PATH", tmp_path / "second"),
        ("a system directory", root / "usr/local/lib"),
        ("a system directory", root / "usr/lib"),
    ]
    for _, directory in expected:
        library(directory / "libomp.so.5")
    found = find(
        "llvm",
        prefix,
        root,
        CONDA_PREFIX=str(tmp_path / "conda"),
        LD_LIBRARY_PATH=f":{tmp_path}/first:relative;{tmp_path}/second:",
    )
    assert [(one.origin, Path(one.path).parent) for one in found] == expected


def test_library_that_lies_beside_the_packages_of_a_pth_file(
    tmp_path: Path, root: Path, prefix: Path
):
    other = environment(tmp_path / "other", "intel_openmp-2026.2.0")
    (tmp_path / "plain").mkdir()
    library(tmp_path / "libiomp5.so")  # beside `plain`, which is no site-packages
    path = library(tmp_path / "other/lib/libiomp5.so")
    site = next(prefix.glob("lib/python*/site-packages"))
    (site / "other.pth").write_text(f"{other}\n{tmp_path}/plain\n")
    assert find("intel", prefix, root) == [
        Library("intel", str(path), "2026.2.0", "the prefix of some of its packages", None)
    ]


def test_directories_of_the_loader_s_configuration_come_before_its_own(root: Path):
    configured = library(root / "somewhere/libomp.so.5")
    own = library(root / "usr/lib/libomp.so.5")
    (root / "etc/ld.so.conf.d").mkdir(parents=True)
    (root / "etc/ld.so.conf.d/some.conf").write_text("# a comment\n/somewhere\n/nowhere\n")
    (root / "etc/ld.so.conf.d/some.conf.old").write_text("/usr/lib\n")
    assert [found.path for found in find("llvm", None, root)] == [str(configured), str(own)]


def test_prefix_of_conda_s_is_told_as_such(root: Path, prefix: Path):
    (prefix / "conda-meta").mkdir()
    library(prefix / "lib/libiomp5.so")
    assert [one.origin for one in find("intel", prefix, root)] == ["conda"]


def test_entry_of_ld_library_path_is_never_relative(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
):
    library(tmp_path / "here/libomp.so.5")
    monkeypatch.chdir(tmp_path / "here")
    assert find("llvm", None, root, LD_LIBRARY_PATH=":.:../here") == []


def test_links_are_resolved_and_the_same_file_is_told_once(root: Path, prefix: Path):
    path = library(root / "usr/lib/libtcmalloc_minimal.so.4.5.10")
    for link in ("libtcmalloc_minimal.so.4", "libtcmalloc.so"):
        (path.parent / link).symlink_to(path.name)
    (prefix / "lib/libtcmalloc.so.4").symlink_to(path)
    found = [(one.path, one.origin) for one in find("tcmalloc", prefix, root)]
    assert found == [(str(path), "the program's prefix")]


def test_link_that_leads_nowhere_is_no_library(root: Path):
    (root / "usr/lib/libomp.so.5").symlink_to("gone")
    assert find("llvm", None, root) == []


def test_tcmalloc_without_its_profiler_comes_first(root: Path):
    for name in ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4"):
        library(root / "usr/lib" / name)
    assert find("tcmalloc", None, root)[0].path.endswith("libtcmalloc_minimal.so.4")


def test_names_keep_the_order_they_are_asked_in(root: Path):
    for file in ("libomp.so.5", "libjemalloc.so.2", "libgomp.so.1"):
        library(root / "usr/lib" / file)
    for names in (("gnu", "llvm", "jemalloc"), ("jemalloc", "gnu", "llvm")):
        found = find_libraries(names, None, {}, loads=None, root=str(root))
        assert [one.name for one in found] == list(names)


def test_name_that_is_none(root: Path):
    with pytest.raises(UsageError, match=r"unknown library 'hoard'.*jemalloc"):
        find("hoard", None, root)


# Refused


def refusal(path: Path, root: Path, name: str = "llvm", prefix: Path | None = None) -> str:
    (found,) = find(name, prefix, root)
    assert found.path == str(path)
    assert find_library(name, None if prefix is None else str(prefix), {}, root=str(root)) is None
    return found.refusal or ""


def test_file_that_python_cannot_load(golden: Golden, root: Path):
    path = root / "usr/lib/libomp.so.5"
    said = []
    for content in (
        elf_bytes(machine=OTHER), elf_bytes(bits=32), elf_bytes(order=">"), elf_bytes(kind=2), b"",
        b"INPUT(libomp.so.5)", elf_bytes()[:90],
    ):  # fmt: skip
        path.write_bytes(content)
        said.append(refusal(path, root))
    path.unlink()
    path.mkdir()
    golden(said, refusal(path, root), hide=r"\d\d-bit [\w-]+( \([^)]*\))?")


def test_the_machine_is_the_interpreter_s_and_not_ours(root: Path, tmp_path: Path):
    foreign = library(root / "usr/lib/one-linux-gnu/libomp.so.5", machine=OTHER)
    ours = library(root / "usr/lib/two-linux-gnu/libomp.so.5")
    interpreter = tmp_path / "interpreter"
    interpreter.write_bytes(elf_bytes(machine=OTHER, needed=["libc.so.6"]))
    loads = read_program(str(interpreter))
    found = find_libraries(("llvm",), None, {}, loads=loads, root=str(root))
    assert [(one.path, one.refusal is None) for one in found] == [
        (str(foreign), True),
        (str(ours), False),
    ]
    prefix = tmp_path / "foreign"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/python").symlink_to(interpreter)
    best = find_library("llvm", str(prefix), {}, root=str(root))
    assert best is not None
    assert best.path == str(foreign)


def test_interpreter_that_is_a_script_is_taken_to_be_like_ours(root: Path, tmp_path: Path):
    shim = tmp_path / "python"
    shim.write_text("#!/bin/sh\nexec python\n")
    library(root / "usr/lib/libomp.so.5")
    assert find_library("llvm", None, {}, interpreter=str(shim), root=str(root)) is not None


@pytest.mark.parametrize("name", ["with space", "with:colon", "$LIB"])
def test_path_that_ld_preload_cannot_hold(golden: Golden, root: Path, tmp_path: Path, name: str):
    path = library(tmp_path / name / "lib/libomp.so.5")
    (root / "usr/lib/libomp.so.5").symlink_to(path)
    golden(refusal(path, root))


def test_private_copy_of_a_wheel_is_refused_by_its_soname(root: Path, prefix: Path):
    site = next(prefix.glob("lib/python*/site-packages"))
    path = library(site / "scikit_learn.libs/libgomp-e985bcbb.so.1.0.0")
    assert "private copy" in refusal(path, root, "gnu", prefix)
    # torch's wheels carry theirs under the plain name, which every library then finds.
    plain = library(site / "torch/lib/libgomp.so.1")
    assert [one.path for one in find("gnu", prefix, root)] == [str(plain), str(path)]


def test_library_that_another_user_can_change_is_passed_over(
    golden: Golden, root: Path, prefix: Path
):
    unsafe = library(prefix / "lib/libomp.so.5")
    safe = library(root / "usr/lib/libomp.so.5")
    unsafe.parent.chmod(0o777)
    first, second = find("llvm", prefix, root)
    assert (first.path, first.refusal) == (str(safe), None)
    golden(second.refusal)
    unsafe.parent.chmod(0o755)
    assert find("llvm", prefix, root)[0].path == str(unsafe)


def test_directory_of_a_link_must_be_safe_as_well(root: Path, tmp_path: Path):
    path = library(tmp_path / "safe/libomp.so.5")
    (root / "usr/lib/libomp.so.5").symlink_to(path)
    (root / "usr/lib").chmod(0o777)
    assert refusal(path, root) == f"every user may write {root}/usr/lib"


# Versions


def version(name: str, root: Path, prefix: Path | None = None) -> str | None:
    (found,) = find(name, prefix, root)
    return found.version


JEMALLOC_S = b"\0005.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c\0"


@pytest.mark.parametrize(
    ("name", "file", "text", "found"),
    [
        ("jemalloc", "libjemalloc.so.2", JEMALLOC_S, "5.3.0"),
        ("tcmalloc", "libtcmalloc_minimal.so.4.5.10", b"\0gperftools 2.10\0", "2.10"),
        ("mimalloc", "libmimalloc.so.2.0", b"", "2.0"),
        ("llvm", "llvm-18/lib/libomp.so.5", b"", "18"),
        ("gnu", "libgomp.so.1", b"", None),
    ],
)
def test_version_in_the_file_or_its_path(
    root: Path, name: str, file: str, text: bytes, found: str | None
):
    library(root / "usr/lib" / file, text=text)
    assert version(name, root) == found


def test_version_of_the_package_that_it_came_in(root: Path, prefix: Path):
    library(prefix / "lib/libiomp5.so")
    assert version("intel", root, prefix) is None
    site = next(prefix.glob("lib/python*/site-packages"))
    (site / "intel_openmp-2026.2.0.dist-info").mkdir()
    (site / "intel_openmp_extra-9.dist-info").mkdir()
    assert version("intel", root, prefix) == "2026.2.0"


def test_version_of_conda_s_package(root: Path, prefix: Path):
    (prefix / "conda-meta").mkdir()
    (prefix / "conda-meta/llvm-openmp-20.1.8-h4922eb0_1.json").write_text("{}")
    (prefix / "conda-meta/llvm-openmp-devel-9.9-0.json").write_text("{}")
    library(prefix / "lib/libomp.so")
    assert version("llvm", root, prefix) == "20.1.8"


# What is really there


@pytest.mark.parametrize("name", sorted({*NAMES} - {"intel"}))
def test_real_library_of_the_system_is_found(name: str, needs):
    found = find_library(name, None, {})
    needs(found, f"{name} of Debian")
    assert os.path.realpath(found.path) == found.path
    assert found.version


def test_real_runtime_that_pip_installed_is_found(needs):
    found = find_library("intel", sys.prefix, {})
    needs(found, "pip's intel-openmp")
    package = distribution("intel-openmp")
    files = {os.path.realpath(package.locate_file(file)) for file in package.files or ()}
    assert found.path in files
    assert found.version == package.version


def test_places_exist_and_are_told_once():
    told = [place.place for place in places("/usr", {"LD_LIBRARY_PATH": "/usr/lib:/absent"})]
    assert len({os.path.realpath(directory) for directory in told}) == len(told)
    assert all(map(os.path.isdir, told))
