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

from xlaunch.errors import UsageError
from xlaunch.machine.topology import CPUs, Machine, Topology
from xlaunch.planning import LayoutRequest, MemoryPolicy, Place, Plan, Request, plan
from xlaunch.planning.placement import memory_nodes
from xlaunch.planning.pool import whole_cores
from xlaunch.planning.request import HugePages
from xtune.space.launch_options import (
    ALL_CORES,
    ALLOCATOR,
    BY_NODE,
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
    Layout,
    option_name,
    with_option,
)
from xtune.space.offers import LeftOut, Offers
from xtune.space.parameters import Parameter, Target, Value
from xtune.space.spaces import DerivedValue, Space

MIN_SHARE_BYTES = 256 << 20
"""Minimum memory for each instance: about that of a Python that has imported torch."""


def find_layouts(machine: Machine, request: Request, *, one_instance: bool) -> dict[str, Plan]:
    """The layouts to try with their plans, xlaunch's default first; no two give the same placement.

    **Ex.:** ``4x8``, `ALL_CORES`, `BY_NODE`. Sizes double within an L3 cache, then by whole caches, nodes and packages. For each size there is one
    instance, as many as fit, and half as many: programs limited by caches or memory run better when
    fewer share them. So 512 cores have about thirty layouts, not 100,000.

    `request` has the user's other options (CPUs, reserved cores). `one_instance`: vary only the size,
    because several instances cannot be compared with one. Raises `UsageError` if nothing can be
    planned.
    """
    whole = plan(with_option(request, LAYOUT, ALL_CORES).layout, machine)
    pool = whole_cores(machine.topology, whole.allowed_cpus)
    budget = _budget(whole, len(pool), request)
    by_place = {_places(whole): (ALL_CORES, whole)}
    pairs = _pairs(machine, pool, budget, one_instance=one_instance)
    for text in [*map(str, pairs), *([] if one_instance else [BY_NODE])]:
        try:
            layout_plan = plan(with_option(request, LAYOUT, text).layout, machine)
        except UsageError:
            continue
        share = layout_plan.memory_share_bytes
        if layout_plan.count == 1 or share is None or share >= MIN_SHARE_BYTES:
            by_place.setdefault(_places(layout_plan), (text, layout_plan))
    return dict(by_place.values())


def counts_of(plans: Iterable[Plan], parameter: str = LAYOUT) -> list[DerivedValue]:
    """The values of a parameter's plans that conditions may use; cores are those of the smallest instance."""
    pairs = [
        (layout_plan.count, min(instance.ncores for instance in layout_plan.instances))
        for layout_plan in plans
    ]
    instances, ncores = zip(*pairs, strict=True)
    return [DerivedValue(INSTANCES, parameter, instances), DerivedValue(NCORES, parameter, ncores)]


def _places(layout_plan: Plan) -> tuple[object, ...]:
    """The placement of a layout, independent of the numbering of its instances."""
    places = [(i.cpus, i.ncores, i.threads) for i in layout_plan.instances]
    return layout_plan.count, *sorted(places)


def _budget(whole: Plan, pool: int, request: Request) -> int:
    """Cores that all instances together may use."""
    cores = pool - request.layout.reserve_cores if whole.bound else whole.instances[0].ncores
    quota = whole.cpu_quota
    return cores if quota is None else max(1, min(cores, int(quota)))


