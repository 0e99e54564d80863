# SPDX-License-Identifier: Apache-2.0
"""Ranks: processes that torchrun, mpirun or srun start side by side, and that divide this host.

Each of them may run `xlaunch train.py`. It then plans for its share of what the host allows, as if the
share were the machine. A rank whose launcher has narrowed its mask already uses that mask whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from xlaunch.machine.limits import usable_memory_bytes
from xlaunch.machine.topology import CPUs, Gpu, Machine
from xlaunch.machine.tree import parse_mask
from xlaunch.planning.gpus import count_instances
from xlaunch.planning.layout import quota_cores
from xlaunch.planning.planner import plan
from xlaunch.planning.pool import select_pool, whole_cores
from xlaunch.planning.request import RANK_VARIABLES, LayoutRequest, RankMode, RankVariables, Request
from xlaunch.text import counted, format_cpu_list


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


def rank_of(
    environment: Mapping[str, str], mode: RankMode = RankMode.AUTO
) -> tuple[Rank | None, str | None]:
    """The rank that the variables of its launcher name, and a warning if they contradict each other.

    None: the process is alone on this host, or how many share it is not known.
    """
    doubt, doubted = None, ""
    for row in RANK_VARIABLES:
        number = environment.get(row.local, "")
        if mode not in (RankMode.AUTO, row.launcher) or number in ("", "-1"):
            continue  # scripts write -1 for a process that is no rank
        size, source, warning = _local_size(row, environment)
        if size and not (number.isdecimal() and int(number) < size):
            doubted = doubted or number
            doubt = doubt or (
                f"{row.local}={number} contradicts {source}: this rank takes the whole host; correct them,"
                " or use --rank-mode off"
            )
        elif size > 1:
            rank = environment.get(row.overall, number)
            overall = int(rank) if rank.isdecimal() else int(number)
            return Rank(row.launcher, int(number), size, overall, row.local), warning
        elif size:
            doubt = doubt if number != doubted else None  # the same rank, which is alone here
        elif row.launcher is not RankMode.SLURM:  # a batch script is no rank of a step
            doubted = doubted or number
            names = " or ".join(row.local_sizes) or f"{row.job_size} and {row.hosts}"
            doubt = doubt or (
                f"{row.local}={number} without {names}: it is not known how many ranks share this host, so"
                " this one takes it whole; set what is missing, or use --rank-mode off"
            )
    return None, doubt


def _local_size(row: RankVariables, environment: Mapping[str, str]) -> tuple[int, str, str | None]:
    """Ranks on this host, the variable that says so, and a warning; 0: not known."""
    node = environment.get("SLURM_NODEID", "0")
    sizes = {name: _size(environment.get(name, ""), node) for name in row.local_sizes}
    sizes_given = {name: size for name, size in sizes.items() if size}
    job = _size(environment.get(row.job_size, ""), "0")
    if not sizes_given:
        hosts = 1 if job == 1 else _size(environment.get(row.hosts, ""), "0")
        return (-(-job // hosts) if hosts else 0), f"{row.job_size}={job}", None
    name, size = next(iter(sizes_given.items()))
    wrong = [f"{other}={others}" for other, others in sizes_given.items() if others != size]
    if 0 < job < size:
        wrong.append(f"{row.job_size}={job}")
    warning = (
        f"{name}={size} and {' and '.join(wrong)} disagree: the first counts" if wrong else None
    )
    return size, f"{name}={environment[name]}", warning


def _size(text: str, node: str) -> int:
    """A number, or Slurm's list of numbers by node. **Ex.:** ``2(x3),1``: 2, 2, 2 and 1."""
    sizes: list[int] = []
    for part in text.split(","):
        repeated = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if repeated is None:
            return 0
        sizes += [int(repeated[1])] * int(repeated[2] or 1)
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
    than ranks each has one CPU, and ranks share cores; the first one warns.
    """
    who = f"local rank {rank.local} of {rank.local_size} under {rank.launcher.value}"
    own = machine.limits.allowed_cpus
    gpus_each = request.layout.gpus_per_instance
    gpus = machine.gpus
    if gpus_each is not None:
        count_instances(
            LayoutRequest(instances=rank.local_size, gpus_per_instance=gpus_each), gpus, 1
        )
        first = rank.local * gpus_each
        gpus = gpus._replace(usable=gpus.usable[first : first + gpus_each])
    if launcher_cpus is not None and set(own) < set(launcher_cpus):
        each_has = len(whole_cores(machine.topology, own))
        all_have = len(whole_cores(machine.topology, launcher_cpus))
        warning = None
        if each_has * rank.local_size > all_have:
            warning = (
                f"{who} has CPUs {format_cpu_list(own)}, which other ranks have, too: start ranks "
                "unbound (mpirun --bind-to none, srun --cpu-bind=none)"
            )
        return RankShare(request, machine._replace(gpus=gpus), warning)
    place = _place_of_rank(request.layout, machine, rank)
    if place.gpus:
        gpus = gpus._replace(usable=place.gpus)
    limits = machine.limits
    quota, memory_bytes = limits.cpu_quota, usable_memory_bytes(limits)
    inside = machine._replace(
        gpus=gpus,
        limits=limits._replace(
            allowed_cpus=place.cpus,
            narrowed_by=(*limits.narrowed_by, who + place.near),
            narrowed_via=(*limits.narrowed_via, "rank"),
            cpu_quota=None if quota is None else quota / rank.local_size,
            memory_limit_bytes=None if memory_bytes is None else memory_bytes // rank.local_size,
            memory_limit_source=None if memory_bytes is None else who,
        ),
    )
    layout = request.layout._replace(cpus=None, numa_nodes=None, reserve_cores=0)
    warning = place.warning if rank.local == 0 else None
    return RankShare(request._replace(layout=layout), inside, warning)


class _RankPlace(NamedTuple):
    """Where a rank runs that its launcher has not bound."""

    cpus: CPUs
    warning: str | None = None
    gpus: tuple[Gpu, ...] = ()
    """Its own GPUs, where they are divided."""
    near: str = ""
    """**Ex.:** ``", near GPU 1"``."""


def _place_of_rank(layout: LayoutRequest, machine: Machine, rank: Rank) -> _RankPlace:
    """The rank's instance of a layout with one for each rank; one CPU where cores or the quota do not suffice."""
    gpus_each = layout.gpus_per_instance
    chosen = LayoutRequest(
        instances=rank.local_size,
        instance_index=(rank.local,),
        cpus=layout.cpus,
        numa_nodes=layout.numa_nodes,
        reserve_cores=layout.reserve_cores,
        ecores=layout.ecores,
        place=layout.place,
        smt=True,
        gpus_per_instance=gpus_each,
        near_gpus=gpus_each is None,
    )
    pool = select_pool(chosen, machine, bound=True)
    cores = pool.cores[: max(1, len(pool.cores) - layout.reserve_cores)]
    quota = machine.limits.cpu_quota
    ranks = f"{rank.local_size} ranks under {rank.launcher.value}"
    if len(cores) < rank.local_size:
        # First siblings come first, so that ranks share a core only where all are taken.
        one_by_one = sorted((number, cpu) for core in cores for number, cpu in enumerate(core))
        cpu = one_by_one[rank.local % len(one_by_one)][1]
        return _RankPlace((cpu,), f"{ranks} share {counted(len(cores), 'core')}, one thread each")
    if quota is not None and quota_cores(quota) < rank.local_size:
        return _RankPlace(pool.cpus, f"{ranks} share a CPU quota of {quota:g}, one thread each")
    share = plan(chosen, machine)
    (instance,) = share.instances
    near = ""
    if gpus_each is None and any(decision.subject == "GPUs" for decision in share.decisions):
        gpu = machine.gpus.usable[rank.local]
        near = f", near GPU {gpu.name}" if gpu.numa_node in instance.nodes else ""
    return _RankPlace(instance.cpus, None, instance.gpus if gpus_each else (), near)


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
