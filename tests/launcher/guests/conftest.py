# SPDX-License-Identifier: Apache-2.0
"""The guests: each shape is booted once, by the first test that asks for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from launcher.guests.guest import QEMU, Guest, Shape, boot, find_kernel, numa_nodes
from launcher.guests.initramfs import write_initramfs

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

BootShape = Callable[[Shape], AbstractContextManager[Guest]]
MakeGroup = Callable[..., str]


@pytest.fixture(scope="session")
def boot_guest(
    needs: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory
) -> BootShape:
    """Boots a guest; skips where QEMU or a kernel is not there."""
    needs(shutil.which(QEMU), f"{QEMU} (Debian: qemu-system-x86)")
    kernel = find_kernel()
    needs(kernel, "a kernel for the guests (tests/launcher/guests/fetch_kernel)")
    initramfs = tmp_path_factory.mktemp("initramfs") / "initramfs.cpio"
    write_initramfs(initramfs)

    def boot_shape(shape: Shape) -> AbstractContextManager[Guest]:
        folder = tmp_path_factory.mktemp("guest")
        return boot(shape, kernel=kernel, initramfs=initramfs, folder=folder)

    return boot_shape


@pytest.fixture(scope="session")
def server(boot_guest: BootShape) -> Iterator[Guest]:
    """A guest of the shape `SERVER`."""
    with boot_guest(SERVER) as guest:
        yield guest


@pytest.fixture(scope="module")
def odd(boot_guest: BootShape) -> Iterator[Guest]:
    """A guest of the shape `ODD`."""
    with boot_guest(ODD) as guest:
        yield guest


@pytest.fixture
def make_group(server: Guest) -> Iterator[MakeGroup]:
    """`Guest.make_group` of the server; the groups are gone after the test."""
    yield server.make_group
    server.remove_groups()