def _pairs(
    machine: Machine, pool: Sequence[CPUs], budget: int, *, one_instance: bool
) -> list[Layout]:
    """Candidate layouts, by instances and then cores; some may not fit."""
    levels = _levels(machine.topology, pool)
    pairs = set()
    for size in _sizes([unit for unit, _ in levels], budget):
        fits = budget // size
        pairs.add(Layout(1, size))
        if one_instance or fits == 1:
            continue
        counts = {fits, _whole_in_domains(levels, size)}
        counts |= {fits // 2} if fits >= 4 else set()
        pairs |= {Layout(count, size) for count in counts if 1 < count <= fits}
    return sorted(pairs)


def _sizes(units: Sequence[int], budget: int) -> list[int]:
    """Instance sizes in cores, ascending. `units`: the cores of one domain at each level.

    **Ex.:** L3 caches of 8 cores, 6 to a node, 2 nodes: 1, 2, 4, 8, 16, 24, 32, 48, 96.
    """
    ends = sorted({unit for unit in units if unit < budget} | {budget})
    sizes, inner = {1}, 1
    for outer in ends:
        times = 1
        while times * inner <= outer:
            sizes.add(times * inner)
            times *= 2
        half = outer // 2
        if half % inner == 0 and (outer % 2 == 0 or outer == budget > 1):
            sizes.add(half)
        sizes.add(outer)
        inner = outer
    return sorted(sizes)


def _levels(topology: Topology, pool: Sequence[CPUs]) -> list[tuple[int, list[int]]]:
    """For each level of domains, the typical number of cores in a domain, and those of all its
    domains.

    If domains differ in size, the typical size is the one that places most cores in full domains:
    42 for 43, 43 and 42 cores, and 8 for 8, 8 and 2.
    """
    groups = (
        topology.l3_groups or topology.l2_groups or topology.clusters,
        tuple([node.cpus for node in topology.numa_nodes]),
        tuple([package.cpus for package in topology.packages]),
    )
    levels = []
    for group in groups:
        counts = [sum(core[0] in members for core in pool) for members in map(set, group)]
        sizes = [count for count in counts if count]
        if sizes:
            unit = max(sizes, key=lambda size: (size * sum(s >= size for s in sizes), size))
            levels.append((unit, sizes))
    return levels


def _whole_in_domains(levels: list[tuple[int, list[int]]], size: int) -> int:
    """How many instances of `size` cores fit into single domains, the smallest that can hold one.

    **Ex.:** 6 instances of 16 in nodes of 43, 43 and 42 cores; 8 fit if two of them span nodes.
    """
    holding = [(unit, sizes) for unit, sizes in levels if unit >= size]
    return sum(have // size for have in min(holding)[1]) if holding else 0


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
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    """For the user."""
    launches: int | None = None
    """The budget, if the user's file gives one."""


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
    derived: list[DerivedValue] = []
    left_out: list[LeftOut] = []
    if not only_parameters:
        launch += _placement(request, machine, left_out, derived, one_instance=one_instance)
        launch += _offered(request, offers, allow_numerics, left_out)
        order = list(REASONS)
        launch.sort(key=lambda p: order.index(p.name) if p.name in order else len(order))
        left_out += offers.left_out
    names = {parameter.name for parameter in launch}
    if LAYOUT not in names:
        derived += counts_of([plan(request.layout, machine)], "")
    fixed: dict[str, Value] = {
        SMT: request.layout.smt,
        PLACE: request.layout.place.value,
        ALLOCATOR: request.program.allocator,
        OMP: request.program.omp,
        MEMORY: request.layout.mem_policy.value,
        THP: request.program.thp.value,
    }
    derived += [DerivedValue(n, "", (value,)) for n, value in fixed.items() if n not in names]
    space = Space([*launch, *own], when, derived, words=WORDS)
    return MadeSpace(space, tuple(left_out))


def _placement(
    request: Request,
    machine: Machine,
    left_out: list[LeftOut],
    derived: list[DerivedValue],
    *,
    one_instance: bool,
) -> Iterable[Parameter]:
    """Layout, SMT, place and memory policy, as far as they make a difference.

    Adds to `left_out`, and the values of layouts that conditions may use to `derived`.
    """
    layout, asked = request.layout, _layout_options(request.layout)
    requests = [request]
    if asked:
        left_out.append(LeftOut(LAYOUT, f"given: {', '.join(asked)}"))
    else:
        layouts = find_layouts(machine, request, one_instance=one_instance)
        requests = [with_option(request, LAYOUT, text) for text in layouts]
        if one_instance:
            reason = "wall time cannot compare them with one, unless they divide the work"
            left_out.append(LeftOut(f"{LAYOUT}: several instances", reason))
        if len(layouts) == 1:
            left_out.append(LeftOut(LAYOUT, "there is one core to use"))
        else:
            derived += counts_of(layouts.values())
            yield Parameter(
                LAYOUT, tuple(layouts), ALL_CORES, Target.OPTION, reason=REASONS[LAYOUT]
            )

    def moves(one: Request, other: Request) -> bool:
        return plan(one.layout, machine).instances != plan(other.layout, machine).instances

    def spans_nodes(_: Request, other: Request) -> bool:
        instances = plan(other.layout, machine).instances
        return any(len(instance.memory_nodes) > 1 for instance in instances)

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
            yield Parameter(name, values, values[0], Target.OPTION, reason=REASONS[name])
        else:
            left_out.append(LeftOut(name, nothing))


def _layout_options(layout: LayoutRequest) -> list[str]:
    """The options given that leave one layout. **Ex.:** ``--instances``."""
    values = {
        "instances": layout.instances,
        "ncores": layout.ncores,
        "mode": layout.mode,
        "instance-index": layout.instance_index,
        "gpus-per-instance": layout.gpus_per_instance,
        "oversubscribe": layout.oversubscribe or None,
    }
    return [f"--{name}" for name, value in values.items() if value is not None]


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
            yield Parameter(name, values, values[0], Target.OPTION, reason=REASONS[name])
    for switch in offers.switches:
        if switch.changes_results and not allow_numerics:
            reason = "it may change the program's results; --allow-numerics includes it"
            left_out.append(LeftOut(switch.name, reason))
            continue
        yield Parameter(
            switch.name,
            (UNSET, *switch.values),
            UNSET,
            Target.VARIABLE,
            changes_results=switch.changes_results,
            reason=switch.reason,
        )
