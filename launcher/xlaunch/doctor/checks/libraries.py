# SPDX-License-Identifier: Apache-2.0
"""Allocators and OpenMP runtimes: which would be chosen, and whether two runtimes come together."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

from xlaunch.children import script, without_current_directory
from xlaunch.doctor.checks.findings import Check, Facts, Finding, advice, ok, serious, warning
from xlaunch.environment.allocators import GLIBC_VARIABLES
from xlaunch.environment.elf import read_program
from xlaunch.environment.libraries import (
    ALLOCATORS,
    OPENMP,
    find_libraries,
    how_to_install,
    kind_of,
)
from xlaunch.environment.openmp import binding_variable, program_runtime
from xlaunch.environment.preload import judge, other_allocator, preloaded_of, prove_entries
from xlaunch.environment.program import resolve_program
from xlaunch.errors import UsageError
from xlaunch.planning.request import ProgramRequest

CHILD_TIMEOUT_S = 300.0
MODULES = {"scikit_learn": "sklearn"}
"""The modules of distributions with another name."""

OPENMP_FORMS = (
    (
        "OMP_NUM_THREADS",
        re.compile(r"\+?0*[1-9]\d*(\s*,\s*\+?0*[1-9]\d*)*"),
        "the runtime prints a warning in each process and starts a thread for each CPU",
    ),
    (
        "OMP_PLACES",
        re.compile(
            r"(threads|cores|ll_caches|numa_domains|sockets)(\s*\(\s*\d+\s*\))?"
            r"|!?(\{[^{}]+\}|\d+)[-:\d\s]*(,\s*!?(\{[^{}]+\}|\d+)[-:\d\s]*)*"
        ),
        "the runtime prints a warning in each process and ignores it: no thread is bound",
    ),
    (
        "KMP_AFFINITY",
        re.compile(
            r"(^|,|(no)?(verbose|warnings|respect|reset|duplicates)|none|disabled|balanced|compact|scatter"
            r"|explicit|logical|physical|gran(ularity)?=\w+|proclist=(\[[^]]*\]|[\d,{}-]+)|\d|\s)*"
        ),
        "Intel's and LLVM's runtimes print a warning in each process and bind no thread",
    ),
)
"""Variables with the forms of their values, and what happens to others: OpenMP 5.2, chapter 21; the
OpenMP runtime of LLVM, KMP_AFFINITY."""


def show_allocator(facts: Facts) -> Iterator[Finding]:
    """Which allocator `--allocator auto` would use."""
    assert facts.interpreter is not None
    users = prove_entries(facts.environment, facts.interpreter)
    for entry, refusal in users.refused:
        yield warning(
            f"LD_PRELOAD names {entry}, which cannot be loaded",
            f"every program prints a line about it, and runs without it: {refusal}",
            "unset LD_PRELOAD",
        )
    own = other_allocator({**facts.environment, "LD_PRELOAD": users.value})
    if own is not None:
        yield ok(f"allocator: {own}, by LD_PRELOAD")
        return
    tuned = [
        f"{variable}={value}"
        for variable in GLIBC_VARIABLES
        if (value := facts.environment.get(variable))
    ]
    if tuned:
        yield ok(f"allocator: glibc's, with {', '.join(tuned)}, kept")
        return
    loads = read_program(facts.interpreter)
    libraries = find_libraries(ALLOCATORS, facts.prefix, facts.environment, loads=loads)
    chosen = [entry.library for entry in judge(libraries, facts.interpreter)[0] if entry.chosen]
    others = [f"{library.name} {library.version or ''}".strip() for library in chosen]
    if any(library.name == "tcmalloc" for library in chosen):
        yield ok(f"allocators: {', '.join(others)}; xlaunch preloads tcmalloc")
        return
    if loads is not None and loads.c_library != "glibc":
        yield ok("allocator: the C library's, which xlaunch cannot tune")
        return
    yield advice(
        "tcmalloc is not installed, or cannot be preloaded"
        + (f"; there is {', '.join(others)}" if others else ""),
        "xlaunch tunes glibc's allocator instead. With tcmalloc, examples/infer.py ran at 1.09 and "
        "examples/train.py at 1.21 times the rate under glibc's defaults (docs/measurements.md)",
        how_to_install("tcmalloc").partition(",")[0],
    )


def show_runtimes(facts: Facts) -> Iterator[Finding]:
    """The OpenMP runtime that torch is linked to, and copies that other packages carry."""
    assert facts.interpreter is not None
    assert facts.prefix is not None
    own = program_runtime(facts.prefix, facts.interpreter)
    loads = read_program(facts.interpreter)
    libraries = find_libraries(OPENMP, facts.prefix, facts.environment, loads=loads)
    carried = sorted(
        {
            os.path.basename(os.path.dirname(library.path)).removesuffix(".libs")
            for library in libraries
            if ".libs/" in library.path
        }
    )
    usable = [entry.library for entry in judge(libraries, facts.interpreter)[0] if entry.chosen]
    names = ", ".join(f"{library.name} {library.version or ''}".strip() for library in usable)
    linked = f"torch is linked to {own}" if own else "torch is not installed"
    able = f"; --omp can take {names}" if names else ""
    if not own or not carried or facts.imports:
        yield ok(f"OpenMP: {linked}{able}")
        return
    yield advice(
        f"OpenMP: {linked}, and {', '.join(carried)} "
        f"{'carries a runtime' if len(carried) == 1 else 'carry runtimes'} of {'its' if len(carried) == 1 else 'their'} own",
        "imported together they make two teams of threads for the same CPUs. With --import the modules "
        "that your program imports are tried in a child",
        f"xlaunch doctor --import torch{''.join(f' --import {MODULES.get(name, name)}' for name in carried)}",
    )


def show_variables(facts: Facts) -> Iterator[Finding]:
    """Values of OpenMP's variables that no runtime understands, or that leave CPUs idle."""
    for name, ignored in _invalid(facts).items():
        value = facts.environment[name]
        yield warning(f"{name}={value} is not a value of that variable", ignored, f"unset {name}")
    limits = facts.machine.limits
    cpus = min(len(limits.allowed_cpus), int(limits.cpu_quota or len(limits.allowed_cpus)))
    if facts.environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip() == "1" and cpus > 1:
        yield warning(
            f"OMP_NUM_THREADS=1, and {cpus} CPUs may be used",
            "torch computes with one thread; torchrun and many job scripts set it for programs of several "
            "processes",
            "unset OMP_NUM_THREADS",
        )


