# SPDX-License-Identifier: Apache-2.0
"""The machines that guests are made as."""

from __future__ import annotations

from tests.launcher.guests.guest import Shape, numa_nodes

NODE_MIB = (512, 256, 256, 128, 128)
DISTANCES = (
    (10, 12, 21, 21, 28),
    (12, 10, 21, 21, 28),
    (21, 21, 10, 12, 17),
    (21, 21, 12, 10, 17),
    (28, 28, 17, 17, 10),
)
SERVER = Shape(
    # Two packages of two dies, each die a NUMA node of two cores with two threads: CPUs 4n to
    # 4n + 3 are node n. Node 3 is small; node 4 is memory only, nearest to the second package.
    (
        *("-smp", "16,sockets=2,dies=2,cores=2,threads=2"),
        *numa_nodes(NODE_MIB, DISTANCES),
        *("-numa", "cpu,node-id=0,socket-id=0,die-id=0"),
        *("-numa", "cpu,node-id=1,socket-id=0,die-id=1"),
        *("-numa", "cpu,node-id=2,socket-id=1,die-id=0"),
        *("-numa", "cpu,node-id=3,socket-id=1,die-id=1"),
    )
)

ODD = Shape(
    # Three packages of two cores, and room for a fourth. Node 1 has no memory, node 3 no CPUs, and
    # all are equally far from each other; CPU 5 is isolated.
    (
        *("-smp", "6,sockets=4,cores=2,threads=1,maxcpus=8"),
        *numa_nodes((384, 0, 128, 128)),
        *("-numa", "cpu,node-id=0,socket-id=0"),
        *("-numa", "cpu,node-id=1,socket-id=1"),
        *("-numa", "cpu,node-id=2,socket-id=2"),
        *("-numa", "cpu,node-id=2,socket-id=3"),
    ),
    kernel="isolcpus=5",
)
