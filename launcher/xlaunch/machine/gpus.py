# SPDX-License-Identifier: Apache-2.0
"""GPUs by the kernel driver that they are bound to, without loading any vendor's library."""

from __future__ import annotations

import enum
from typing import NamedTuple

from xlaunch.machine.files import Tree


class Vendor(enum.Enum):
    """Who makes a GPU. The value is the vendor's name."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    INTEL = "Intel"


class Gpu(NamedTuple):
    """One model of GPU."""

    vendor: Vendor
    model: str
    """PCI vendor and device. **Ex.:** ``10de:2335``, an H200."""


PCI_DRIVERS = (
    ("nvidia", Vendor.NVIDIA),
    ("amdgpu", Vendor.AMD),
    ("i915", Vendor.INTEL),
    ("xe", Vendor.INTEL),
)

LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
INTEL_LIBRARY = "libze_intel_gpu.so."
"""Intel's compute runtime. **Ex.:** ``libze_intel_gpu.so.1.6.33578``."""


def read_gpus(tree: Tree) -> tuple[Gpu, ...]:
    """The models of GPU in the machine, each once, sorted by vendor and model."""
    found = set()
    for driver, vendor in PCI_DRIVERS:
        directory = f"/sys/bus/pci/drivers/{driver}"
        for address in tree.names(directory):
            if ":" not in address:  # other entries are links and attributes of the driver
                continue
            numbers = [tree.read(f"{directory}/{address}/{name}") for name in ("vendor", "device")]
            if all(numbers):
                found.add(Gpu(vendor, ":".join([str(n).removeprefix("0x") for n in numbers])))
    return tuple(sorted(found, key=lambda gpu: (gpu.vendor.value, gpu.model)))


def read_driver_version(vendor: Vendor, tree: Tree) -> str | None:
    """The version of the driver that compiles for a vendor's GPUs; None if it cannot be read.

    For Intel that is the compute runtime, for AMD ROCm if it is installed: both are in user space.
    """
    if vendor is Vendor.NVIDIA:
        return tree.read("/sys/module/nvidia/version")
    if vendor is Vendor.AMD:
        return tree.read("/opt/rocm/.info/version") or tree.read("/sys/module/amdgpu/version")
    versions = [
        name.removeprefix(INTEL_LIBRARY)
        for directory in LIBRARY_DIRECTORIES
        for name in tree.names(directory)
        if name.startswith(INTEL_LIBRARY)
    ]
    return max(versions, key=len, default=None)
