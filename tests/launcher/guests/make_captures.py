# SPDX-License-Identifier: Apache-2.0
"""Write the captures of tests/captures that are of QEMU guests, each by `xlaunch topology --capture`.

    python -m tests.launcher.guests.make_captures [NAME...]

Needs qemu-system-x86 and a kernel (fetch_kernel). The captures of real machines there were made by
the same command on those machines.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.launcher.guests.guest import Guest, Shape, boot, find_kernel, numa_nodes
from tests.launcher.guests.initramfs import write_initramfs
from tests.launcher.guests.shapes import ODD, SERVER

CAPTURES = Path(__file__).parents[2] / "captures"
WRITTEN = "/tmp/captured.tar.xz"
PRINT_IT = f"import base64; print(base64.b64encode(open({WRITTEN!r}, 'rb').read()).decode())"


class Captured(NamedTuple):
    """A guest to capture, after `prepare` has run; what it returns is the control group to be in."""

    shape: Shape
    prepare: Callable[[Guest], str] = lambda guest: ""


def switch_off(*cpus: int) -> Callable[[Guest], str]:
    """A preparation that takes those CPUs offline."""

    def prepare(guest: Guest) -> str:
        for cpu in cpus:
            guest.write(f"/sys/devices/system/cpu/cpu{cpu}/online", "0")
        return ""

    return prepare


def enter_container(guest: Guest) -> str:
    """Limit a group to CPUs of two nodes and a group within it to a quota and some memory."""
    guest.make_group("pod", cpuset_cpus="2-11", cpuset_mems="0-2")
    return guest.make_group(
        "pod/container", cpuset_cpus="4-9", cpu_max="250000 100000", memory_max="268435456"
    )


SMT_LAPTOP = ("-smp", "8,sockets=1,cores=4,threads=2", "-m", "512")
GUESTS = {
    "1-cpu": Captured(Shape(("-smp", "1", "-m", "512"))),
    "1-package-4-cores-smt": Captured(Shape(SMT_LAPTOP)),
    "1-package-4-cores-smt-3-cpus-offline": Captured(Shape(SMT_LAPTOP), switch_off(1, 4, 5)),
    "1-package-4-l3-no-numa": Captured(
        Shape(("-smp", "16,sockets=1,dies=4,cores=4,threads=1", "-m", "512"), kernel="numa=off")
    ),
    "2-packages-2-nodes-smt": Captured(
        Shape(
            (
                *("-smp", "16,sockets=2,cores=4,threads=2"),
                *numa_nodes((384, 256), ((10, 21), (21, 10))),
                *("-numa", "cpu,node-id=0,socket-id=0"),
                *("-numa", "cpu,node-id=1,socket-id=1"),
            )
        )
    ),
    "2-packages-4-dies-5-nodes-smt": Captured(SERVER),
    "2-packages-4-dies-5-nodes-smt-container": Captured(SERVER, enter_container),
    "2-packages-4-dies-5-nodes-smt-off": Captured(SERVER, switch_off(*range(1, 16, 2))),
    "3-packages-node-without-memory-isolated-cpu": Captured(ODD),
    "4-packages-8-nodes": Captured(
        Shape(
            (
                *("-smp", "32,sockets=4,dies=2,cores=4,threads=1"),
                *numa_nodes((384, *(128,) * 7)),
                *(
                    word
                    for node in range(8)
                    for word in (
                        "-numa",
                        f"cpu,node-id={node},socket-id={node // 2},die-id={node % 2}",
                    )
                ),
            )
        )
    ),
}


def main(names: list[str]) -> None:
    if unknown := set(names) - set(GUESTS):
        sys.exit(f"no guest is called {', '.join(sorted(unknown))}; there are {', '.join(GUESTS)}")
    kernel = find_kernel()
    if kernel is None:
        sys.exit("no kernel for the guests; tests/launcher/guests/fetch_kernel fetches one")
    with tempfile.TemporaryDirectory() as directory:
        initramfs = Path(directory, "initramfs.cpio")
        write_initramfs(initramfs)
        for name in names or GUESTS:
            shape, prepare = GUESTS[name]
            with boot(
                shape, kernel=kernel, initramfs=initramfs, directory=Path(directory)
            ) as guest:
                group = prepare(guest)
                guest.xlaunch("topology", "--capture", WRITTEN, group=group)
                data = base64.b64decode(guest.python("-c", PRINT_IT).stdout)
            (CAPTURES / f"{name}.tar.xz").write_bytes(data)
            print(f"{name}: {len(data):,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
