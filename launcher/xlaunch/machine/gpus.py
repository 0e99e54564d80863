# SPDX-License-Identifier: Apache-2.0
"""GPUs by the kernel driver that they are bound to, without loading any vendor's library, and those for instances.

Instances may get the GPUs whose device nodes can be opened, and that variables leave. A variable such as
CUDA_VISIBLE_DEVICES that this process inherits is the machine: only the GPUs that it names are divided, in
its order. Among several vendors the one counts whose variable is inherited, else the first of NVIDIA, AMD
and Intel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from xlaunch.machine.topology import Gpu, Gpus, Vendor
from xlaunch.machine.tree import Tree, parse_fields

PCI_DRIVERS = {
    "nvidia": Vendor.NVIDIA,
    "amdgpu": Vendor.AMD,
    "i915": Vendor.INTEL,
    "xe": Vendor.INTEL,
}
DRIVERS, DEVICES = "/sys/bus/pci/drivers", "/sys/bus/pci/devices"
CLASSES = ("0x0300", "0x0302", "0x0380", "0x12")
"""Display controllers, 3D controllers, other displays, processing accelerators."""
VENDORS = {"0x10de": Vendor.NVIDIA, "0x1002": Vendor.AMD, "0x8086": Vendor.INTEL}

LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
INTEL_LIBRARY = "libze_intel_gpu.so."
"""Intel's compute runtime. **Ex.:** ``libze_intel_gpu.so.1.6.33578``."""

CUDA, CUDA_ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
HIP, ROCR = "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
LEVEL_ZERO, SYCL = "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"
VARIABLES = (CUDA, HIP, ROCR, LEVEL_ZERO, SYCL)
"""Variables that choose GPUs."""
LEVEL_ZERO_ORDER, LEVEL_ZERO_HIERARCHY = "ZE_ENABLE_PCI_ID_DEVICE_ORDER", "ZE_FLAT_DEVICE_HIERARCHY"
COUNTING = (CUDA_ORDER, LEVEL_ZERO_ORDER, LEVEL_ZERO_HIERARCHY)
"""Variables that decide how `VARIABLES` count."""
BY_PCI_ADDRESS = "PCI_BUS_ID"
"""The value of `CUDA_ORDER` under which CUDA counts GPUs as `Gpus.found` does."""


def read_gpus(tree: Tree, *, captured: bool = False) -> tuple[Gpu, ...]:
    """Every GPU that a driver has, in the order of `Gpus.found`.

    `captured`: in a tree without drivers, displays and accelerators of the three vendors are GPUs.
    """
    places = [
        (PCI_DRIVERS[driver], address, f"{DRIVERS}/{driver}/{address}")
        for driver, address in bound_devices(tree)
    ]
    if captured and not tree.has_directory(DRIVERS):
        places = [
            (VENDORS[maker], address, f"{DEVICES}/{address}")
            for address in tree.names(DEVICES)
            if (maker := tree.read(f"{DEVICES}/{address}/vendor") or "") in VENDORS
            and (tree.read(f"{DEVICES}/{address}/class") or "").startswith(CLASSES)
        ]
    gpus = []
    for vendor, address, directory in places:
        numbers = [tree.read(f"{directory}/{name}") for name in ("vendor", "device")]
        if all(numbers):
            node = tree.read_int(f"{directory}/numa_node")
            if node is not None and node < 0:
                node = None
            model = ":".join([str(number).removeprefix("0x") for number in numbers])
            facts = _nvidia_facts(tree, address) if vendor is Vendor.NVIDIA else {}
            gpus.append(Gpu(vendor, model, address, node, facts.get("GPU UUID", "")))
    amd = _rocm_order(tree) if any(gpu.vendor is Vendor.AMD for gpu in gpus) else {}
    vendors = list(Vendor)
    gpus.sort(
        key=lambda gpu: (
            vendors.index(gpu.vendor),
            amd.get(gpu.address, len(amd)),
            [int(number, 16) for number in gpu.address.replace(".", ":").split(":")],
        )
    )
    return tuple(gpus)


