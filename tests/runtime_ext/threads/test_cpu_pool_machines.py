# SPDX-License-Identifier: Apache-2.0
"""Pools of captured machines: their shape, and the exact CPUs."""

from __future__ import annotations

import pytest
from tests.captures import each_capture, read_capture
from tests.tiers import quick_first

from xruntime.errors import CPUPoolError
from xruntime.threads.cpu_pool import CPUPool


def shown(pools: tuple[CPUPool, ...]) -> list[str]:
    return [str(pool) for pool in pools]


@pytest.mark.long
def test_two_packages_with_smt() -> None:
    """Two packages of 12 cores, one node and one L3 each; siblings are 0 and 24, 1 and 25."""
    machine = read_capture("arbiterd-48cpu")
    assert shown(CPUPool(machine=machine).per_node()) == ["0-11,24-35", "12-23,36-47"]
    assert str(CPUPool(node=1, smt=False, machine=machine)) == "12-23"
    assert shown(CPUPool(machine=machine).split(4)) == [
        "0-5,24-29",
        "6-11,30-35",
        "12-17,36-41",
        "18-23,42-47",
    ]
    assert shown(CPUPool(smt=False, machine=machine).split(5)) == [
        "0-4",
        "5-9",
        "12-16",
        "17-21",
        "10-11,22-23",
    ]
    assert shown(CPUPool(smt=False, machine=machine).split(5, equal=True)) == [
        "0-3",
        "4-7",
        "8-11",
        "12-15",
        "16-19",
    ]


@pytest.mark.long
def test_sub_numa_clusters() -> None:
    """Two packages of 20 cores, one L3 each, two nodes of ten cores whose numbers are interleaved."""
    machine = read_capture("cri-2-socket-4-node-40-core")
    node = CPUPool(node=1, smt=False, machine=machine)
    assert str(node) == "3-4,7-9,13-14,17-19"
    everything = CPUPool(machine=machine)
    assert everything.split(4) == everything.per_node()
    assert [len(part.per_node()) for part in everything.split(8)] == [1] * 8
    assert shown(everything.per_l3()) == ["0-19,40-59", "20-39,60-79"]


@pytest.mark.long
def test_l3_complexes() -> None:
    """An AMD processor of six cores with SMT, three to an L3."""
    machine = read_capture("ghw-linux-amd64-61797caf7c0b6bca1725ad7975ed4773")
    everything = CPUPool(machine=machine)
    assert shown(everything.per_l3()) == ["0-2,6-8", "3-5,9-11"]
    assert everything.split(2) == everything.per_l3()
    assert shown(everything.split(4)) == ["0-1,6-7", "3-4,9-10", "2,8", "5,11"]
    assert shown(everything.split(4, equal=True)) == ["0,6", "1,7", "2,8", "3,9"]


@pytest.mark.long
def test_performance_and_efficiency_cores() -> None:
    """Six performance cores with SMT, siblings side by side, and eight efficiency cores."""
    machine = read_capture("hwloc-20em64t-hybrid-1p6c2t+2ca4co1t")
    everything = CPUPool(machine=machine)
    assert (len(everything), everything.core_count) == (20, 14)
    assert everything.to_dict()["efficiency_cpus"] == list(range(12, 20))
    assert str(CPUPool(smt=False, machine=machine)) == "0,2,4,6,8,10,12-19"
    assert "efficiency cores: CPUs 12-19" in everything.describe().splitlines()


@pytest.mark.long
def test_nodes_without_cpus() -> None:
    """Three nodes with two CPUs each, and four of memory alone."""
    machine = read_capture("hwloc-fakeheteromemtiers")
    assert shown(CPUPool(machine=machine).per_node()) == ["0-1", "2-3", "4-5"]
    with pytest.raises(CPUPoolError, match=r"node 6 has no online CPU; .* allowed CPUs: 0-2$"):
        CPUPool(node=6, machine=machine)
    with pytest.raises(
        CPUPoolError, match=r"node 3 does not exist or is offline; .*allowed CPUs: 0-2$"
    ):
        CPUPool(node=3, machine=machine)


@pytest.mark.long
def test_node_numbers_with_holes() -> None:
    """Four packages of two nodes, numbered 0, 1, 2, 33, 34, 45, 72, 73."""
    machine = read_capture("hwloc-48amd64-4pa2n6c-sparse")
    assert str(CPUPool(node=45, machine=machine)) == "30-35"
    with pytest.raises(CPUPoolError, match=r"nodes .*allowed CPUs: 0-2,33-34,45,72-73$"):
        CPUPool(node=3, machine=machine)


