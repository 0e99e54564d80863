# SPDX-License-Identifier: Apache-2.0
"""Programs that are linked to musl, or statically: they run, and nothing of glibc's is put into them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launcher.cli.commands import ask, xlaunch
from tests.launcher.environment.made_up import library
from tests.libraries import find_library

from xlaunch.environment.elf import read_elf
from xlaunch.machine.sysfs import glibc_version

SOURCE = """\
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    const char *names[] = {"LD_PRELOAD", "GLIBC_TUNABLES", "OMP_NUM_THREADS"};
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof cpus, &cpus);
    printf("%d", CPU_COUNT(&cpus));
    for (int i = 0; i < 3; i++) printf(" %s", getenv(names[i]) ? getenv(names[i]) : "-");
    puts("");
}
"""
PRELOADED = """\
#include <unistd.h>
__attribute__((constructor)) static void start(void) { write(1, "preloaded ", 10); }
"""
PROBLEMS = {
    "musl": "linked to glibc; the program is linked to musl",
    "musl static": "the program is linked statically, and loads no library",
    "glibc static": "the program is linked statically, and loads no library",
}
LEFT_ALONE = {
    "musl": "the program is linked to musl, not to glibc",
    "musl static": "the program is linked statically",
    "glibc static": "the program is linked statically",
}
Compile = Callable[..., Path]


@pytest.fixture(scope="module")
def compile_with(
    tmp_path_factory: pytest.TempPathFactory, needs: Callable[[object, str], None]
) -> Compile:
    """Compile C source once with a compiler for another C library, or with gcc."""
    needs(glibc_version(), "a Python on glibc")

    @functools.cache
    def compile_it(compiler: str, source: str, *options: str, name: str = "program") -> Path:
        package = {"musl-gcc": "Debian: musl-tools", "gcc": "Debian: gcc"}[compiler]
        needs(shutil.which(compiler), f"{compiler} ({package})")
        directory = tmp_path_factory.mktemp("compiled")
        (directory / "source.c").write_text(source)
        subprocess.run([compiler, *options, "source.c", "-o", name], cwd=directory, check=True)
        return directory / name

    return compile_it


@pytest.fixture(params=list(PROBLEMS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def program(kind: str, compile_with: Compile) -> Path:
    """It prints the number of its CPUs, LD_PRELOAD, GLIBC_TUNABLES and OMP_NUM_THREADS."""
    compiler, _, static = kind.partition(" ")
    compiler = {"musl": "musl-gcc", "glibc": "gcc"}[compiler]
    return compile_with(compiler, SOURCE, *(["-static"] if static else []))


def test_it_runs_with_cores_and_threads_and_nothing_else(program: Path, kind: str):
    done = xlaunch("--ncores", "1", program)
    assert (done.code, done.out.split(b" ")[1:], done.err) == (0, [b"-", b"-", b"1\n"], "")
    explained = ask("--dry-run", "--explain", program).out.decode()
    assert f"  allocator: left alone; {LEFT_ALONE[kind]}\n" in explained


def test_a_library_for_glibc_is_refused_before_the_start(
    program: Path, kind: str, needs: Callable[[object, str], None]
):
    needs(find_library("gnu", None, os.environ), "libgomp.so.1 (Debian: libgomp1)")
    refused = ask("--omp", "gnu", program).refused()
    assert refused.startswith("--omp gnu: refused: ")
    assert refused.endswith(f"{PROBLEMS[kind]}; leave the option out, or name a library's path")
    named = library(program.with_name("libjemalloc.so.2"), needed=["libc.so.6"])
    refused = ask("--allocator", named, program).refused()
    assert refused == f"--allocator {named}: {PROBLEMS[kind]}"
    refused = ask("--allocator", "glibc-tuned", program).refused()
    assert refused.endswith(
        "glibc-tuned needs glibc 2.26 or newer, and the program does not run on it"
    )


def test_a_library_for_musl_is_preloaded_into_a_program_for_musl(compile_with: Compile):
    program = compile_with("musl-gcc", SOURCE)
    named = compile_with("musl-gcc", PRELOADED, "-shared", "-fPIC", name="libjemalloc.so.2")
    done = xlaunch("--ncores", "1", "--allocator", named, program)
    assert (done.code, done.out.split(b" ")[0]) == (0, b"preloaded")
    assert f"{named} was not tried: xlaunch's Python has another C library" in done.err


def test_a_library_for_musl_is_refused_for_python(compile_with: Compile):
    named = compile_with("musl-gcc", PRELOADED, "-shared", "-fPIC", name="libjemalloc.so.2")
    refused = ask("--allocator", named, "python3", "-c", "pass").refused()
    assert refused == f"--allocator {named}: linked to musl; the program is linked to glibc"


def test_the_loader_and_the_c_library_are_read_from_the_file(compile_with: Compile):
    loader = read_elf(str(compile_with("musl-gcc", SOURCE))).loader or ""
    assert loader.startswith("/lib/ld-musl-")
    static = read_elf(str(compile_with("musl-gcc", SOURCE, "-static")))
    assert (static.static, static.loader) == (True, None)
    found = {
        "musl": read_elf(str(compile_with("musl-gcc", SOURCE))).c_library,
        "glibc": read_elf(str(compile_with("gcc", SOURCE))).c_library,
        "neither": read_elf(str(compile_with("gcc", SOURCE, "-static-pie"))).c_library,
        "library": read_elf(str(compile_with("gcc", PRELOADED, "-shared", "-fPIC"))).c_library,
    }
    assert found == {"musl": "musl", "glibc": "glibc", "neither": None, "library": "glibc"}
