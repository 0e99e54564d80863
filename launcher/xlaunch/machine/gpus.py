# SPDX-License-Identifier: Apache-2.0
"""GPUs by the kernel driver that they are bound to, without loading any vendor's library."""

from __future__ import annotations

from collections.abc import Iterable

from xlaunch.machine.topology import Gpu, Vendor
from xlaunch.machine.tree import Tree

__all__ = ["PCI_DRIVERS", "Gpu", "Vendor", "gpu_models", "read_driver_version", "read_gpus"]

PCI_DRIVERS = (
    ("nvidia", Vendor.NVIDIA),
    ("amdgpu", Vendor.AMD),
    ("i915", Vendor.INTEL),
    ("xe", Vendor.INTEL),
)
DRIVERS, DEVICES = "/sys/bus/pci/drivers", "/sys/bus/pci/devices"
CLASSES = ("0x0300", "0x0302", "0x0380", "0x12")
"""Display controllers, 3D controllers, other displays, processing accelerators."""
VENDORS = {"0x10de": Vendor.NVIDIA, "0x1002": Vendor.AMD, "0x8086": Vendor.INTEL}

LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
INTEL_LIBRARY = "libze_intel_gpu.so."
"""Intel's compute runtime. **Ex.:** ``libze_intel_gpu.so.1.6.33578``."""


def read_gpus(tree: Tree, *, captured: bool = False) -> tuple[Gpu, ...]:
    """Every GPU that a driver has, in the order of `Gpus.found`.

    `captured`: in a tree without drivers, displays and accelerators of the three vendors are GPUs.
    """
    places = [
        (vendor, address, f"{DRIVERS}/{driver}/{address}")
        for driver, vendor in PCI_DRIVERS
        for address in tree.names(f"{DRIVERS}/{driver}")
        if ":" in address  # other entries are links and attributes of the driver
    ]
    if captured and not tree.has_directory(DRIVERS):
        places = [
            (VENDORS[maker], address, f"{DEVICES}/{address}")
            for address in tree.names(DEVICES)
            if (maker := tree.read(f"{DEVICES}/{address}/vendor") or "") in VENDORS
            and (tree.read(f"{DEVICES}/{address}/class") or "").startswith(CLASSES)
        ]
    found = []
    for vendor, address, directory in places:
        numbers = [tree.read(f"{directory}/{name}") for name in ("vendor", "device")]
        if all(numbers):
            node = tree.read_int(f"{directory}/numa_node")
            model = ":".join([str(number).removeprefix("0x") for number in numbers])
            uuid = (
                nvidia_facts(tree, address).get("GPU UUID", "") if vendor is Vendor.NVIDIA else ""
            )
            found.append(
                Gpu(vendor, model, address, node if node is not None and node >= 0 else None, uuid)
            )
    amd = _rocm_order(tree) if any(gpu.vendor is Vendor.AMD for gpu in found) else {}
    vendors = list(Vendor)
    found.sort(
        key=lambda gpu: (
            vendors.index(gpu.vendor),
            amd.get(gpu.address, len(amd)),
            [int(number, 16) for number in gpu.address.replace(".", ":").split(":")],
        )
    )
    return tuple(found)


def gpu_models(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The distinct models, sorted by vendor and model."""
    models = {Gpu(gpu.vendor, gpu.model) for gpu in gpus}
    return tuple(sorted(models, key=lambda gpu: (gpu.vendor.value, gpu.model)))


def nvidia_facts(tree: Tree, address: str) -> dict[str, str]:
    """What NVIDIA's driver says of a GPU. **Ex.:** ``{"GPU UUID": "GPU-5c1f...", "Device Minor": "0"}``."""
    text = tree.read(f"/proc/driver/nvidia/gpus/{address}/information") or ""
    pairs = [line.partition(":") for line in text.splitlines()]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _rocm_order(tree: Tree) -> dict[str, int]:
    """The node number of each AMD GPU by its PCI address; ROCm numbers GPUs in the order of
    these.
    """
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    order = {}
    for number in tree.numbered(nodes, ""):
        text = tree.read(f"{nodes}/{number}/properties") or ""
        facts = dict([line.partition(" ")[::2] for line in text.splitlines()])
        if facts.get("simd_count", "0") != "0":
            place, domain = int(facts.get("location_id", "0")), int(facts.get("domain", "0"))
            bus, slot, function = place >> 8 & 0xFF, place >> 3 & 0x1F, place & 7
            order[f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"] = number
    return order


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
