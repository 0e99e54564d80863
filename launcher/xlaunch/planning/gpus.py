# SPDX-License-Identifier: Apache-2.0
"""Divide GPUs among instances (`--gpus-per-instance`), and place each instance next to its own.

An instance gets GPUs of one package where that is possible, and cores of that package: first those of
the GPUs' NUMA node, then its neighbours. Where the package of a GPU is not known (a virtual machine),
or has no core that may be used, its instance may be anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xlaunch.errors import UsageError
from xlaunch.machine.topology import Gpu, Gpus, Machine, Topology
from xlaunch.planning.layout import Capacity, Layout, Share, choose_layout, usable_cores
from xlaunch.planning.placement import Core, place_instances
from xlaunch.planning.plans import Decision
from xlaunch.planning.request import MAX, LayoutRequest, Place
from xlaunch.text import counted, plural

REMOTE = -1
"""Stands for the package of GPUs next to which no core may be used."""


def count_instances(request: LayoutRequest, gpus: Gpus, budget: int) -> int:
    """How many instances with GPUs of their own to run on `budget` cores. Raises `UsageError`.

    As many as there are GPUs and cores for, unless the request has a number.
    """
    each = request.gpus_per_instance
    assert each is not None
    held = _held(gpus)
    if each < 1:
        raise UsageError(f"--gpus-per-instance {each}: must be at least 1; {held}")
    if gpus.problem:
        raise UsageError(f"--gpus-per-instance: {gpus.problem}")
    if each > len(gpus.usable):
        fits = f": at most --gpus-per-instance {len(gpus.usable)}" if gpus.usable else ""
        raise UsageError(f"--gpus-per-instance {each}: {held}{fits}")
    count = len(gpus.usable) // each
    if isinstance(request.instances, int):
        if request.instances > count:
            wanted = f"{counted(request.instances, 'instance')} x {counted(each, 'GPU')}"
            fits = f"at most {counted(count, 'instance')}"
            if request.instances <= len(gpus.usable):
                fits += f", or --gpus-per-instance {len(gpus.usable) // request.instances}"
            raise UsageError(f"{wanted} need {request.instances * each} GPUs, and {held}: {fits}")
        return request.instances
    size = request.ncores if isinstance(request.ncores, int) else 1
    return max(1, min(count, budget // max(1, size)))


def layout_for_gpus(
    request: LayoutRequest,
    machine: Machine,
    cores: Sequence[Core],
    capacity: Capacity,
    taken: Collection[str],
) -> Layout:
    """The layout of a request whose instances get GPUs of their own, or are near GPUs. Raises `UsageError`.

    `taken`: identities of GPUs of other launches, which come last.
    """
    if request.gpus_per_instance is None:
        return _layout_near_gpus(request, machine, cores, capacity)
    layout = _divide_gpus(request, machine, cores, capacity, taken)
    gpus, vendor = machine.gpus, layout.shares[0].gpus[0].vendor
    used = {gpu for share in layout.shares for gpu in share.gpus}
    idle = [gpu.name for gpu in gpus.usable if gpu not in used]
    reason, warnings = _held(gpus), layout.warnings
    if idle:
        reason += f"; left over: {', '.join(idle)}"
        if not isinstance(request.instances, int):
            warnings += (f"{counted(len(idle), 'GPU')} left over: {', '.join(idle)}",)
    if others := {gpu.vendor.value for gpu in gpus.found} - {vendor.value}:
        reason += f"; those of {' and '.join(sorted(others))} are left alone"
    decision = Decision("GPUs", f"{request.gpus_per_instance} for each instance", reason)
    return layout._replace(decisions=(*layout.decisions, decision), warnings=warnings)


def _divide_gpus(
    request: LayoutRequest,
    machine: Machine,
    cores: Sequence[Core],
    capacity: Capacity,
    taken: Collection[str] = (),
) -> Layout:
    """Divide the GPUs of `machine` and choose the size of the instances. Raises `UsageError`.

    Instances go to the packages where they get the most cores each; with a number of cores and
    `Place.COMPACT`, to the first with room. They are in the order of their first GPUs in `Gpus.usable`.
    """
    gpus, budget = machine.gpus.usable, usable_cores(request, capacity)
    count = count_instances(request, machine.gpus, budget)
    order = {gpu: position for position, gpu in enumerate(gpus)}
    packages = _Packages(request, gpus, machine.topology, cores, taken)
    shares = [packages.next_share() for _ in range(count)]
    shares = [
        share._replace(gpus=tuple(sorted(share.gpus, key=order.__getitem__))) for share in shares
    ]
    shares.sort(key=lambda share: order[share.gpus[0]])
    size, reason, equal = request.ncores, "as asked", max(1, budget // count)
    if not isinstance(size, int):
        everywhere = size is MAX or not capacity.bound
        size = equal if everywhere else _cores_each(shares, cores, budget)
        reason = f"an equal share of {counted(budget, 'core')}"
        if size < equal:
            reason += " in the packages of the GPUs"
    layout = choose_layout(request._replace(instances=count, ncores=size), capacity)
    decisions = tuple([decision._replace(reason=reason) for decision in layout.decisions])
    return layout._replace(decisions=decisions, shares=tuple(shares))


def _layout_near_gpus(
    request: LayoutRequest, machine: Machine, cores: Sequence[Core], capacity: Capacity
) -> Layout:
    """Instance i next to GPU i, with as many cores as it would have without GPUs.

    Without shares where GPUs or their places are not known: CUDA and the driver order unlike GPUs differently.
    """
    gpus = machine.gpus.usable[: request.instances] if isinstance(request.instances, int) else ()
    models, nodes = {gpu.model for gpu in gpus}, {gpu.numa_node for gpu in gpus}
    several_nodes = len(machine.topology.numa_nodes) > 1 and None not in nodes
    if not several_nodes or len(models) != 1 or len(gpus) != request.instances:
        return choose_layout(request, capacity)
    machine = machine._replace(gpus=machine.gpus._replace(usable=gpus))
    request = request._replace(gpus_per_instance=1, ncores=request.ncores or MAX)
    layout = _divide_gpus(request, machine, cores, capacity)
    decision = Decision("GPUs", "left alone", "instance i is near GPU i as far as there is room")
    shares = tuple([share._replace(gpus=()) for share in layout.shares])
    return layout._replace(decisions=(*layout.decisions, decision), shares=shares)


def warn_of_remote_gpus(
    shares: Sequence[Share], topology: Topology, placed: Sequence[Sequence[Core]]
) -> list[str]:
    """Warn of GPUs whose instance has no core next to them."""
    warnings = []
    for index, (share, slot) in enumerate(zip(shares, placed, strict=False)):
        here = {core.domains.package for core in slot}
        for gpu in share.gpus:
            package = _package_of(_node_of(gpu, topology), topology)
            if package is not None and package not in here:
                warnings.append(
                    f"instance {index} has GPU {gpu.name} of NUMA node {gpu.numa_node}, and no "
                    "CPU in its package"
                )
    return warnings


class _Packages:
    """The GPUs that no instance has yet, by package."""

    def __init__(
        self,
        request: LayoutRequest,
        gpus: Sequence[Gpu],
        topology: Topology,
        cores: Sequence[Core],
        taken: Collection[str],
    ) -> None:
        self._each = request.gpus_per_instance or 0
        compact = request.place is Place.COMPACT and isinstance(request.ncores, int)
        self._size = request.ncores if compact else None
        self._taken = taken
        self._cores: dict[int | None, int] = {None: len(cores)}
        for core in cores:
            package = core.domains.package
            self._cores[package] = self._cores.get(package, 0) + 1
        self._nodes = {gpu: _node_of(gpu, topology) for gpu in gpus}
        self._left: dict[int | None, list[Gpu]] = {}
        for gpu in gpus:
            nearest = _package_of(self._nodes[gpu], topology)
            own_package = nearest if nearest in self._cores else REMOTE
            self._left.setdefault(own_package, []).append(gpu)
        self._cores[REMOTE] = len(cores)
        for own in self._left.values():
            # Those of one node are side by side, so that an instance gets them together.
            nodes = list(dict.fromkeys([self._nodes[gpu] for gpu in own]))
            own.sort(key=lambda gpu: (gpu.identity in taken, nodes.index(self._nodes[gpu])))
        self._instances = dict.fromkeys(self._left, 0)

    def next_share(self) -> Share:
        """The GPUs of one more instance: of one package if any has enough of them."""
        enough = [package for package, own in self._left.items() if len(own) >= self._each]
        package = max(enough, key=self._merit) if enough else None
        if enough:
            self._instances[package] += 1
            own = self._left[package][: self._each]
        else:
            largest_first = sorted(self._left.values(), key=len, reverse=True)
            own = [gpu for pieces in largest_first for gpu in pieces][: self._each]
        for pieces in self._left.values():
            pieces[:] = [gpu for gpu in pieces if gpu not in own]
        nodes = {self._nodes[gpu] for gpu in own}
        node = nodes.pop() if len(nodes) == 1 else None
        return Share(tuple(own), None if package == REMOTE else package, node)

    def _merit(self, package: int | None) -> tuple[int, bool, int]:
        """Sort key: fewest GPUs that other launches have, then not remote, then room for the size."""
        own = self._left[package][: self._each]
        taken = sum([gpu.identity in self._taken for gpu in own])
        cores, instances = self._cores[package], self._instances[package] + 1
        if isinstance(self._size, int):
            return -taken, package != REMOTE, int(cores >= self._size * instances)
        return -taken, package != REMOTE, cores // instances


def _cores_each(shares: Sequence[Share], cores: Sequence[Core], budget: int) -> int:
    """The most cores that every instance can have within the package of its GPUs."""
    sizes = [budget // len(shares)]
    for package in {share.package for share in shares} - {None}:
        here = sum([core.domains.package == package for core in cores])
        sizes.append(here // sum([share.package == package for share in shares]))
    return max(1, min(sizes))


def place_near(
    shares: Sequence[Share], cores: Sequence[Core], size: int, place: Place
) -> list[list[Core]]:
    """Disjoint sets of `size` cores, one for each share, as near to its GPUs as possible.

    `cores` must be enough for all shares.
    """
    placed: dict[int, list[Core]] = {}
    free = {core.cpus[0]: core for core in cores}

    def take(numbers: list[int], near: list[Core], each: int) -> None:
        for number, slot in zip(
            numbers, place_instances(near, count=len(numbers), size=each, place=place), strict=True
        ):
            placed[number] = slot
            for core in slot:
                del free[core.cpus[0]]

    for package in dict.fromkeys([share.package for share in shares if share.package is not None]):
        here = [core for core in cores if core.domains.package == package]
        members = [i for i, share in enumerate(shares) if share.package == package]
        members = members[: len(here) // size]  # the others find room elsewhere
        by_node: dict[int | None, list[int]] = {}
        for number in members:
            by_node.setdefault(shares[number].node, []).append(number)
        for node, numbers in by_node.items():
            near = [core for core in here if core.domains.node == node]
            each = min(size, len(near) // len(numbers))
            if each:
                take(numbers, near, each)
        for number in members:
            missing = size - len(placed.get(number, ()))
            near = [core for core in here if core.cpus[0] in free]
            if missing and number in placed:
                more = near[:missing]
                placed[number] += more
                for core in more:
                    del free[core.cpus[0]]
            elif missing:
                take([number], near, size)
    elsewhere = [i for i in range(len(shares)) if i not in placed]
    if elsewhere:
        take(elsewhere, [core for core in cores if core.cpus[0] in free], size)
    return [placed[i] for i in range(len(shares))]


def _held(gpus: Gpus) -> str:
    """**Ex.:** ``2 GPUs may be used (CUDA_VISIBLE_DEVICES=1,0)``."""
    number = len(gpus.usable)
    by = f" ({gpus.narrowed_by})" if gpus.narrowed_by else ""
    if not number and gpus.found:
        return f"none of {counted(len(gpus.found), 'GPU')} may be used{by}"
    if not number:
        return "no driver has a GPU here; xlaunch doctor checks the machine"
    return f"{number} {plural(number, 'GPU')} may be used{by}"


def _node_of(gpu: Gpu, topology: Topology) -> int | None:
    """The lowest CPU of the GPU's NUMA node; None if it has none."""
    nodes = [node for node in topology.numa_nodes if node.id == gpu.numa_node and node.cpus]
    return nodes[0].cpus[0] if nodes else None


def _package_of(cpu: int | None, topology: Topology) -> int | None:
    """The lowest CPU of the package of a CPU."""
    return next((package.cpus[0] for package in topology.packages if cpu in package.cpus), None)
