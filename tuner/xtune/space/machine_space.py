# SPDX-License-Identifier: Apache-2.0
"""The launch parameters to search for a program on a machine, each with its reason.

>>> processor = read_processor()
>>> offers = read_offers(request, os.environ, machine, processor)
>>> made = make_space(request, machine, offers, own=own, when=["threads<=ncores"])

A parameter that makes no difference here (SMT without siblings, a memory policy on one node) or that
the user has fixed is left out, with the reason. Streams are searched as a parameter of the program:
``--param streams=1,2,4``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xlaunch.machine.topology import Machine
from xlaunch.planning import MemoryPolicy, Place, Request, plan
from xlaunch.planning.memory import memory_nodes
from xlaunch.planning.request import HugePages
from xtune.space.launch_options import (
    ALLOCATOR,
    INSTANCES,
    LAYOUT,
    MEMORY,
    NCORES,
    OMP,
    PLACE,
    SMT,
    THP,
    UNSET,
    WORDS,
    option_name,
    with_option,
)
from xtune.space.layouts import find_layouts
from xtune.space.offers import LeftOut, Offers
from xtune.space.parameters import Parameter, Value, Where
from xtune.space.spaces import Derived, Space

REASONS = {
    LAYOUT: "several instances on few cores are often faster than one on many",
    SMT: "a second thread for each core helps when threads wait for memory",
    PLACE: "cores side by side share caches; spread out, each has more cache",
    ALLOCATOR: "reusing freed memory avoids page faults",
    OMP: "runtimes differ in how fast their threads synchronize and how long they spin",
    MEMORY: "pages are spread over the nodes of an instance, or placed where they are first touched",
    THP: "huge pages avoid page faults and TLB misses, and can cost memory",
}


class MadeSpace(NamedTuple):
    """A space, and the parameters left out of it."""

    space: Space
    left_out: tuple[LeftOut, ...]


def make_space(
    request: Request,
    machine: Machine,
    offers: Offers,
    *,
    own: Sequence[Parameter] = (),
    when: Sequence[str] = (),
    one_instance: bool = False,
    allow_numerics: bool = False,
    only_parameters: bool = False,
) -> MadeSpace:
    """The launch parameters worth varying for `request` on `machine`, and the user's own.

    own
        The user's parameters, see `xtune.space.user_parameters`.
    when
        Conditions, see `xtune.space.conditions`; they may also name `ncores` and `instances`.
    one_instance
        Only layouts of one instance, since wall time cannot be compared with that of several, unless
        they divide the work.
    allow_numerics
        Include parameters that may change the program's results.
    only_parameters
        Only the user's parameters.

    Raises `SpaceError` for invalid conditions, `UsageError` if nothing can be planned.
    """
    launch: list[Parameter] = []
    derived: list[Derived] = []
    left_out: list[LeftOut] = []
    if not only_parameters:
        launch += _placement(request, machine, left_out, derived, one_instance=one_instance)
        launch += _offered(request, offers, allow_numerics, left_out)
        order = list(REASONS)
        launch.sort(key=lambda p: order.index(p.name) if p.name in order else len(order))
        left_out += offers.left_out
    names = {parameter.name for parameter in launch}
    if LAYOUT not in names:
        whole = plan(request.layout, machine)
        derived.append(Derived(INSTANCES, "", (whole.count,)))
        derived.append(Derived(NCORES, "", (min(i.ncores for i in whole.instances),)))
    fixed: dict[str, Value] = {
        SMT: request.layout.smt,
        PLACE: request.layout.place.value,
        ALLOCATOR: request.program.allocator,
        OMP: request.program.omp,
        MEMORY: request.layout.mem_policy.value,
        THP: request.program.thp.value,
    }
    derived += [Derived(n, "", (value,)) for n, value in fixed.items() if n not in names]
    space = Space([*launch, *own], when, derived, words=WORDS)
    return MadeSpace(space, tuple(left_out))


def _placement(
    request: Request,
    machine: Machine,
    left_out: list[LeftOut],
    derived: list[Derived],
    *,
    one_instance: bool,
) -> Iterable[Parameter]:
    """Layout, SMT, place and memory policy, as far as they make a difference.

    Adds to `left_out`, and the values of layouts that conditions may use to `derived`.
    """
    layout = request.layout
    asked = [
        f"--{name}"
        for name, value in (
            ("instances", layout.instances),
            ("ncores", layout.ncores),
            ("mode", layout.mode),
            ("instance-index", layout.instance_index),
            ("gpus-per-instance", layout.gpus_per_instance),
            ("oversubscribe", layout.oversubscribe or None),
        )
        if value is not None
    ]
    requests = [request]
    if asked:
        left_out.append(LeftOut(LAYOUT, f"given: {', '.join(asked)}"))
    else:
        found = find_layouts(machine, request, one_instance=one_instance)
        requests = [with_option(request, LAYOUT, one.text) for one in found]
        if one_instance:
            reason = "wall time cannot compare them with one, unless they divide the work"
            left_out.append(LeftOut(f"{LAYOUT}: several instances", reason))
        if len(found) == 1:
            left_out.append(LeftOut(LAYOUT, "there is one core to use"))
        else:
            texts, instances, ncores = zip(*found, strict=True)
            derived += [Derived(INSTANCES, LAYOUT, instances), Derived(NCORES, LAYOUT, ncores)]
            yield Parameter(LAYOUT, texts, texts[0], Where.OPTION, reason=REASONS[LAYOUT])

    def moves(one: Request, other: Request) -> bool:
        return plan(one.layout, machine).instances != plan(other.layout, machine).instances

    def spans_nodes(_: Request, other: Request) -> bool:
        return any(len(one.memory_nodes) > 1 for one in plan(other.layout, machine).instances)

    nodes = len(memory_nodes(machine).usable)
    auto, interleave = MemoryPolicy.AUTO, MemoryPolicy.INTERLEAVE
    compact, scatter = Place.COMPACT, Place.SCATTER
    for name, values, is_fixed, differs, nothing in (
        (SMT, (False, True), layout.smt, moves, "each core that may be used has one hardware thread"),
        (
            PLACE, (compact.value, scatter.value), layout.place is not compact,
            moves, "no layout leaves a choice of cores",
        ),
        # Binding is not searched: it only fails earlier.
        (
            MEMORY, (auto.value, interleave.value), layout.mem_policy is not auto and nodes > 1,
            spans_nodes, "every instance lies within one NUMA node",
        ),
    ):  # fmt: skip
        if is_fixed:
            left_out.append(LeftOut(name, f"given: --{option_name(name)}"))
        elif name == MEMORY and nodes < 2:
            left_out.append(LeftOut(name, "there is one NUMA node to take memory from"))
        elif any(differs(one, with_option(one, name, values[1])) for one in requests):
            yield Parameter(name, values, values[0], Where.OPTION, reason=REASONS[name])
        else:
            left_out.append(LeftOut(name, nothing))


def _offered(
    request: Request, offers: Offers, allow_numerics: bool, left_out: list[LeftOut]
) -> Iterable[Parameter]:
    """The parameters that depend on the program's environment."""
    for name, values, fixed in (
        (ALLOCATOR, offers.allocators, request.program.allocator != "auto"),
        (OMP, offers.runtimes, request.program.omp != "auto"),
        (THP, offers.huge_pages, request.program.thp is not HugePages.AUTO),
    ):
        if fixed:
            left_out.append(LeftOut(name, f"given: --{option_name(name)}"))
        elif len(values) > 1:
            yield Parameter(name, values, values[0], Where.OPTION, reason=REASONS[name])
    for switch in offers.switches:
        if switch.changes_results and not allow_numerics:
            reason = "it may change the program's results; --allow-numerics includes it"
            left_out.append(LeftOut(switch.name, reason))
            continue
        yield Parameter(
            switch.name,
            (UNSET, *switch.values),
            UNSET,
            Where.VARIABLE,
            changes_results=switch.changes_results,
            reason=switch.reason,
        )
