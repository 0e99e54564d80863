# SPDX-License-Identifier: Apache-2.0
"""Launch parameters: each value changes a request to xlaunch in one respect.

A parameter combines options that belong together, so that a space is one static product: a layout is
a pair of counts that fits, `omp` is a runtime and the way its threads wait.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from xlaunch.environment.allocators import PROFILES as ALLOCATORS
from xlaunch.environment.openmp import PROFILES as RUNTIMES
from xlaunch.planning import MAX, MemoryPolicy, Mode, Place, Request
from xlaunch.planning.request import HugePages
from xtune.errors import SpaceError
from xtune.space.parameters import Value

LAYOUT, SMT, PLACE, ALLOCATOR, OMP, MEMORY, THP = OPTIONS = (
    "layout", "smt", "place", "allocator", "omp", "memory", "thp",
)  # fmt: skip
"""The parameters that change xlaunch's options."""

OPTION_KEYS = {MEMORY: "mem_policy"}
"""Parameters whose option, and field in `Request`, has another name."""

INSTANCES, NCORES = "instances", "ncores"
"""The values of a layout that conditions may use."""

ALL_CORES = "1xall"
"""xlaunch's default layout: one instance on all usable cores."""
BY_NODE = "node"
"""One instance for each NUMA node, for nodes of different sizes: ``--mode throughput``."""

UNSET = "unset"
"""The value that leaves a variable unchanged."""

ACTIVE, PASSIVE = "active", "passive"

WAITING = {
    # Only profiles that set no block time themselves.
    "auto": {ACTIVE: ("OMP_WAIT_POLICY", "active"), PASSIVE: ("OMP_WAIT_POLICY", "passive")},
    "gnu": {ACTIVE: ("OMP_WAIT_POLICY", "active"), PASSIVE: ("OMP_WAIT_POLICY", "passive")},
    "intel": {ACTIVE: ("KMP_BLOCKTIME", "infinite"), PASSIVE: ("KMP_BLOCKTIME", "0")},
    "llvm": {ACTIVE: ("KMP_BLOCKTIME", "infinite"), PASSIVE: ("KMP_BLOCKTIME", "0")},
}
"""The variable that makes threads of an OpenMP profile spin for work forever, or sleep at once."""

WAITING_VARIABLES = frozenset(
    [name for ways in WAITING.values() for name, _ in ways.values()] + ["GOMP_SPINCOUNT"]
)
"""A user who set one of these has chosen how threads wait."""

_WORDED: dict[str, type[Place | MemoryPolicy | HugePages]] = {
    PLACE: Place,
    MEMORY: MemoryPolicy,
    THP: HugePages,
}

WORDS = frozenset(
    [ALL_CORES, BY_NODE, *ALLOCATORS, "auto", *RUNTIMES]
    + [f"{name}+{way}" for name, ways in WAITING.items() for way in ways]
    + [member.value for words in _WORDED.values() for member in words]
)
"""Every word that conditions may compare a launch parameter with, available here or not."""

_PAIR = re.compile(r"([1-9]\d{0,8})x([1-9]\d{0,8})", re.ASCII)


class Layout(NamedTuple):
    """Instances of equal size."""

    instances: int
    ncores: int

    def __str__(self) -> str:
        """**Ex.:** ``4x8``: four instances of eight cores."""
        return f"{self.instances}x{self.ncores}"


def parse_layout(text: str) -> Layout:
    """**Ex.:** ``4x8``. Raises `SpaceError` for anything else."""
    match = _PAIR.fullmatch(text)
    if match is None:
        raise SpaceError(
            f"layout={text}: write INSTANCESxCORES such as 4x8, {ALL_CORES} or {BY_NODE}"
        )
    return Layout(int(match[1]), int(match[2]))


def option_name(name: str) -> str:
    """The option that a parameter changes. **Ex.:** ``mem-policy`` for ``memory``."""
    return OPTION_KEYS.get(name, name).replace("_", "-")


def with_option(request: Request, name: str, value: Value) -> Request:
    """`request` with one of `OPTIONS` set to `value`. Raises `SpaceError` for an invalid value."""
    if name == SMT and isinstance(value, bool):
        return request.replace(smt=value)
    if name == LAYOUT:
        return _with_layout(request, str(value))
    if name == OMP:
        return _with_openmp(request, str(value))
    if name == ALLOCATOR:
        return request.replace(allocator=str(value))
    if name in _WORDED:
        try:
            return request.replace(**{OPTION_KEYS.get(name, name): _WORDED[name](value)})
        except ValueError:
            raise SpaceError(f"{name}={value}: there is no such value") from None
    raise SpaceError(f"{name}={value!r}: xtune searches no such option of xlaunch")


def with_variable(request: Request, name: str, value: Value) -> Request:
    """`request` with an environment variable for every instance; `UNSET` leaves it unchanged."""
    if value == UNSET:
        return request
    others = tuple([pair for pair in request.program.env if pair[0] != name])
    return request.replace(env=(*others, (name, str(value))))


def _with_layout(request: Request, text: str) -> Request:
    if text == ALL_CORES:
        return request.replace(instances=1, ncores=MAX, mode=None)
    if text == BY_NODE:
        return request.replace(instances=None, ncores=None, mode=Mode.THROUGHPUT)
    layout = parse_layout(text)
    return request.replace(instances=layout.instances, ncores=layout.ncores, mode=None)


def _with_openmp(request: Request, text: str) -> Request:
    profile, plus, way = text.partition("+")
    if not plus:
        return request.replace(omp=profile)
    if way not in WAITING.get(profile, {}):
        raise SpaceError(
            f"omp={text}: write a profile, or one of {', '.join(WAITING)} with +{ACTIVE} or +{PASSIVE}"
        )
    name, value = WAITING[profile][way]
    return with_variable(request.replace(omp=profile), name, value)
