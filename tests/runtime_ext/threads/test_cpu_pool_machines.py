# SPDX-License-Identifier: Apache-2.0
"""Pools of captured machines: their shape, and the exact CPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.captures import each_capture, read_capture
from tests.tiers import quick_first

from xruntime.errors import CPUPoolError
from xruntime.threads.cpu_pool import CPUPool

MakePool = Callable[..., CPUPool]

# Two packages of 12 cores, one node and one L3 each; siblings are 0 and 24, 1 and 25.
PACKAGES = "arbiterd-48cpu"
# Two packages of 20 cores, one L3 each, two nodes of ten cores whose numbers are interleaved.
CLUSTERS = "cri-2-socket-4-node-40-core"
# An AMD processor of six cores with SMT, three to an L3.
COMPLEXES = "ghw-linux-amd64-61797caf7c0b6bca1725ad7975ed4773"
# Six performance cores with SMT, siblings side by side, and eight efficiency cores.
HYBRID = "hwloc-20em64t-hybrid-1p6c2t+2ca4co1t"
# Three nodes with two CPUs each, and four of memory alone.
MEMORY = "hwloc-fakeheteromemtiers"
# Four packages of two nodes, numbered 0, 1, 2, 33, 34, 45, 72, 73.
SPARSE = "hwloc-48amd64-4pa2n6c-sparse"
# Four packages of two cores with SMT; CPUs 2, 5, 13 and 14 are offline.
OFFLINE = "hwloc-16em64t-4s2c2t-offlines"
# Eight nodes of two cores; a cpuset allows 0-3, 5-6 and 12-15, and CPU 4 is offline.
CPUSET = "hwloc-16amd64-8n2c-cpusets"
# A virtual machine; two nodes of six and four CPUs, the mask allows the first and more that are not there.
MASK = "vm-x86-isol-maxcpus"
# A container with nine CPUs of fifteen and a quota of three and a half.
QUOTA = "vm-x86-cg1quota"
# POWER: eight nodes of eight cores with four threads each.
POWER = "hwloc-256ppc-8n8s4t"


def shown(value: object) -> object:
    """Pools as text."""
    if isinstance(value, tuple):
        return [shown(part) for part in value]
    return str(value) if isinstance(value, CPUPool) else value


@pytest.mark.long
@pytest.mark.machine
@pytest.mark.parametrize(
    ("capture", "make", "expected"),
    [
        (PACKAGES, lambda pool: pool().per_node(), ["0-11,24-35", "12-23,36-47"]),
        (PACKAGES, lambda pool: pool(smt=False).split(5), ["0-4", "5-9", "12-16", "17-21", "10-11,22-23"]),
        (CLUSTERS, lambda pool: pool(node=1, smt=False), "3-4,7-9,13-14,17-19"),
        (CLUSTERS, lambda pool: [len(part.per_node()) for part in pool().split(8)], [1] * 8),
        (COMPLEXES, lambda pool: pool().per_l3(), ["0-2,6-8", "3-5,9-11"]),
        (COMPLEXES, lambda pool: pool().split(4), ["0-1,6-7", "3-4,9-10", "2,8", "5,11"]),
        (HYBRID, lambda pool: (len(pool()), pool().core_count), [20, 14]),
        (HYBRID, lambda pool: pool().to_dict()["efficiency_cpus"], list(range(12, 20))),
        (HYBRID, lambda pool: pool(smt=False), "0,2,4,6,8,10,12-19"),
        (HYBRID, lambda pool: "efficiency cores: CPUs 12-19" in pool().describe().splitlines(), True),
        (MEMORY, lambda pool: pool().per_node(), ["0-1", "2-3", "4-5"]),
        (SPARSE, lambda pool: pool(node=45), "30-35"),
        (OFFLINE, lambda pool: pool(), "0-1,3-4,6-12,15"),
        (OFFLINE, lambda pool: pool("0-5", strict=False), "0-1,3-4"),
        # The siblings of 5, 2, 13 and 14 are left alone on their cores.
        (OFFLINE, lambda pool: pool().per_core(), ["0,8", "1,9", "3,11", "4,12", "6", "7,15", "10"]),
        (OFFLINE, lambda pool: pool().split(3), ["0-1,4,8-9,12", "3,7,11,15", "6,10"]),
        (CPUSET, lambda pool: pool(), "0-3,5-6,12-15"),
        (CPUSET, lambda pool: pool().per_node(), ["0-1", "2-3", "5", "6", "12-13", "14-15"]),
        (CPUSET, lambda pool: pool().split(5), ["0-1", "2-3", "5-6", "12-13", "14-15"]),
        (MASK, lambda pool: pool() == pool(node=0), True),
        (QUOTA, lambda pool: pool(), "1-3,9-14"),
        (QUOTA, lambda pool: "CPU quota: the time of 3.5 CPUs (" in pool().describe(), True),
        (POWER, lambda pool: (pool(node=13), pool(node=13).core_count), ["224-255", 8]),
        (POWER, lambda pool: pool(node=13).split(3), ["224-235", "236-247", "248-255"]),
        (POWER, lambda pool: pool("225-231", smt=False), "225,228"),
    ],
)  # fmt: skip
def test_pools_of_a_captured_machine(
    capture: str, make: Callable[[MakePool], object], expected: object
) -> None:
    assert shown(make(partial(CPUPool, machine=read_capture(capture)))) == expected


@pytest.mark.long
@pytest.mark.machine
@pytest.mark.parametrize(
    ("capture", "named", "said"),
    [
        (MEMORY, {"node": 6}, r"node 6 has no online CPU; .* allowed CPUs: 0-2$"),
        (MEMORY, {"node": 3}, r"node 3 does not exist or is offline; .*allowed CPUs: 0-2$"),
        (SPARSE, {"node": 3}, r"nodes .*allowed CPUs: 0-2,33-34,45,72-73$"),
        (OFFLINE, {"core_ids": "0-5"}, r"CPUs 2,5 are offline; .*allowed CPUs: 0-1,3-4,6-12,15; "),
        (
            *(CPUSET, {"core_ids": "4-8"}),
            r"CPU 4 is offline, CPUs 7-8 are not allowed by cpuset 0-6,12-15 \(/dev/cpuset/dummy\)",
        ),
        (CPUSET, {"node": 4}, r"node 4 has CPUs 8-9, none .*allowed CPUs: 0-3,6-7$"),
        (MASK, {"node": 1}, "node 1 has CPUs 6-9, none of which is allowed"),
    ],
)
def test_cpus_that_a_captured_machine_cannot_give(
    capture: str, named: dict[str, object], said: str
) -> None:
    with pytest.raises(CPUPoolError, match=said):
        CPUPool(**named, machine=read_capture(capture))


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
