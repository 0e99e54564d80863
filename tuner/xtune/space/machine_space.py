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

from collections.abc import Callable, Iterable, Sequence
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
from xtune.space.layouts import Candidate, find_layouts
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
        maker = _Maker(request, machine, one_instance=one_instance)
        launch = [*maker.placement(), *_offered(request, offers, allow_numerics, maker.left_out)]
        launch.sort(key=lambda parameter: _rank(parameter.name))
        derived = maker.derived()
        left_out = [*maker.left_out, *offers.left_out]
    names = {parameter.name for parameter in launch}
    if LAYOUT not in names:
        derived = [one for one in derived if one.parameter != LAYOUT]
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


class _Maker:
    """Makes the parameters that change the plan."""

    def __init__(self, request: Request, machine: Machine, *, one_instance: bool) -> None:
        self._request = request
        self._machine = machine
        self._one_instance = one_instance
        self.left_out: list[LeftOut] = []
        self._layouts: tuple[Candidate, ...] = ()

    def placement(self) -> list[Parameter]:
        """Those of layout, SMT, place and memory policy that make a difference."""
        asked = [
            f"--{name}"
            for name, value in (
                ("instances", self._request.layout.instances),
                ("ncores", self._request.layout.ncores),
                ("mode", self._request.layout.mode),
                ("instance-index", self._request.layout.instance_index),
                ("gpus-per-instance", self._request.layout.gpus_per_instance),
                ("oversubscribe", self._request.layout.oversubscribe or None),
            )
            if value is not None
        ]
        if asked:
            self._leave_out(LAYOUT, f"given: {', '.join(asked)}")
        else:
            self._layouts = find_layouts(
                self._machine, self._request, one_instance=self._one_instance
            )
            if self._one_instance:
                reason = "wall time cannot compare them with one, unless they divide the work"
                self._leave_out(f"{LAYOUT}: several instances", reason)
            if len(self._layouts) == 1:
                self._leave_out(LAYOUT, "there is one core to use")
        made: list[Parameter | None] = [
            self._layout(),
            self._varied(
                SMT,
                (False, True),
                fixed=self._request.layout.smt,
                nothing="each core that may be used has one hardware thread",
            ),
            self._varied(
                PLACE,
                (Place.COMPACT.value, Place.SCATTER.value),
                fixed=self._request.layout.place is not Place.COMPACT,
                nothing="no layout leaves a choice of cores",
            ),
            self._memory(),
        ]
        return [parameter for parameter in made if parameter is not None]

    def derived(self) -> list[Derived]:
        """The values of layouts that conditions may use."""
        if len(self._layouts) < 2:
            return []
        return [
            Derived(INSTANCES, LAYOUT, tuple([layout.instances for layout in self._layouts])),
            Derived(NCORES, LAYOUT, tuple([layout.ncores for layout in self._layouts])),
        ]

    def _layout(self) -> Parameter | None:
        if len(self._layouts) < 2:
            return None
        texts = tuple([layout.text for layout in self._layouts])
        return Parameter(LAYOUT, texts, texts[0], Where.OPTION, reason=REASONS[LAYOUT])

    def _memory(self) -> Parameter | None:
        """Interleaving or xlaunch's own choice. Binding is not searched: it only fails earlier."""
        if len(memory_nodes(self._machine).usable) < 2:
            self._leave_out(MEMORY, "there is one NUMA node to take memory from")
            return None
        return self._varied(
            MEMORY,
            (MemoryPolicy.AUTO.value, MemoryPolicy.INTERLEAVE.value),
            fixed=self._request.layout.mem_policy is not MemoryPolicy.AUTO,
            nothing="every instance lies within one NUMA node",
            differs=lambda request: any(
                len(instance.memory_nodes) > 1
                for instance in plan(request.layout, self._machine).instances
            ),
        )

    def _varied(
        self,
        name: str,
        values: tuple[Value, Value],
        *,
        fixed: bool,
        nothing: str,
        differs: Callable[[Request], bool] | None = None,
    ) -> Parameter | None:
        """A parameter of two values if the second changes the plan of some layout."""
        if fixed:
            self._leave_out(name, f"given: --{option_name(name)}")
            return None
        for layout in self._requests():
            other = with_option(layout, name, values[1])
            if differs is None:
                found = (
                    plan(other.layout, self._machine).instances
                    != plan(layout.layout, self._machine).instances
                )
            else:
                found = differs(other)
            if found:
                return Parameter(name, values, values[0], Where.OPTION, reason=REASONS[name])
        self._leave_out(name, nothing)
        return None

    def _requests(self) -> Iterable[Request]:
        if not self._layouts:
            return [self._request]
        return [with_option(self._request, LAYOUT, layout.text) for layout in self._layouts]

    def _leave_out(self, name: str, reason: str) -> None:
        self.left_out.append(LeftOut(name, reason))


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


def _rank(name: str) -> int:
    """The order of parameters: as in `REASONS`, then the variables."""
    names = list(REASONS)
    return names.index(name) if name in names else len(names)