def bound_devices(tree: Tree) -> Iterator[tuple[str, str]]:
    """Driver and PCI address of each device that one of `PCI_DRIVERS` has, the addresses sorted."""
    for driver in PCI_DRIVERS:
        for address in sorted(tree.names(f"{DRIVERS}/{driver}")):
            if ":" in address:  # other entries are links and attributes of the driver
                yield driver, address


def gpu_models(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The distinct models, sorted by vendor and model."""
    models = {Gpu(gpu.vendor, gpu.model) for gpu in gpus}
    return tuple(sorted(models, key=lambda gpu: (gpu.vendor.value, gpu.model)))


def _nvidia_facts(tree: Tree, address: str) -> dict[str, str]:
    """What NVIDIA's driver says of a GPU. **Ex.:** ``{"GPU UUID": "GPU-5c1f...", "Device Minor": "0"}``."""
    text = tree.read(f"/proc/driver/nvidia/gpus/{address}/information") or ""
    return parse_fields(text)


def _rocm_order(tree: Tree) -> dict[str, int]:
    """The node number of each AMD GPU by its PCI address, in whose order ROCm numbers GPUs."""
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


class _CannotDivideError(Exception):
    """A variable names GPUs in a way that cannot be divided; the message says why."""


def usable_gpus(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> Gpus:
    """Those of the `gpus` that the variables of `environment` leave to this process."""
    choices = []
    for vendor in Vendor:
        own = [gpu for gpu in gpus if gpu.vendor is vendor]
        if not own:
            continue
        names = [name for name in _NAMES[vendor] if name in environment]
        narrowed_by = " ".join([f"{name}={environment[name]}" for name in names])
        choice = Gpus(tuple(gpus), (), narrowed_by)
        try:
            choice = choice._replace(usable=tuple(_NARROW[vendor](own, environment)))
        except _CannotDivideError as error:
            choice = choice._replace(problem=str(error))
        choices.append(choice)
    # A choice by a variable first; then any that leaves some; then the reason why there are none.
    return max(
        choices,
        key=lambda gpus: (
            bool(gpus.narrowed_by and (gpus.usable or gpus.problem)),
            bool(gpus.usable),
        ),
        default=Gpus(tuple(gpus)),
    )


def openable(gpus: Sequence[Gpu], root: str = "/") -> tuple[Gpu, ...]:
    """Those of the `gpus` whose device nodes this process may open; a container has some of them.

    For each device node of NVIDIA's that cannot be matched to a GPU there is one without an address.
    """
    tree, prefix = Tree(root), root.rstrip("/")

    def opens(node: str) -> bool:
        return os.access(f"{prefix}/dev/{node}", os.R_OK | os.W_OK)

    nvidia = [gpu for gpu in gpus if gpu.vendor is Vendor.NVIDIA]
    minors = {gpu: _nvidia_facts(tree, gpu.address).get("Device Minor") for gpu in nvidia}
    nodes = [n for n in tree.numbered("/dev", "nvidia") if opens(f"nvidia{n}")]
    if nvidia and None not in minors.values():
        nvidia = [gpu for gpu, minor in minors.items() if opens(f"nvidia{minor}")]
    elif len(nvidia) != len(nodes):
        nvidia = [Gpu(Vendor.NVIDIA, "")] * len(nodes)
    others = []
    for gpu in gpus:
        if gpu.vendor is not Vendor.NVIDIA:
            names = tree.names(f"{DEVICES}/{gpu.address}/drm")
            render = [name for name in names if name.startswith("renderD")]
            if not render or any(opens(f"dri/{name}") for name in render):
                others.append(gpu)
    return (*nvidia, *others)


def _numbered(gpus: Sequence[Gpu], variable: str) -> list[Gpu]:
    return [gpu._replace(variable=variable, name=str(i)) for i, gpu in enumerate(gpus)]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _listed(gpus: Sequence[Gpu], variable: str, text: str) -> list[Gpu]:
    """The GPUs that a list of numbers and UUIDs names; the first unknown word ends it, as CUDA has it."""
    listed: list[Gpu] = []
    seen: set[tuple[str, str]] = set()
    for word in _words(text):
        named = [gpu for gpu in gpus if word.startswith("GPU-") and gpu.uuid.startswith(word)]
        all_are_known = word.startswith("GPU-") and all(gpu.uuid for gpu in gpus)
        if word.isdecimal() and int(word) < len(gpus):
            gpu = gpus[int(word)]
        elif len(named) == 1:
            gpu = named[0]
        elif gpus and word.startswith(("GPU-", "MIG-")) and not (named or all_are_known):
            gpu = Gpu(gpus[0].vendor, "")  # it has a name and no known place
        else:
            break
        key = (gpu.address, gpu.name) if gpu.address else ("", word)
        if key in seen:
            raise _CannotDivideError(f"{variable}={text} names a GPU twice")
        seen.add(key)
        listed.append(gpu._replace(variable=variable, name=word))
    return listed


def _narrow_nvidia(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    text = environment.get(CUDA)
    if text is None:
        return _numbered(gpus, CUDA)
    listed = _listed(gpus, CUDA, text)
    unlike = len({gpu.model for gpu in gpus}) > 1 and any(gpu.name.isdecimal() for gpu in listed)
    if unlike and environment.get(CUDA_ORDER) != BY_PCI_ADDRESS:
        raise _CannotDivideError(
            f"{CUDA}={text} counts unlike GPUs in CUDA's own order, the fastest first: "
            f"set {CUDA_ORDER}={BY_PCI_ADDRESS} and count as nvidia-smi does, or name UUIDs"
        )
    return listed


def _narrow_amd(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """HIP counts what ROCR_VISIBLE_DEVICES leaves, so HIP's variable divides it further."""
    if (text := environment.get(ROCR)) is not None:
        gpus = _listed(gpus, ROCR, text)
    text = environment.get(HIP) or environment.get(CUDA, environment.get(HIP))
    return _numbered(gpus, HIP) if text is None else _listed(gpus, HIP, text)


def _narrow_intel(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """SYCL counts what ZE_AFFINITY_MASK leaves."""
    if text := environment.get(LEVEL_ZERO):
        words = _words(text)
        numbers = [word.partition(".")[0] for word in words]  # 0.1 is a tile of card 0
        if not all(number.isdecimal() and int(number) < len(gpus) for number in numbers):
            raise _CannotDivideError(f"{LEVEL_ZERO}={text} names GPUs that are not here")
        gpus = [
            gpus[int(number)]._replace(variable=LEVEL_ZERO, name=word)
            for number, word in zip(numbers, words, strict=True)
        ]
    else:
        gpus = _numbered(gpus, LEVEL_ZERO)
    selector = environment.get(SYCL, "").lower()
    if not selector or re.fullmatch(r"(level_zero|\*):(gpu|\*)", selector):
        return list(gpus)
    numbers_only = re.fullmatch(r"level_zero:(\d+(?:,\d+)*)", selector)
    if numbers_only is None:
        raise _CannotDivideError(
            f"{SYCL}={environment[SYCL]} cannot be divided; write level_zero:0,1"
        )
    return _listed(gpus, SYCL, numbers_only[1])


_NAMES = {Vendor.NVIDIA: (CUDA,), Vendor.AMD: (ROCR, HIP, CUDA), Vendor.INTEL: (LEVEL_ZERO, SYCL)}
_NARROW = {Vendor.NVIDIA: _narrow_nvidia, Vendor.AMD: _narrow_amd, Vendor.INTEL: _narrow_intel}
