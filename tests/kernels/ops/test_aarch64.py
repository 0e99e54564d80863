# SPDX-License-Identifier: Apache-2.0
"""The library cross-compiled for aarch64, run under QEMU on CPUs with and without bf16."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.kernels.recorded import cases, driver

from xruntime import native

pytestmark = pytest.mark.long

COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
WITH_BF16, WITHOUT_BF16 = "max", "cortex-a57"

Needs = Callable[[object, str], None]


class Arm(NamedTuple):
    """What is built for aarch64, and the command that runs it on a CPU."""

    library: Path
    program: Path
    cases: Path
    case_count: int
    system_root: Path
    directory: Path

    def on(self, cpu: str) -> list[str]:
        return [EMULATOR, "-cpu", cpu, "-L", str(self.system_root)]


@pytest.fixture(scope="module")
def arm(needs: Needs, tmp_path_factory: pytest.TempPathFactory) -> Arm:
    needs(shutil.which("cmake"), "cmake")
    needs(shutil.which(COMPILER), f"{COMPILER} (Debian: g++-aarch64-linux-gnu)")
    needs(shutil.which(EMULATOR), f"{EMULATOR} (Debian: qemu-user)")
    directory = tmp_path_factory.mktemp("aarch64")
    build = directory / "build"
    driver.run_checked(
        *("cmake", "-S", driver.KERNELS, "-B", build, "-DXKERNELS=ON", "-DCMAKE_SYSTEM_NAME=Linux"),
        *("-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={COMPILER}"),
        "-DCMAKE_CXX_FLAGS=-Werror",
    )
    driver.run_checked("cmake", "--build", build, "--parallel", "2")
    library = build / "libxkernels.so"
    libc = Path(driver.run_checked(COMPILER, "-print-file-name=libc.so.6").strip()).resolve()
    return Arm(
        library=library,
        program=driver.compile_driver(COMPILER, library, directory),
        cases=directory / "cases",
        case_count=cases.write_cases(directory / "cases"),
        system_root=libc.parents[1],
        directory=directory,
    )


@pytest.fixture(scope="module")
def with_bf16(arm: Arm) -> dict[str, str]:
    """The checksums of the best instruction set."""
    done = driver.run_driver(arm.program, arm.cases, "bf16", under=arm.on(WITH_BF16))
    return driver.checksums(done, "bf16")


def test_every_isa_computes_the_recorded_results_and_the_same_bits(
    arm: Arm, with_bf16: dict[str, str]
) -> None:
    done = driver.run_driver(arm.program, arm.cases, "base", under=arm.on(WITHOUT_BF16))
    found = driver.checksums(done, "base")
    assert len(found) == len(with_bf16) == arm.case_count
    assert driver.on_every_isa(found) == driver.on_every_isa(with_bf16)


def test_the_bits_are_those_of_this_machine(
    arm: Arm, with_bf16: dict[str, str], built_library: Path, tmp_path: Path, needs: Needs
) -> None:
    compiler = shutil.which("g++")
    needs(compiler, "g++")
    isa = native.supported_isas()[-1]
    program = driver.compile_driver(str(compiler), built_library, tmp_path)
    here = driver.checksums(driver.run_driver(program, arm.cases, isa), isa)
    assert driver.on_every_isa(with_bf16) == driver.on_every_isa(here)


@pytest.mark.parametrize(("cpu", "best"), [(WITH_BF16, "bf16"), (WITHOUT_BF16, "base")])
def test_the_best_isa_of_the_cpu_is_chosen(arm: Arm, cpu: str, best: str) -> None:
    done = driver.run_driver(arm.program, Path("/dev/null"), "", under=arm.on(cpu))
    supported = "base,bf16" if best == "bf16" else "base"
    assert done.stdout == f"instruction set {best} of {supported}\n", done.stderr


def test_an_isa_that_the_cpu_lacks_is_refused(arm: Arm) -> None:
    done = driver.run_driver(arm.program, arm.cases, "bf16", under=arm.on(WITHOUT_BF16))
    assert done.returncode == 1
    assert done.stderr == "no instruction set; supported: base\n"


def test_only_the_interface_is_exported(arm: Arm, needs: Needs) -> None:
    needs(shutil.which("aarch64-linux-gnu-nm"), "aarch64-linux-gnu-nm (binutils)")
    names = driver.run_checked(
        *("aarch64-linux-gnu-nm", "--dynamic", "--extern-only", "--defined-only"),
        *("--format=posix", arm.library),
    )
    exported = {line.split()[0] for line in names.splitlines()}
    headers = (driver.KERNELS / "include" / "xkernels").glob("*.h")
    declared = {
        name
        for header in headers
        for name in re.findall(r"^XK_API [^;(]*?(xk_\w+)\(", header.read_text(), re.MULTILINE)
    }
    assert exported == declared


def test_the_mailbox_hands_over_wakes_and_times_out(arm: Arm) -> None:
    program = arm.directory / "mailbox"
    driver.run_checked(
        *(COMPILER, "-std=c++17", "-O1", "-pthread", "-I", driver.KERNELS / "include"),
        *(driver.SOURCES.parent / "mailbox.cpp", arm.library, "-ldl", "-o", program),
        f"-Wl,-rpath,{arm.library.parent}",
    )
    for words, answer in (
        ("handoffs 2 2000 0 0", "4000 right of 4000"),
        ("handoffs 2 2000 20 20", "4000 right of 4000"),
        ("races 100 2 0", "100 rounds, all of "),
        ("timeouts", "12 timeouts"),
        ("signals", "interrupted 3 times"),
        ("calls", "1 wake"),
    ):
        printed = driver.run_checked(*arm.on(WITH_BF16), program, *words.split())
        assert printed.startswith(answer)
