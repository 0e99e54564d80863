# SPDX-License-Identifier: Apache-2.0
"""A rank plans for its share of the host, and ranks of one host never share a core."""

from __future__ import annotations

import pytest
from tests.golden import Golden
from tests.launcher.planning.shapes import make_machine as machine
from tests.launcher.planning.shapes import ranks

from xlaunch.planning.planner import plan
from xlaunch.planning.ranks import (
    Rank,
    cpus_of_slurm_step,
    rank_of,
    share_of_rank,
    with_own_files,
)
from xlaunch.planning.request import RankMode, Request


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ("", None),
        ("LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 RANK=5", (RankMode.TORCHRUN, 1, 4, 5)),
        ("LOCAL_RANK=1 LOCAL_SIZE=4 RANK=5", (RankMode.TORCHRUN, 1, 4, 5)),  # deepspeed
        ("LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 RANK=3", None),
        ("LOCAL_RANK=-1", None),
        ("LOCAL_RANK=0 RANK=0 WORLD_SIZE=1", None),
        ("LOCAL_RANK=1 LOCAL_SIZE=2 RANK=3 WORLD_SIZE=4 CROSS_RANK=1 CROSS_SIZE=2",  # deepspeed
         (RankMode.TORCHRUN, 1, 2, 3)),
        ("OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=3", (RankMode.MPI, 2, 3, 2)),
        ("MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 PMI_RANK=6", (RankMode.MPI, 0, 2, 6)),
        ("SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_NODEID=2",
         (RankMode.SLURM, 1, 2, 1)),
        ("SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_NODEID=3", None),
        ("SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=4", None),  # a batch script, not a step
        ("PALS_LOCAL_RANKID=3 PALS_LOCAL_SIZE=12 PALS_RANKID=15", (RankMode.MPI, 3, 12, 15)),
        ("JSM_NAMESPACE_LOCAL_RANK=1 JSM_NAMESPACE_LOCAL_SIZE=6 JSM_NAMESPACE_RANK=7 JSM_NAMESPACE_SIZE=12",
         (RankMode.MPI, 1, 6, 7)),
        ("FLUX_TASK_LOCAL_ID=1 FLUX_TASK_RANK=5 FLUX_JOB_SIZE=8 FLUX_JOB_NNODES=2", (RankMode.MPI, 1, 4, 5)),
        # The last host has one less.
        ("FLUX_TASK_LOCAL_ID=2 FLUX_TASK_RANK=2 FLUX_JOB_SIZE=5 FLUX_JOB_NNODES=2", (RankMode.MPI, 2, 3, 2)),
        ("FLUX_TASK_LOCAL_ID=0 FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=2", None),
        # A script that sets torchrun's variables itself, from srun's.
        ("LOCAL_RANK=1 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=2 SLURM_PROCID=1", (RankMode.SLURM, 1, 2, 1)),
        ("LOCAL_RANK=0 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_PROCID=1", None),
        # One torchrun on each host, started by srun.
        ("SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_PROCID=1 "
         "LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 RANK=7", (RankMode.TORCHRUN, 3, 4, 7)),
    ],
)  # fmt: skip
def test_variables_of_every_launcher_name_the_rank(variables, expected):
    environment = dict(each.split("=") for each in variables.split())
    found, warning = rank_of(environment)
    assert (None if found is None else found[:4]) == expected
    assert warning is None
    assert rank_of(environment, RankMode.OFF) == (None, None)
    if expected is not None:
        assert rank_of(environment, expected[0]) == (found, None)


def test_a_rank_of_unknown_size_and_contradictions_are_warnings(golden: Golden):
    said = []
    for variables, size in (
        ("LOCAL_RANK=1 RANK=1 WORLD_SIZE=4", None), ("LOCAL_RANK=0 LOCAL_WORLD_SIZE=many", None),
        ("LOCAL_RANK=9 LOCAL_WORLD_SIZE=4", None), ("LOCAL_RANK=x LOCAL_WORLD_SIZE=4", None),
        ("LOCAL_RANK=1 LOCAL_WORLD_SIZE=1", None), ("LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 LOCAL_SIZE=2", 4),
        ("LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 WORLD_SIZE=2", 4), ("FLUX_TASK_LOCAL_ID=1 FLUX_JOB_SIZE=4", None),
        ("FLUX_TASK_LOCAL_ID=4 FLUX_JOB_SIZE=8 FLUX_JOB_NNODES=2", None), ("MPI_LOCALRANKID=1", None),
        ("LOCAL_RANK=3 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1", None),
        ("SLURM_LOCALID=3 SLURM_STEP_TASKS_PER_NODE=2", None),
    ):  # fmt: skip
        environment = dict(each.split("=") for each in variables.split())
        found, warning = rank_of(environment)
        assert (None if found is None else found.local_size) == size
        said += [variables, f"  {warning}"]
        assert rank_of(environment, RankMode.OFF) == (None, None)
    golden(said)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 16])
