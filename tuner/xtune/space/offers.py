# SPDX-License-Identifier: Apache-2.0
"""The values available for one program: allocators, OpenMP runtimes, huge pages, library switches.

Each value is resolved as for a launch, without starting the program. Values that xlaunch refuses, or
that give the same plan as an earlier value, are left out with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from xlaunch.environment.allocators import GLIBC_VARIABLES
from xlaunch.environment.allocators import PROFILES as ALLOCATOR_PROFILES
from xlaunch.environment.libraries import OPENMP
from xlaunch.environment.openmp import program_runtime
from xlaunch.environment.preload import other_allocator, prove_entries, prover_of
from xlaunch.environment.program import PYTHON_SUFFIXES, resolve_program
from xlaunch.environment.variables import PRELOAD, split_inherited
from xlaunch.errors import XLaunchError
from xlaunch.files import open_input
from xlaunch.machine.limits import SystemMode, system_mode
from xlaunch.machine.topology import Machine
from xlaunch.planning import Request
from xlaunch.planning.request import HugePages
from xtune.space.identities import Processor
from xtune.space.launch_options import ACTIVE, ALLOCATOR, OMP, PASSIVE, THP, WAITING_VARIABLES
from xtune.space.parameters import Configuration, Parameter, Target
from xtune.space.resolution import Resolver
from xtune.space.spaces import Space

MAX_SCRIPT_BYTES = 1 << 22
"""Only this much of a script is searched."""


class LeftOut(NamedTuple):
    """A parameter, or one value of it, that is not searched."""

    name: str
    """**Ex.:** ``"smt"``, ``"allocator=tcmalloc"``."""
    reason: str


class Switch(NamedTuple):
    """A variable that changes how fast a library computes."""

    name: str
    values: tuple[str, ...]
    """Besides `UNSET`."""
    changes_results: bool
    needs: str
    """``torch``: installed with the program; ``compile``: the script calls torch.compile or a module's
    compile; ``bf16``: torch, and a processor with fast bf16."""
    reason: str
    also: tuple[str, ...] = ()
    """Other names of the variable."""


SWITCHES = (
    # oneDNN developer guide, Primitive Cache; pytorch issues 98688 and 29893.
    Switch(
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY", ("16384",), False, "torch",
        "with more than 1,024 shapes, oneDNN creates primitives again and again",
        ("DNNL_PRIMITIVE_CACHE_CAPACITY",),
    ),
    # torch/_inductor/config.py: cpp_wrapper, freezing, max_autotune_gemm.
    Switch(
        "TORCHINDUCTOR_CPP_WRAPPER", ("1",), False, "compile",
        "compiled modules are called from C++: less time in Python, without the GIL",
    ),
    Switch(
        "TORCHINDUCTOR_FREEZING", ("1",), True, "compile",
        "weights become constants of the compiled code; folding them changes rounding",
    ),
    Switch(
        "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM", ("1",), True, "compile",
        "matrix products in Inductor's own C++, which sums in another order",
    ),
    # oneDNN developer guide, Primitive Attributes: floating-point math mode.
    Switch(
        "ONEDNN_DEFAULT_FPMATH_MODE", ("BF16",), True, "bf16",
        "fp32 operations are computed in bf16, with 8 bits of mantissa",
        ("DNNL_DEFAULT_FPMATH_MODE",),
    ),
)  # fmt: skip
"""Int8 has no such switch: the program itself must be quantized."""


class Offers(NamedTuple):
    """The available values, the default first. A single value leaves no choice."""

    allocators: tuple[str, ...] = ("auto",)
    runtimes: tuple[str, ...] = ("auto",)
    """OpenMP profiles, with ``+active`` and ``+passive`` for how their threads wait."""
    huge_pages: tuple[str, ...] = ("auto",)
    switches: tuple[Switch, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def read_offers(
    request: Request, environment: Mapping[str, str], machine: Machine, processor: Processor
) -> Offers:
    """The values available for the program of `request` under `environment`.

    Parameters that the user has fixed by an option or a variable are left out. Raises what xlaunch
    raises for a missing program or an impossible request.
    """
    inherited = split_inherited(environment).users_own
    variables = {**inherited, **dict(request.program.env)}
    program = resolve_program(request.program, inherited)
    has_torch = program.prefix is not None and program.installed.has("torch")
    left_out: list[LeftOut] = []
    # Parameters in --env are still {name} here, which does not affect finding libraries.
    bare = Resolver(Space([]), request, environment, machine)
    whole = bare.resolve(Configuration({})).plan

    def kept(name: str, values: Iterable[str]) -> tuple[str, ...]:
        listed = tuple(values)
        space = Space([Parameter(name, listed, listed[0], Target.OPTION)])
        return _different(Resolver(space, request, environment, machine), name, listed, left_out)

    allocators: tuple[str, ...] = ("auto",)
    users = prove_entries(variables, prover_of(bare.program)).value
    preload = other_allocator({PRELOAD: users})
    if preload is not None:
        left_out.append(LeftOut(ALLOCATOR, f"LD_PRELOAD names {preload}, which is kept"))
    elif tuned := [name for name in GLIBC_VARIABLES if variables.get(name)]:
        left_out.append(LeftOut(ALLOCATOR, f"{', '.join(tuned)} is set, which is kept"))
    elif request.program.allocator == "auto":
        allocators = kept(ALLOCATOR, ("auto", *ALLOCATOR_PROFILES))
    runtimes: tuple[str, ...] = ("auto",)
    if request.program.omp == "auto":
        waits = _waiting(variables, quota=whole.cpu_quota, left_out=left_out)
        runtimes = kept(OMP, _runtimes(program_runtime(program.prefix, program.interpreter), waits))
    huge_pages: tuple[str, ...] = ("auto",)
    if request.program.thp is HugePages.AUTO:
        mode = system_mode()
        huge_pages = huge_pages_to_try(mode, torch=has_torch)
        if len(huge_pages) > 1:
            huge_pages = kept(THP, huge_pages)
        else:
            reason = f"the system's mode of transparent huge pages is {mode.value}"
            left_out.append(LeftOut(THP, reason))
    met = {
        "torch": has_torch,
        "compile": has_torch and _compiles(request),
        "bf16": has_torch and processor.has_fast_bf16,
    }
    switches = tuple(_switches(met, variables, left_out))
    return Offers(allocators, runtimes, huge_pages, switches, tuple(left_out))


def _different(
    resolver: Resolver, name: str, values: tuple[str, ...], left_out: list[LeftOut]
) -> tuple[str, ...]:
    """The values that a launch accepts and that give different plans."""
    by_hash: dict[str, str] = {}
    for value in values:
        try:
            plan_hash = resolver.resolve(Configuration({name: value})).plan_hash
        except XLaunchError as error:
            left_out.append(LeftOut(f"{name}={value}", str(error)))
            continue
        if plan_hash in by_hash:
            reason = f"the same as {by_hash[plan_hash]} here"
            left_out.append(LeftOut(f"{name}={value}", reason))
        by_hash.setdefault(plan_hash, value)
    return tuple(by_hash.values())


def _waiting(
    given: Mapping[str, str], *, quota: float | None, left_out: list[LeftOut]
) -> tuple[str, ...]:
    """The ways to wait that may be tried."""
    users = sorted(WAITING_VARIABLES & given.keys())
    if users:
        reason = f"{users[0]}={given[users[0]]} is set and kept"
        left_out.append(LeftOut(f"{OMP}: how threads wait", reason))
        return ()
    if quota is not None:
        reason = f"threads that spin while waiting use up the CPU quota of {quota:g}"
        left_out.append(LeftOut(f"{OMP}=+{ACTIVE}", reason))
        return ()
    return (ACTIVE, PASSIVE)


def _runtimes(own: str | None, waits: tuple[str, ...]) -> Iterator[str]:
    """The program's own runtime and the others, each with its default waiting and with spinning.

    Passive waiting is tried with one runtime only: the kernel wakes the threads then, so all
    runtimes behave alike.
    """
    yield "auto"
    yield from [f"auto+{way}" for way in waits]
    for name in reversed(OPENMP):
        if name != own:
            yield name
            yield from [f"{name}+{way}" for way in waits if way == ACTIVE]


def huge_pages_to_try(mode: SystemMode, *, torch: bool) -> tuple[str, ...]:
    """The values of --thp that can make a difference under the system's `mode`, the default first.

    `torch`: installed with the program; it reads the variable that ``always`` sets. ``madvise`` is
    left out: it differs from ``never`` only for programs that call madvise themselves.
    """
    if mode in (SystemMode.NEVER, SystemMode.UNKNOWN):
        return ("auto",)
    return ("auto", "always", "never") if torch else ("auto", "never")


def _switches(
    met: Mapping[str, bool], given: Mapping[str, str], left_out: list[LeftOut]
) -> Iterator[Switch]:
    """The switches whose needs are met."""
    lacks = {
        "torch": "there is no torch in the program's environment",
        "compile": "the script itself calls no torch.compile",
        "bf16": "this processor is not faster in bf16",
    }
    for switch in SWITCHES:
        users = [name for name in (switch.name, *switch.also) if name in given]
        if users:
            left_out.append(LeftOut(switch.name, f"{users[0]}={given[users[0]]} is set and kept"))
        elif not met[switch.needs]:
            need = switch.needs if met["torch"] else "torch"
            left_out.append(LeftOut(switch.name, lacks[need]))
        else:
            yield switch


def _compiles(request: Request) -> bool:
    """Whether the script among the program's words names a call that compiles."""
    words = () if request.program.module else request.program.words
    script = next((word for word in words if word.endswith(PYTHON_SUFFIXES[:2])), None)
    if script is None:
        return False
    try:
        with open_input(script) as stream:
            text = stream.read(MAX_SCRIPT_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return False
    return re.search(r"(?<!\bre)\.compile\(|torch\._inductor", text) is not None
