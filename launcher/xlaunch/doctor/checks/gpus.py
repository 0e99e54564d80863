# SPDX-License-Identifier: Apache-2.0
"""GPUs: whether a driver has them, their nodes can be opened, and variables leave them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from xlaunch.doctor.checks.findings import Check, Facts, Finding, is_live, ok, serious, warning
from xlaunch.machine.gpus import (
    CLASSES,
    DEVICES,
    DRIVERS,
    PCI_DRIVERS,
    SYCL,
    VARIABLES,
    VENDORS,
    bound_devices,
    read_driver_version,
    read_gpus,
    usable_gpus,
)
from xlaunch.machine.topology import Vendor

INSTALL = {
    Vendor.NVIDIA: "sudo apt-get install nvidia-driver-580",
    Vendor.AMD: "sudo modprobe amdgpu",
    Vendor.INTEL: "sudo modprobe xe || sudo modprobe i915",
}
GUESTS = ("vfio-pci", "pci-stub", "xen-pciback")
"""Drivers that keep a device for a guest."""
WITHOUT_GPUS = re.compile(
    r"(?i)!(level_zero|\*):(gpu|\*)|([\w*]+:(cpu|fpga)|opencl:[^;]*)(;([\w*]+:(cpu|fpga)|opencl:[^;]*))*"
)
"""Values of ONEAPI_DEVICE_SELECTOR that leave torch no GPU: it uses those of level_zero."""


def show_driver(facts: Facts) -> Iterator[Finding]:
    """GPUs on the bus, by the driver that has them."""
    bound = {address: PCI_DRIVERS[driver] for driver, address in bound_devices(facts.tree)}
    taken = set(bound)
    for driver in GUESTS:
        taken.update(facts.tree.names(f"{DRIVERS}/{driver}"))
    # A captured tree without drivers says nothing about them.
    drivers = facts.live or bool(facts.tree.names(DRIVERS))
    for address in sorted(facts.tree.names(DEVICES)):
        kind = facts.tree.read(f"{DEVICES}/{address}/class") or ""
        vendor = VENDORS.get(facts.tree.read(f"{DEVICES}/{address}/vendor") or "")
        if vendor is None or not kind.startswith(CLASSES) or address in taken or not drivers:
            continue
        # A driver that is loaded may serve other GPUs.
        own = [driver for driver, maker in PCI_DRIVERS.items() if maker is vendor]
        loaded = [name for name in own if facts.tree.names(f"{DRIVERS}/{name}")]
        bind = [f"echo {address} | sudo tee {DRIVERS}/{name}/bind" for name in loaded]
        yield warning(
            f"{address}: a GPU of {vendor.value} that no driver of its vendor has",
            "no program can use it, and torch finds no device",
            bind[0] if bind else INSTALL[vendor],
        )
    for vendor in sorted(set(bound.values()), key=lambda vendor: vendor.value):
        count = list(bound.values()).count(vendor)
        version = read_driver_version(vendor, facts.tree)
        yield ok(f"{vendor.value}: {count}, driver {version or 'present'}")


def show_nodes(facts: Facts) -> Iterator[Finding]:
    """Whether this user may open the device nodes."""
    tree = facts.tree
    drivers = {driver for driver, _ in bound_devices(tree)}
    nodes = []
    if "nvidia" in drivers:
        numbered = [f"/dev/nvidia{n}" for n in tree.numbered("/dev", "nvidia")]
        nodes += ["/dev/nvidiactl", *(numbered or ["/dev/nvidia0"])]
    if drivers - {"nvidia"}:
        render = [f"/dev/dri/renderD{n}" for n in tree.numbered("/dev/dri", "renderD")]
        nodes += render or ["/dev/dri"]
    if "amdgpu" in drivers:
        nodes.append("/dev/kfd")
    missing = [node for node in nodes if not os.path.exists(node)]
    closed = [
        node for node in nodes if node not in missing and not os.access(node, os.R_OK | os.W_OK)
    ]
    for what, names in (("do not exist", missing), ("may not be opened by this user", closed)):
        if names:
            inside = "docker run --gpus all IMAGE  # NVIDIA\ndocker run --device /dev/dri IMAGE"
            yield warning(
                f"{', '.join(names)} {what}",
                "a program opens them to use the GPU; without them torch finds no device",
                inside
                if names is missing
                else "sudo usermod -aG render,video $USER  # then log in again",
            )
    if nodes and not missing and not closed:
        yield ok(f"{', '.join(nodes)} can be opened")


def show_hidden(facts: Facts) -> Iterator[Finding]:
    """Whether inherited variables hide every GPU of a vendor from programs."""
    gpus = read_gpus(facts.tree)
    for vendor in Vendor:
        own = [gpu for gpu in gpus if gpu.vendor is vendor]
        visible = usable_gpus(own, facts.environment)
        without = vendor is Vendor.INTEL and WITHOUT_GPUS.fullmatch(facts.environment.get(SYCL, ""))
        if own and visible.narrowed_by and not visible.usable and (without or not visible.problem):
            names = [name for name in VARIABLES if f"{name}=" in visible.narrowed_by]
            yield serious(
                f"{visible.narrowed_by} hides {'the GPU' if len(own) == 1 else 'every GPU'} of {vendor.value}",
                "torch finds no device, and everything runs on the CPU, whatever torch is built for",
                f"unset {' '.join(names)}",
            )


CHECKS = (
    Check("gpu-driver", show_driver),
    Check("gpu-nodes", show_nodes, is_live),
    Check("gpu-variables", show_hidden),
)