def test_shares_are_disjoint_and_follow_the_caches(size: int):
    host = machine(packages=(8, 8), nodes=(8, 8), l3=(4, 4, 4, 4), smt=2)
    taken: set[int] = set()
    for rank in ranks(size):
        request, inside, warning = share_of_rank(Request(), host, rank, launcher_cpus=None)
        assert warning is None
        assert request == Request()
        made = plan(request.layout, inside)
        (instance,) = made.instances
        assert instance.ncores == 16 // size
        assert instance.packages_touched == 1 or size == 3
        assert taken.isdisjoint(inside.limits.allowed_cpus)
        taken.update(inside.limits.allowed_cpus)
    assert len(taken) == 16 // size * size * 2, "SMT siblings belong to the share"


def test_options_of_the_whole_host_are_applied_once():
    host = machine(packages=(8, 8))
    request = Request.of("train.py", cpus=tuple(range(2, 14)), reserve_cores=2, ncores=2)
    for rank, cpus in zip(ranks(5), ((2, 3), (4, 5), (6, 7), (8, 9), (10, 11)), strict=True):
        inner, inside, _ = share_of_rank(request, host, rank, launcher_cpus=None)
        assert inside.limits.allowed_cpus == cpus
        assert plan(inner.layout, inside).instances[0].cpus == cpus


def test_a_mask_that_the_launcher_gave_is_used_whole(golden: Golden):
    host = machine(packages=(8,), allowed=(4, 5))
    (rank, *_) = ranks(4)
    assert share_of_rank(Request(), host, rank, launcher_cpus=range(8))[1:] == (host, None)
    shared = machine(packages=(8,), allowed=range(4))
    found = share_of_rank(Request(), shared, rank, launcher_cpus=range(8))
    assert found.machine == shared
    golden(found.warning or "")
    # The launcher itself has no more: the mask is the job's, and is divided.
    assert share_of_rank(Request(), shared, rank, launcher_cpus=range(4)).machine != shared


@pytest.mark.parametrize(
    ("bind", "masks", "expected"),
    [
        ("mask_cpu:", "0x3,0xC", (0, 1, 2, 3)), ("sockets,mask_cpu:", "0x100000000", (32,)),
        ("mask_cpu:", "0x3,nonsense", ()), ("mask_cpu:", "", ()), ("map_cpu:", "0,1", ()),
         ("none", "", ()),
    ],
)  # fmt: skip
def test_srun_says_which_cpus_its_ranks_have_together(bind, masks, expected):
    environment = {"SLURM_CPU_BIND_TYPE": bind, "SLURM_CPU_BIND_LIST": masks}
    assert cpus_of_slurm_step(environment) == expected


def test_ranks_to_which_srun_gave_the_same_cpus_divide_them():
    host = machine(packages=(8,), allowed=(2, 3))
    for rank, cpus in zip(ranks(2), [(2,), (3,)], strict=True):
        found = share_of_rank(Request(), host, rank, launcher_cpus=(2, 3))
        assert (found.machine.limits.allowed_cpus, found.warning) == (cpus, None)


@pytest.mark.parametrize(
    ("host", "options", "cpus"),
    [
        (machine(packages=(2,)), {}, (0, 1, 0, 1)),
        (machine(packages=(2,), smt=2), {}, (0, 1, 2, 3)),
        (machine(packages=(8,)), {"cpus": (4, 5)}, (4, 5, 4, 5)),
        (machine(packages=(4,)), {"reserve_cores": 2}, (0, 1, 0, 1)),
    ],
)
def test_more_ranks_than_cores_share_them_with_one_thread_each(host, options, cpus):
    said = []
    for rank, cpu in zip(ranks(4), cpus, strict=True):
        request = Request.of("train.py", **options)
        inner, inside, warning = share_of_rank(request, host, rank, launcher_cpus=None)
        (instance,) = plan(inner.layout, inside).instances
        assert (instance.cpus, instance.threads) == ((cpu,), 1)
        said.append(warning)
    assert said == ["4 ranks under torchrun share 2 cores, one thread each", None, None, None]


def test_more_ranks_than_a_quota_grants_have_one_thread_each():
    host = machine(packages=(8,), quota=2.5)
    for rank in ranks(4):
        inner, inside, warning = share_of_rank(Request(), host, rank, launcher_cpus=None)
        (instance,) = plan(inner.layout, inside).instances
        assert (instance.cpus, instance.threads) == (tuple(range(8)), 1)
        assert bool(warning) == (rank.local == 0)


def test_a_quota_and_the_memory_are_divided():
    host = machine(packages=(8,), quota=6.0)
    limits = host.limits._replace(memory_limit_bytes=8 << 30)
    inside = share_of_rank(Request(), host._replace(limits=limits), ranks(2)[1], launcher_cpus=None)
    assert inside.machine.limits.cpu_quota == 3.0
    assert inside.machine.limits.memory_limit_bytes == 4 << 30
    assert plan(Request().layout, inside.machine).instances[0].threads == 3


def test_ranks_do_not_write_to_one_file():
    rank = Rank(RankMode.MPI, 1, 2, 5, "")
    request = Request.of("a.py", log_dir="logs/", report="out/run.json")
    run = with_own_files(request, rank).run
    assert (run.log_dir, run.report) == ("logs/rank-5", "out/run.rank-5.json")
    assert with_own_files(Request.of("a.py", report="a.b/run"), rank).run.report == "a.b/run.rank-5"
    assert with_own_files(Request(), rank) == Request()
