# SPDX-License-Identifier: Apache-2.0
"""Ranks: processes that torchrun, mpirun or srun start side by side, and that divide this host.

Each of them may run `xlaunch train.py`. It then plans for its share of what the host allows, as if the
share were the machine. A rank whose launcher has narrowed its mask already uses that mask whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.machine.topology import CPUs, Machine
from xlaunch.machine.tree import parse_mask
from xlaunch.planning.gpus import count_instances
from xlaunch.planning.planner import plan
from xlaunch.planning.pool import whole_cores
from xlaunch.planning.request import LayoutRequest, RankMode, Request
from xlaunch.text import plural


class Rank(NamedTuple):
    """One of several ranks on this host. **Ex.:** rank 5 of a job, local rank 1 of 4."""

    launcher: RankMode
    local: int
    local_size: int
    """At least 2."""
    overall: int
    """Its number in the whole job."""
    variable: str
    """The variable that its launcher sets. **Ex.:** ``"LOCAL_RANK"``."""


VARIABLES = (
    (RankMode.TORCHRUN, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK"),
    (RankMode.TORCHRUN, "LOCAL_RANK", "LOCAL_SIZE", "RANK"),
    (RankMode.MPI, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK"),
    (RankMode.MPI, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_RANK"),
    (RankMode.MPI, "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_RANK"),
    (RankMode.SLURM, "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID"),
)  # fmt: skip
"""Local rank, number of local ranks, and rank: torchrun and accelerate; deepspeed; Open MPI; Hydra (Intel MPI, MPICH); MVAPICH2; srun, which lists the tasks of every node."""


def rank_of(environment: Mapping[str, str], mode: RankMode = RankMode.AUTO) -> Rank | None:
    """The rank that the variables of its launcher name; None if it is alone on this host."""
    for launcher, local, local_size, overall in VARIABLES:
        if mode not in (RankMode.AUTO, launcher):
            continue
        size = _size(environment.get(local_size, ""), environment.get("SLURM_NODEID", "0"))
        number = environment.get(local, "")
        if size > 1 and number.isdecimal() and int(number) < size:
            rank = environment.get(overall, number)
            return Rank(
                launcher, int(number), size, int(rank) if rank.isdecimal() else int(number), local
            )
    return None


def _size(text: str, node: str) -> int:
    """A number, or Slurm's list of numbers by node. **Ex.:** ``2(x3),1``: 2, 2, 2 and 1."""
    sizes: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if found is None:
            return 0
        sizes += [int(found[1])] * int(found[2] or 1)
    index = int(node) if node.isdecimal() else 0
    return sizes[index] if index < len(sizes) else sizes[0]


def cpus_of_slurm_step(environment: Mapping[str, str]) -> CPUs:
    """The CPUs that srun gave to the ranks on this host, together; empty where it bound none.

    **Ex.:** ``SLURM_CPU_BIND_LIST=0x3,0xC`` for two ranks with two CPUs each: 0 to 3.
    """
    masks = environment.get("SLURM_CPU_BIND_LIST", "").split(",")
    if "mask_cpu" not in environment.get("SLURM_CPU_BIND_TYPE", ""):
        return ()
    if not all(re.fullmatch(r"0x[0-9A-Fa-f]{1,4096}", mask) for mask in masks):
        return ()
    return tuple(sorted({cpu for mask in masks for cpu in parse_mask(mask[2:])}))


class RankShare(NamedTuple):
    """The machine and the request that a rank plans with."""

    request: Request
    machine: Machine
    warning: str | None = None


def share_of_rank(
    request: Request, machine: Machine, rank: Rank, *, launcher_cpus: Collection[int] | None
) -> RankShare:
    """Narrow `machine` to the rank's share; the options that choose it are removed from `request`.

    `launcher_cpus`: what its launcher had for all ranks of this host; None if unknown. With fewer cores
    than ranks the machine stays whole.
    """
    who = f"local rank {rank.local} of {rank.local_size} under {rank.launcher.value}"
    own = machine.limits.allowed_cpus
    layout, gpus = request.layout, machine.gpus
    each = layout.gpus_per_instance
    if each is not None:
        count_instances(LayoutRequest(instances=rank.local_size, gpus_per_instance=each), gpus, 1)
        first = rank.local * each
        gpus = gpus._replace(usable=gpus.usable[first : first + each])
    if launcher_cpus is not None and set(own) < set(launcher_cpus):
        cores = len(whole_cores(machine.topology, own))
        all_cores = len(whole_cores(machine.topology, launcher_cpus))
        if cores * rank.local_size <= all_cores:
            return RankShare(request, machine._replace(gpus=gpus))
        return RankShare(
            request,
            machine._replace(gpus=gpus),
            f"{who} has CPUs {format_cpu_list(own)}, which other ranks have, too: start ranks unbound "
            "(mpirun --bind-to none, srun --cpu-bind=none)",
        )
    available = len(whole_cores(machine.topology, own))
    if available < rank.local_size:
        cores_here = f"{available} {plural(available, 'core')}"
        whole = machine._replace(gpus=gpus)
        return RankShare(request, whole, f"{who}: all share {cores_here}, fewer than ranks")
    chosen = LayoutRequest(
        instances=rank.local_size,
        instance_index=(rank.local,),
        cpus=layout.cpus,
        numa_nodes=layout.numa_nodes,
        reserve_cores=layout.reserve_cores,
        ecores=layout.ecores,
        place=layout.place,
        smt=True,
        gpus_per_instance=each,
        near_gpus=each is None,
    )
    share = plan(chosen, machine)
    cpus, near = share.instances[0].cpus, ""
    if each is None and any(it.subject == "GPUs" for it in share.decisions):
        device = gpus.usable[rank.local]
        near = f", near GPU {device.name}" if device.numa_node in share.instances[0].nodes else ""
    if each is not None:
        gpus = gpus._replace(usable=share.instances[0].gpus)
    limits = machine.limits
    quota = limits.cpu_quota
    known = [it for it in (limits.memory_limit_bytes, limits.memory_total_bytes) if it is not None]
    inside = machine._replace(
        gpus=gpus,
        limits=limits._replace(
            allowed_cpus=cpus,
            narrowed_by=(*limits.narrowed_by, who + near),
            narrowed_via=(*limits.narrowed_via, "rank"),
            cpu_quota=None if quota is None else quota / rank.local_size,
            memory_limit_bytes=min(known) // rank.local_size if known else None,
            memory_limit_source=who if known else None,
        ),
    )
    rest = layout._replace(cpus=None, numa_nodes=None, reserve_cores=0)
    return RankShare(request._replace(layout=rest), inside)


def with_own_files(request: Request, rank: Rank) -> Request:
    """Give a rank log files and a report of its own: ``DIR/rank-1``, ``report.rank-1.json``."""
    run, name = request.run, f"rank-{rank.overall}"
    log_dir, report = run.log_dir, run.report
    if log_dir is not None:
        log_dir = f"{log_dir.rstrip('/')}/{name}"
    if report is not None:
        stem, dot, suffix = report.rpartition(".")
        report = f"{stem}.{name}.{suffix}" if dot and "/" not in suffix else f"{report}.{name}"
    return request._replace(run=run._replace(log_dir=log_dir, report=report))