def _invalid(facts: Facts) -> dict[str, str]:
    """The variables whose values no runtime understands, and what happens to them."""
    return {
        name: ignored
        for name, form, ignored in OPENMP_FORMS
        if (value := facts.environment.get(name)) is not None
        and not form.fullmatch(value.strip().lower())
    }


def show_binding(facts: Facts) -> Iterator[Finding]:
    """Whether an OpenMP runtime would bind the main thread of programs."""
    assert facts.interpreter is not None
    request = ProgramRequest((facts.interpreter,))
    program = resolve_program(request, facts.environment)
    users = prove_entries(facts.environment, facts.interpreter)
    binding = binding_variable({**facts.environment, "LD_PRELOAD": users.value}, program)
    name = "" if binding is None else binding.assignment.partition("=")[0]
    if binding is not None and name not in _invalid(facts):
        yield warning(
            f"{binding.assignment} binds the main thread of programs to one place, with {binding.runtime}",
            "every process and data loader worker that a program starts inherits that mask "
            "(pytorch issues 99625, 91989, 101850)",
            f"unset {name}",
        )


def show_two_runtimes(facts: Facts) -> Iterator[Finding]:
    """Import torch and the modules in a child, and see which OpenMP runtimes are mapped.

    Raises `UsageError` for a module that does not exist.
    """
    names = ("torch", *[name for name in facts.imports if name != "torch"])
    shown = ", ".join(names)
    told = _import(facts, names)
    if isinstance(told, str):
        yield serious(
            f"importing {shown} together ends the process: {told}",
            "Intel's and LLVM's runtimes abort a process when they find another one",
            f"{facts.interpreter} -c 'import {shown}'",
        )
        return
    for name, (absent, reason) in told["failed"].items():
        if absent and name in facts.imports:
            top, hint = name.partition(".")[0], ""
            if os.path.isfile(f"{top}.py") or os.path.isdir(top):  # which is not searched
                hint = f"; {top} in this directory is found if PYTHONPATH names the directory by its full path"
            raise UsageError(
                f"--import {name}: {facts.interpreter} has no module of that name{hint}"
            )
        if not absent:
            yield warning(
                f"{name} cannot be imported: {' '.join(reason.split())[:200]}",
                "its OpenMP runtime, if it has one, is not among those below",
                f"{facts.interpreter} -c 'import {name}'",
            )
    runtimes = [path for path in told["paths"] if kind_of(path) in OPENMP]
    first = preloaded_of(facts.environment, OPENMP)
    listed = ", ".join(runtimes) or "none"
    if len(runtimes) < 2:
        yield ok(f"{shown}: one OpenMP runtime at most: {listed}")
    elif first:
        yield ok(f"{shown}: {first[0]} is preloaded and takes the others' place")
    else:
        yield serious(
            f"{shown}: {len(runtimes)} OpenMP runtimes in one process",
            f"{listed}. Each has a team of its own for the same CPUs: threads wait for each other, and "
            "counts and affinity reach one team only (docs/decisions.md, --omp gnu)",
            "xlaunch --omp gnu PROGRAM",
        )


def _import(facts: Facts, names: tuple[str, ...]) -> dict[str, Any] | str:
    """The child's report, or how it ended."""
    assert facts.interpreter is not None
    try:
        done = subprocess.run(
            (facts.interpreter, script("import_modules"), *names),
            env=without_current_directory(facts.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {CHILD_TIMEOUT_S:g} s"
    except OSError as error:
        raise UsageError(f"{facts.interpreter} cannot be started: {error.strerror}") from None
    try:
        told: dict[str, Any] = json.loads(
            done.stdout.decode(errors="surrogateescape").rpartition("\n")[2]
        )
        return told
    except ValueError:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        how = (
            f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        )
        return f"{how}{f', {said[0][:200]}' if said else ''}"


def _can_load(facts: Facts) -> bool:
    """The libraries are this system's, also when another machine is checked."""
    return facts.live and facts.prefix is not None


CHECKS = (
    Check("allocator", show_allocator, _can_load),
    Check("openmp-runtime", show_runtimes, _can_load),
    Check("openmp-variables", show_variables),
    Check("openmp-binding", show_binding, _can_load),
    Check(
        "two-openmp-runtimes",
        show_two_runtimes,
        lambda facts: bool(facts.imports) and _can_load(facts),
    ),
)
