# SPDX-License-Identifier: Apache-2.0
"""Plan a launch beside others on this host: ranks of one job, and launches that run already."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from xlaunch.claims import Claim, own_lease
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.leases import (
    Lease,
    described,
    of_others,
    read_leases,
    records_directory,
    sharing,
    taken_cpus,
    taken_gpus,
)
from xlaunch.machine.processes import ancestor_without, initial_environment
from xlaunch.machine.topology import CPUs, Machine
from xlaunch.planning.planner import plan
from xlaunch.planning.plans import Plan
from xlaunch.planning.request import LOCAL_RANK_VARIABLES, HostRequest, RankMode, Request
from xlaunch.text import counted

if TYPE_CHECKING:
    from xlaunch.environment import Environment
    from xlaunch.planning.ranks import Rank, RankShare

WAIT_INTERVAL_S = 0.5
CLAIM_INTERVAL_S = 0.002
"""Between looks at the claims of launches that are being planned."""
MAX_EXCLUSIVE_S = 2.0
"""How long claims of others can delay an exclusive launch, which then fails or waits."""
MAX_SHARED_S = 1.0
"""How long claims of the same user can delay any other launch, which then shares cores. It does not
wait for those of other users, who could claim cores again and again."""
MAX_NAMES = 8
"""Launches that a message names."""
MAX_PLANS = 10
"""How often such a launch is planned again for cores that others have claimed before."""

THREADS_OF_RANKS = "XLAUNCH_THREADS_OF_RANKS"
"""The OMP_NUM_THREADS that `xlaunch --nproc-per-node` gave to the torchrun that it started."""


class PreparedLaunch(NamedTuple):
    """A plan for a machine, and what its instances are started with."""

    request: Request
    """What was asked for; a rank has files of its own."""
    machine: Machine
    """The machine, or the share of it that a rank may use."""
    plan: Plan
    environment: Environment | None
    """None without a program, and until it is chosen."""
    inherited: Mapping[str, str]
    """The variables that the program inherits, without those that torchrun set."""
    lease: Lease | None = None
    """The record of its cores; None if none was written."""
    notes: tuple[str, ...] = ()


def plan_beside_others(
    request: Request,
    machine: Machine,
    environment: Mapping[str, str],
    *,
    host: HostRequest = HostRequest(),
    note: Callable[[str], None] = lambda _: None,
    record: bool = True,
    directory: str | None = None,
) -> PreparedLaunch:
    """Plan `request`, and leave a record of the cores that it takes unless `record` is False.

    A rank plans for its share of `machine`. Among equal placements cores are preferred that no launch
    has taken; `host.exclusive` takes no others, and waits for them up to `host.wait_s`; `note` is called before.
    Raises `UsageError` as `plan` does, and `XLaunchError` where the cores stay taken.
    """
    if THREADS_OF_RANKS in environment:  # with the OMP_NUM_THREADS that is chosen again
        dropped = (THREADS_OF_RANKS, "OMP_NUM_THREADS")
        environment = {n: value for n, value in environment.items() if n not in dropped}
    if sys.platform != "linux":
        return PreparedLaunch(request, machine, plan(request.layout, machine), None, environment)
    notes: list[str] = []
    (rank, doubt), job = _rank_of(environment, host.rank_mode), 0
    warnings = [] if doubt is None else [doubt]
    if rank is not None:
        from xlaunch.planning.ranks import with_own_files

        job = ancestor_without(rank.variable) or 0
        shared = _share_of(request, machine, environment, rank, job)
        request, machine = with_own_files(shared.request, rank), shared.machine
        warnings += [] if shared.warning is None else [shared.warning]
        environment, replaced = _without_torchruns_threads(environment, rank, job)
        notes += replaced
    exclusive = host.exclusive or host.wait_s is not None
    deadline, is_waiting = time.monotonic() + (host.wait_s or 0.0), False
    while True:
        try:
            own_plan, held, lease = _take_cores(
                request, machine, environment, exclusive, job, record=record, directory=directory
            )
            break
        except _TakenError as error:
            if time.monotonic() >= deadline:
                raise XLaunchError(str(error)) from None
            if not is_waiting:
                note(f"waiting: {error}")
            is_waiting = True
        time.sleep(WAIT_INTERVAL_S)
    if own_plan.bound and (neighbours := sharing(held, own_plan.used_cpus)):
        notes.append(f"shares cores with {_names(neighbours)}")
    if neighbours := sharing(held, (), _gpus_of(own_plan)):
        notes.append(f"shares GPUs with {_names(neighbours)}")
    own_plan = own_plan._replace(warnings=(*warnings, *own_plan.warnings))
    return PreparedLaunch(request, machine, own_plan, None, environment, lease, tuple(notes))


def _take_cores(
    request: Request,
    machine: Machine,
    environment: Mapping[str, str],
    exclusive: bool,
    job: int,
    *,
    record: bool,
    directory: str | None,
) -> tuple[Plan, list[Lease], Lease | None]:
    """Plan beside the launches that run, and claim the cores; plan again where another has them.

    Returns the plan, the launches that run, and the record, or None if none could be written.
    Raises `_TakenError`. See `claims` for the order of launches that are planned at the same moment.
    """
    max_s = MAX_EXCLUSIVE_S if exclusive else MAX_SHARED_S
    others = _OtherLaunches(machine, environment, job, directory, max_s)
    # Launches that run one instance each of a layout must see the same layout.
    yields = exclusive or request.layout.instance_index is None
    began_ns = time.time_ns()
    held, plans = others.look(), 0
    while True:
        try:
            own_plan = _plan_beside(request, machine, held, exclusive=exclusive)
        except _TakenError:
            if any(lease.claimed_ns for lease in held) and others.may_look_again():
                held = others.look()
                continue
            raise
        claim = _claim(request, own_plan, began_ns, exclusive, job, directory) if record else None
        if claim is None:
            return own_plan, held, None
        own = claim.lease
        cores = _whole_cores(machine, own.cpus)
        try:
            leases, rivals, first = others.look(), [], []
            while yields:
                neighbours = sharing(leases, cores, own.gpus)
                rivals = _rivals(neighbours, held, own, exclusive=exclusive, replanned=plans > 0)
                first = [lease for lease in rivals if lease.precedes(own)]
                if first or not rivals or not others.may_look_again():
                    break
                leases = others.look()
            plans += 1
            if not rivals or (not exclusive and (not first or plans == MAX_PLANS)):
                return own_plan, leases, claim.settle()
        except BaseException:
            claim.withdraw()
            raise
        claim.withdraw()
        held = leases
        if exclusive and others.is_late:
            raise _TakenError(
                f"--exclusive: other launches take the same cores at this moment: {_names(rivals)}"
            )


class _OtherLaunches:
    """The other launches that run now, looked at until a deadline in `max_s` seconds."""

    def __init__(
        self,
        machine: Machine,
        environment: Mapping[str, str],
        job: int,
        directory: str | None,
        max_s: float,
    ) -> None:
        topology = machine.topology
        self._cpu_count = 1 + max((*topology.online_cpus, *topology.offline_cpus))
        self._environment, self._job, self._directory = environment, job, directory
        self._deadline = time.monotonic() + max_s

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def look(self) -> list[Lease]:
        leases = read_leases(self._directory, cpu_count=self._cpu_count)
        return of_others(leases, job=self._job, environment=self._environment)

    def may_look_again(self) -> bool:
        """After a pause, unless the deadline has come."""
        if self.is_late:
            return False
        time.sleep(CLAIM_INTERVAL_S)
        return True


def _rivals(
    neighbours: Sequence[Lease],
    held: Sequence[Lease],
    own: Lease,
    *,
    exclusive: bool,
    replanned: bool,
) -> list[Lease]:
    """The launches on the same cores that this one did not plan beside, and to which it may have to give way.

    A launch that shares cores gives way to those of other users only before it is `replanned`.
    """
    rivals = [lease for lease in neighbours if not any(map(lease.takes_as, held))]
    if exclusive:
        return rivals
    return [
        lease for lease in rivals if lease.uid == own.uid or (not replanned and lease.precedes(own))
    ]


def share_here(
    request: Request, machine: Machine, environment: Mapping[str, str], mode: RankMode
) -> tuple[Request, Machine]:
    """What a launch with these variables plans with: a rank with its share of `machine`."""
    rank, _ = _rank_of(environment, mode)
    if rank is None:
        return request, machine
    job = ancestor_without(rank.variable) or 0
    return _share_of(request, machine, environment, rank, job)[:2]


def _share_of(
    request: Request, machine: Machine, environment: Mapping[str, str], rank: Rank, job: int
) -> RankShare:
    from xlaunch.planning.ranks import cpus_of_slurm_step, share_of_rank

    by_srun = cpus_of_slurm_step(environment) if rank.launcher is RankMode.SLURM else ()
    return share_of_rank(request, machine, rank, launcher_cpus=by_srun or _mask_of(job))


def is_rank(environment: Mapping[str, str], mode: RankMode = RankMode.AUTO) -> bool:
    """Whether these variables are those of a rank."""
    return _rank_of(environment, mode)[0] is not None


def _rank_of(environment: Mapping[str, str], mode: RankMode) -> tuple[Rank | None, str | None]:
    """The rank of this process, and a warning; None if it is alone here, which costs no import."""
    if environment.keys().isdisjoint(LOCAL_RANK_VARIABLES):
        return None, None
    from xlaunch.planning.ranks import rank_of

    return rank_of(environment, mode)


class _TakenError(Exception):
    """Too few cores are free; the message names who has the others."""


def _plan_beside(
    request: Request, machine: Machine, held: Sequence[Lease], *, exclusive: bool
) -> Plan:
    if exclusive:
        return _plan_on_free(request, machine, held)
    avoided = held if request.layout.instance_index is None else []
    return plan(request.layout, machine, taken=taken_cpus(avoided), taken_gpus=taken_gpus(avoided))


def _plan_on_free(request: Request, machine: Machine, held: Sequence[Lease]) -> Plan:
    """Plan on cores and GPUs that no launch has taken. Raises `_TakenError` if that does not fit."""
    limits, layout, whole = machine.limits, request.layout, None
    taken = set(_whole_cores(machine, taken_cpus(held)))
    if layout.instance_index is not None:
        # Other instances of the layout, each a launch of its own, may hold their cores already.
        whole = plan(layout, machine)
        if taken.isdisjoint(whole.used_cpus) and not sharing(held, (), _gpus_of(whole)):
            return _bound(whole)
        count, ncores = len(whole.instances), max([instance.ncores for instance in whole.instances])
        layout = layout._replace(instances=count, ncores=ncores, mode=None, instance_index=None)
    free = tuple([cpu for cpu in limits.allowed_cpus if cpu not in taken])
    gpus, held_gpus = machine.gpus, taken_gpus(held)
    free_gpus = tuple([gpu for gpu in gpus.usable if gpu.identity not in held_gpus])
    if request.layout.gpus_per_instance is None:
        held_gpus = frozenset()
    blocking = sharing(held, limits.allowed_cpus, held_gpus)
    if not free:
        raise _TakenError(f"--exclusive: no core is free; held by {_names(blocking)}")
    inside = machine._replace(gpus=gpus._replace(usable=free_gpus))
    if taken:
        fewer = f"{counted(len(limits.allowed_cpus) - len(free), 'CPU')} of other launches"
        limits = limits._replace(
            allowed_cpus=free,
            narrowed_by=(*limits.narrowed_by, fewer),
            narrowed_via=(*limits.narrowed_via, "other launches"),
        )
        inside = inside._replace(limits=limits)
    try:
        placed = plan(layout, inside)
    except UsageError as error:
        plan(request.layout, machine)  # what does not fit on the whole machine never will
        raise _TakenError(f"--exclusive: {error}; held by {_names(blocking)}") from None
    if whole is not None:
        pairs = zip(placed.instances, whole.instances, strict=True)
        placed = whole._replace(
            instances=tuple([new._replace(index=old.index) for new, old in pairs]),
            allowed_cpus=placed.allowed_cpus,
            idle_cpus=placed.idle_cpus,
            decisions=placed.decisions,
            warnings=placed.warnings,
        )
    return _bound(placed)


def _bound(plan: Plan) -> Plan:
    if not plan.bound:
        raise UsageError(
            "--exclusive takes cores, and a CPU quota binds to none: name CPUs with --cpus"
        )
    return plan


def _claim(
    request: Request, plan: Plan, began_ns: int, exclusive: bool, job: int, directory: str | None
) -> Claim | None:
    """Claim the cores of a plan; None if no record can be written, which `exclusive` needs."""
    words = request.program.words
    program = os.path.basename(words[0]) if words else ""
    # srun only waits: Slurm's daemon starts the ranks, which leave records of their own.
    holds_cores = plan.bound and program != "srun"
    lease = own_lease(
        plan.used_cpus if holds_cores else (),
        program,
        instances=len(plan.instances),
        exclusive=exclusive,
        job=job,
        log_dir=os.path.abspath(request.run.log_dir) if request.run.log_dir else "",
        gpus=_gpus_of(plan),
        claimed_ns=began_ns,
    )
    if lease is None:
        problem = "/proc does not show this process (unshare has --mount-proc)"
    else:
        try:
            return Claim(lease, directory)
        except OSError as error:
            place = directory or records_directory()
            problem = (
                f"{error.filename or place}: {error.strerror}; set XLAUNCH_RECORDS_DIR to a "
                "directory that every user can write, the same for all launches of this host"
            )
    if exclusive:
        raise XLaunchError(f"--exclusive must leave a record for other launches: {problem}")
    return None


def _whole_cores(machine: Machine, cpus: CPUs) -> list[int]:
    members = set(cpus)
    return [cpu for core in machine.topology.cores if not members.isdisjoint(core) for cpu in core]


def _gpus_of(plan: Plan) -> tuple[str, ...]:
    return tuple([gpu.identity for instance in plan.instances for gpu in instance.gpus])


def _names(held: Sequence[Lease]) -> str:
    names = [str(described(lease)) for lease in held[:MAX_NAMES]]
    if len(held) > MAX_NAMES:
        names.append(f"{len(held) - MAX_NAMES} more")
    return ", ".join(names) or "nobody that can be seen"


def _mask_of(pid: int) -> CPUs | None:
    """The CPUs that a process may use; None if it cannot be seen."""
    if pid:
        with contextlib.suppress(OSError):
            return tuple(sorted(os.sched_getaffinity(pid)))
    return None


def _without_torchruns_threads(
    environment: Mapping[str, str], rank: Rank, job: int
) -> tuple[Mapping[str, str], list[str]]:
    """Drop the OMP_NUM_THREADS that torchrun sets for its ranks where the user has set none."""
    name = "OMP_NUM_THREADS"
    launcher_variables = initial_environment(job) if job else {}
    if rank.launcher is not RankMode.TORCHRUN or name not in environment or not launcher_variables:
        return environment, []
    if name in launcher_variables:
        return environment, []
    kept = {key: value for key, value in environment.items() if key != name}
    said = f"{name}={environment[name]} was torchrun's, and is replaced"
    return kept, [said] if rank.local == 0 else []
