# SPDX-License-Identifier: Apache-2.0
"""Choose how many instances of how many cores to run, or say in one error what would fit."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from xlaunch.errors import UsageError
from xlaunch.machine.topology import Gpu
from xlaunch.planning.plans import Decision
from xlaunch.planning.request import MAX, LayoutRequest, Mode
from xlaunch.text import cited, counted

LATENCY_CORES = 4
"""Cores of each instance in `Mode.LATENCY`."""

MAX_THREADS_PER_CORE = 1024
"""Limit of `--oversubscribe`. The kernel's shortest time slices are about a millisecond, so with more
threads each would wait for more than a second for its next one."""


class Capacity(NamedTuple):
    """How many cores a plan may use."""

    pool: int
    """Cores of the pool."""
    origin: str
    """**Ex.:** ``"are allowed (cpuset 0-15)"``."""
    node_sizes: tuple[int, ...]
    """Cores of the pool in each NUMA node that has any; one entry if nodes are not known."""
    quota: float | None
    """The CPU quota in CPUs; None without one."""
    quota_source: str | None
    bound: bool
    """Whether instances get cores of their own. False: their number of cores is a share of the time."""


class Share(NamedTuple):
    """The GPUs of one instance, and where its cores should be."""

    gpus: tuple[Gpu, ...] = ()
    package: int | None = None
    """The package, named by its lowest CPU as in `Core.domains`; None: any."""
    node: int | None = None
    """The NUMA node, if all of its GPUs are next to the same one, named in the same way."""


class Layout(NamedTuple):
    """The instances and their sizes."""

    sizes: tuple[int, ...]
    """Cores of each instance."""
    decisions: tuple[Decision, ...]
    shares: tuple[Share, ...] = ()
    """Where each instance should be, and its GPUs; empty if no GPUs count."""
    threads_at_most: tuple[int, ...] | None = None
    """Threads of each instance that the CPU quota allows; None without a limit."""
    by_node: bool = False
    """Each instance takes cores of one node, in the order of `Capacity.node_sizes`."""
    oversubscribed: bool = False
    """Instances share cores, because they need more than may be used."""
    warnings: tuple[str, ...] = ()


def choose_layout(request: LayoutRequest, capacity: Capacity) -> Layout:
    """Choose the layout for `request`. Raises `UsageError` if it does not fit."""
    _check_numbers(request)
    budget = usable_cores(request, capacity)
    layout = _asked_layout(request, capacity, budget)
    if capacity.quota is None or layout.oversubscribed or layout.threads_at_most:
        return layout
    share = max(1, quota_cores(capacity.quota) // len(layout.sizes))
    return layout._replace(threads_at_most=(share,) * len(layout.sizes))


def takes_everything(request: LayoutRequest) -> bool:
    """Whether the request is for one instance on all cores."""
    return (
        request.mode is None
        and (request.instances is None or request.instances == 1)
        and (request.ncores is None or request.ncores is MAX)
    )


def quota_cores(quota: float) -> int:
    """Whole cores that a CPU quota can keep busy, at least one. **Ex.:** 3.5 CPUs: 3 cores."""
    return max(1, int(quota))


def _check_numbers(request: LayoutRequest) -> None:
    for name, number in (("--instances", request.instances), ("--ncores", request.ncores)):
        if isinstance(number, int) and number < 1:
            raise UsageError(f"{name} {number}: must be at least 1, or max")
    if request.reserve_cores < 0:
        raise UsageError(f"--reserve-cores {request.reserve_cores}: must be 0 or more cores")


def usable_cores(request: LayoutRequest, capacity: Capacity) -> int:
    """Cores that all instances together may use, after reserved cores and the CPU quota."""
    unreserved = capacity.pool - request.reserve_cores
    if unreserved < 1:
        most = (
            f"at most --reserve-cores {capacity.pool - 1}" if capacity.pool > 1 else "leave it out"
        )
        raise UsageError(
            f"--reserve-cores {request.reserve_cores}: nothing would be left of the "
            f"{counted(capacity.pool, 'core')} that {capacity.origin}; {most}"
        )
    if capacity.quota is None:
        return unreserved
    return min(unreserved, quota_cores(capacity.quota))


def _asked_layout(request: LayoutRequest, capacity: Capacity, budget: int) -> Layout:
    if request.mode is Mode.LATENCY:
        return _latency_layout(budget)
    if request.mode is Mode.THROUGHPUT:
        return _throughput_layout(request, capacity, budget)
    if takes_everything(request):
        size = capacity.pool - request.reserve_cores if capacity.bound else budget
        return _equal_layout(1, size, "one instance on everything")
    if isinstance(request.ncores, int):
        if request.instances is MAX and request.ncores <= budget:
            count = budget // request.ncores
            holds = "holds" if budget == 1 else "hold"
            return _equal_layout(
                count, request.ncores, f"as many as {counted(budget, 'core')} {holds}"
            )
        count = request.instances if isinstance(request.instances, int) else 1
        return _exact_layout(request, capacity, count, request.ncores, budget)
    count = request.instances if isinstance(request.instances, int) else budget
    if count <= budget:
        return _equal_layout(count, budget // count, f"equal shares of {counted(budget, 'core')}")
    return _exact_layout(request, capacity, count, 1, budget)


def _latency_layout(budget: int) -> Layout:
    count = budget // LATENCY_CORES
    if count:
        reason = f"latency: {LATENCY_CORES} cores an instance"
        return _equal_layout(count, LATENCY_CORES, reason)
    warning = (
        f"--mode latency gives an instance {LATENCY_CORES} cores and there "
        f"{'is' if budget == 1 else 'are'} {budget}: one instance of {counted(budget, 'core')}"
    )
    layout = _equal_layout(1, budget, f"latency: fewer than {LATENCY_CORES} cores in all")
    return layout._replace(warnings=(warning,))


def _throughput_layout(request: LayoutRequest, capacity: Capacity, budget: int) -> Layout:
    """One instance per node; reserved cores are taken from the largest nodes, the last one first."""
    reason = "throughput: one instance for each NUMA node"
    sizes = list(capacity.node_sizes)
    if not capacity.bound:
        count = min(len(sizes), budget)
        return _equal_layout(count, budget // count, reason)
    for _ in range(request.reserve_cores):
        largest = max(sizes)
        last = max(index for index, size in enumerate(sizes) if size == largest)
        sizes[last] -= 1
    warnings: list[str] = []
    if 0 in sizes:
        empty = sizes.count(0)
        nodes = "1 NUMA node" if empty == 1 else f"{empty} NUMA nodes"
        warnings.append(f"--reserve-cores {request.reserve_cores} leaves no core in {nodes}")
    listed = [size for size in sizes if size]
    granted = None
    if capacity.quota is not None and budget < sum(sizes):
        granted = _proportional(budget, sizes)
        if budget < len(listed):
            quota = cited(f"{capacity.quota:g}", capacity.quota_source)
            warnings.append(
                f"{len(listed)} instances share a CPU quota of {quota}: it will hold them back"
            )
    value = f"{counted(len(listed), 'instance')} of {', '.join(map(str, listed))} cores"
    if len(set(listed)) == 1:
        value = f"{counted(len(listed), 'instance')} x {counted(listed[0], 'core')}"
    return Layout(
        tuple(sizes),
        (Decision("layout", value, reason),),
        threads_at_most=granted,
        by_node=True,
        warnings=tuple(warnings),
    )


def _proportional(budget: int, sizes: list[int]) -> tuple[int, ...]:
    """Threads in proportion to the sizes, `budget` in all; at least one each.

    **Ex.:** 4 for sizes 2 and 4: floors 1 and 2, and the one left over to the larger: 1 and 3.
    """
    shares = [max(1, budget * size // sum(sizes)) for size in sizes]
    for index in sorted(range(len(sizes)), key=lambda i: shares[i] - sizes[i]):
        if sum(shares) < budget and shares[index] < sizes[index]:
            shares[index] += 1
    return tuple(shares)


def _exact_layout(
    request: LayoutRequest, capacity: Capacity, count: int, size: int, budget: int
) -> Layout:
    """`count` instances of `size` cores; with `--oversubscribe` more than may be used."""
    if count * size <= budget:
        return _equal_layout(count, size, f"as asked; {counted(budget, 'core')} may be used")
    if not request.oversubscribe:
        _refuse(request, capacity, count, size, budget)
    most = MAX_THREADS_PER_CORE * budget
    if count * size > most:
        here = f", {most} here" if budget > 1 else ""
        raise UsageError(
            f"{counted(count, 'instance')} x {counted(size, 'core')}: {count * size} threads on {counted(budget, 'core')}; "
            f"--oversubscribe takes at most {MAX_THREADS_PER_CORE} for each core{here}"
        )
    reason = f"as asked: {count * size} threads oversubscribe {counted(budget, 'core')}"
    return _equal_layout(count, size, reason)._replace(oversubscribed=True)


def _equal_layout(count: int, size: int, reason: str) -> Layout:
    value = f"{counted(count, 'instance')} x {counted(size, 'core')}"
    return Layout((size,) * count, (Decision("layout", value, reason),))


def _refuse(
    request: LayoutRequest, capacity: Capacity, count: int, size: int, budget: int
) -> NoReturn:
    """Raise the error that says what was requested, what is available, and what would fit."""
    held = f"{capacity.pool} {capacity.origin}"
    if request.reserve_cores:
        held += f", {request.reserve_cores} of them reserved"
    if budget < capacity.pool - request.reserve_cores:
        quota = cited(f"{capacity.quota:g}", capacity.quota_source)
        held += f", and the CPU quota of {quota} is worth {budget}"
    fits = []
    if size <= budget:
        fits.append(f"{counted(budget // size, 'instance')} of {counted(size, 'core')}")
    if count <= budget:
        each = budget // count
        fits.append(
            f"{count} of {each}"
            if fits
            else f"{counted(count, 'instance')} of {counted(each, 'core')}"
        )
    if not fits:
        fits.append(f"{counted(budget, 'instance')} of 1 core")
        if budget > 1:
            fits.append(f"1 of {budget}")
    raise UsageError(
        f"{counted(count, 'instance')} x {counted(size, 'core')} {'needs' if count == 1 else 'need'} "
        f"{counted(count * size, 'core')} and {held}: at most {', or '.join(fits)}; or --oversubscribe"
    )