@pytest.mark.long
def test_offline_cpus() -> None:
    """Four packages of two cores with SMT; CPUs 2, 5, 13 and 14 are offline."""
    machine = read_capture("hwloc-16em64t-4s2c2t-offlines")
    everything = CPUPool(machine=machine)
    assert str(everything) == "0-1,3-4,6-12,15"
    with pytest.raises(
        CPUPoolError, match=r"CPUs 2,5 are offline; .*allowed CPUs: 0-1,3-4,6-12,15; "
    ):
        CPUPool("0-5", machine=machine)
    assert str(CPUPool("0-5", strict=False, machine=machine)) == "0-1,3-4"
    # The siblings of 5, 2, 13 and 14 are left alone on their cores.
    assert shown(everything.per_core()) == ["0,8", "1,9", "3,11", "4,12", "6", "7,15", "10"]
    assert shown(everything.split(3)) == ["0-1,4,8-9,12", "3,7,11,15", "6,10"]
    assert shown(everything.split(3, equal=True)) == ["0,4,8,12", "3,7,11,15", "6,10"]


@pytest.mark.long
def test_a_cpuset_with_holes() -> None:
    """Eight nodes of two cores; a cpuset allows 0-3, 5-6 and 12-15, and CPU 4 is offline."""
    machine = read_capture("hwloc-16amd64-8n2c-cpusets")
    everything = CPUPool(machine=machine)
    assert str(everything) == "0-3,5-6,12-15"
    assert shown(everything.per_node()) == ["0-1", "2-3", "5", "6", "12-13", "14-15"]
    with pytest.raises(
        CPUPoolError,
        match=r"CPU 4 is offline, CPUs 7-8 are not allowed by cpuset 0-6,12-15 \(/dev/cpuset/dummy\)",
    ):
        CPUPool("4-8", machine=machine)
    with pytest.raises(CPUPoolError, match=r"node 4 has CPUs 8-9, none .*allowed CPUs: 0-3,6-7$"):
        CPUPool(node=4, machine=machine)
    assert shown(everything.split(4, equal=True)) == ["0-1", "2-3", "12-13", "14-15"]
    assert shown(everything.split(5)) == ["0-1", "2-3", "5-6", "12-13", "14-15"]


@pytest.mark.long
def test_a_mask_that_names_cpus_that_are_not_there() -> None:
    """A virtual machine; two nodes of six and four CPUs, the mask allows the first."""
    machine = read_capture("vm-x86-isol-maxcpus")
    assert CPUPool(machine=machine) == CPUPool(node=0, machine=machine)
    with pytest.raises(CPUPoolError, match="node 1 has CPUs 6-9, none of which is allowed"):
        CPUPool(node=1, machine=machine)


@pytest.mark.long
def test_a_quota_is_told() -> None:
    """A container with nine CPUs of fifteen and a quota of three and a half."""
    pool = CPUPool(machine=read_capture("vm-x86-cg1quota"))
    assert str(pool) == "1-3,9-14"
    assert pool.describe().splitlines()[-1].startswith("CPU quota: the time of 3.5 CPUs (")


@pytest.mark.long
def test_four_threads_a_core() -> None:
    """POWER: eight nodes of eight cores with four threads each."""
    machine = read_capture("hwloc-256ppc-8n8s4t")
    pool = CPUPool(node=13, machine=machine)
    assert (str(pool), pool.core_count) == ("224-255", 8)
    assert shown(pool.split(3)) == ["224-235", "236-247", "248-255"]
    assert str(CPUPool("225-231", smt=False, machine=machine)) == "225,228"


@pytest.mark.parametrize("name", quick_first(each_capture(), 4))
def test_every_machine_can_be_divided(name: str) -> None:
    everything = CPUPool(machine=read_capture(name))
    assert everything.cpus == read_capture(name).limits.allowed_cpus
    for parts in (
        everything.per_node(),
        everything.per_l3(),
        everything.per_core(),
        everything.split(min(2, everything.core_count)),
        everything.split(everything.core_count),
    ):
        assert sorted(cpu for part in parts for cpu in part) == list(everything.cpus)
    assert set(everything.per_core()) == set(everything.split(everything.core_count))
    assert everything.describe().splitlines()[0].endswith(f": {everything}")
