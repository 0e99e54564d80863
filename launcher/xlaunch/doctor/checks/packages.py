# SPDX-License-Identifier: Apache-2.0
"""torch's build against the GPUs and their driver, and its companions' versions. Nothing is imported."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from xlaunch.doctor.checks.findings import (
    Check,
    Facts,
    Finding,
    Severity,
    has_environment,
    ok,
    serious,
    warning,
)
from xlaunch.environment.python_environment import find_installed, site_directories
from xlaunch.machine.gpus import DRIVERS, PCI_DRIVERS, bound_devices, read_driver_version, read_gpus
from xlaunch.machine.topology import Vendor
from xlaunch.machine.tree import read_file

COMPANIONS = ("torchvision", "torchaudio", "torchao", "torchtext", "torchdata")

MIN_DRIVERS = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
"""The oldest NVIDIA driver for each major version of CUDA: NVIDIA, CUDA Compatibility, Minor Version
Compatibility; the CUDA Toolkit's release notes have the last two numbers."""

BUILDS = {Vendor.NVIDIA: "cuda", Vendor.AMD: "hip", Vendor.INTEL: "xpu"}
"""The name in torch/version.py that is set in a build for a vendor's GPUs."""
INDEX = "https://download.pytorch.org/whl"
OFFICIAL_BUILD = re.compile(r"cpu|xpu|cu[0-9]+|rocm[0-9.]+")
"""The builds that `INDEX` has, as versions end in them."""
LARGE_BYTES = 4 << 30
"""Memory of an AMD GPU that is not part of a processor."""


def show_build(facts: Facts) -> Iterator[Finding]:
    """Whether torch is built for the GPUs that are here, and for their driver."""
    torch = _read_torch(facts)
    if torch is None:
        yield ok(f"torch is not installed for {facts.interpreter}")
        return
    version = torch.get("__version__") or "?"
    vendors = sorted({gpu.vendor for gpu in read_gpus(facts.tree)}, key=lambda vendor: vendor.value)
    built = [vendor for vendor, name in BUILDS.items() if torch.get(name)]
    for vendor in vendors:
        if vendor in built:
            continue
        large = _is_large(facts, vendor)
        kind = f"is built for {built[0].value}'s GPUs" if built else "is a CPU-only build"
        yield Finding(
            Severity.SERIOUS if large and not set(built) & set(vendors) else Severity.ADVICE,
            f"torch {version} {kind}, beside a GPU of {vendor.value}"
            + ("" if large else " that is part of the processor"),
            "everything runs on the CPU, whatever the program asks for: in one case 213 images/s instead "
            "of 1,600 on the GPU",
            _install(vendor, version),
        )
    cuda, driver = torch.get("cuda"), read_driver_version(Vendor.NVIDIA, facts.tree)
    if driver is None:  # NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...
        text = facts.tree.read("/proc/driver/nvidia/version") or ""
        match = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
        driver = match[0] if match else None
    needed = MIN_DRIVERS.get((*_numbers(cuda or ""), 0)[0])
    if needed is not None and driver is not None and _numbers(driver) < needed:
        yield serious(
            f"torch {version} needs an NVIDIA driver {'{}.{:02}.{:02}'.format(*needed)} or newer; this is {driver}",
            f"CUDA {cuda} does not start on it without NVIDIA's package cuda-compat, and "
            "torch.cuda.is_available() is False (NVIDIA, CUDA "
            "Compatibility)",
            f"sudo apt-get install nvidia-driver-{needed[0]}  # then restart the machine",
        )
    elif vendors and set(built) & set(vendors):
        beside = f", driver {driver}" if cuda and driver else ""
        yield ok(f"torch {version} is built for the GPU{beside}")
    elif not vendors:
        yield ok(f"torch {version}, and no GPU with a driver")


def _install(vendor: Vendor, version: str) -> str:
    """The command that installs this version of torch for a vendor's GPUs. PyPI has CUDA's build."""
    builds = {Vendor.AMD: "rocmVERSION", Vendor.INTEL: "xpu"}
    index = f" --index-url {INDEX}/{builds[vendor]}" if vendor in builds else ""
    return f"pip install --force-reinstall torch=={version.partition('+')[0]}{index}"


def _is_large(facts: Facts, vendor: Vendor) -> bool:
    """Whether a vendor has a GPU here that is not part of a processor."""
    if vendor is Vendor.NVIDIA:
        return True
    own = [place for place in bound_devices(facts.tree) if PCI_DRIVERS[place[0]] is vendor]
    if vendor is Vendor.INTEL:  # the processor's own is always at this address
        return any(address != "0000:00:02.0" for _, address in own)
    files = [f"{DRIVERS}/{driver}/{address}/mem_info_vram_total" for driver, address in own]
    return any((facts.tree.read_int(file) or 0) >= LARGE_BYTES for file in files)


def _read_torch(facts: Facts) -> dict[str, str | None] | None:
    """The values of torch/version.py; None without torch."""
    assert facts.prefix is not None
    for site in site_directories(facts.prefix, facts.interpreter):
        text = read_file(f"{site}/torch/version.py", max_bytes=1 << 16)
        if text is not None:
            values = re.findall(
                r"(?m)^(\w+)(?: *:[^=\n]+)? *= *(None|'.*'|\".*\") *$",
                text.decode(errors="replace"),
            )
            return {name: ast.literal_eval(value) for name, value in values}
    return None


def show_companions(facts: Facts) -> Iterator[Finding]:
    """Whether packages that hold compiled code for torch were built for this one."""
    assert facts.prefix is not None
    assert facts.interpreter is not None
    installed = find_installed(facts.prefix, facts.interpreter, facts.environment).packages or {}
    torch = (_read_torch(facts) or {}).get("__version__") or installed.get("torch")
    if torch is None:
        return
    public, _, torchs = torch.partition("+")
    # PyPI's packages have no build in their metadata; their companions are PyPI's, too.
    from_index = OFFICIAL_BUILD.fullmatch(torchs) and "+" in installed.get("torch", torch)
    index = f" --index-url {INDEX}/{torchs}" if from_index else ""
    fits = []
    for name in COMPANIONS:
        if name not in installed:
            continue
        version, wanted = installed[name], _requirement(facts, name)
        local = version.partition("+")[2]
        try:
            fit = wanted.contains(Version(torch), prereleases=True)
        except InvalidVersion:  # it cannot be told
            fit = True
        if not fit:
            reason = f"it asks for torch{wanted}, and {torch} is installed"
            # Without --upgrade, torch stays as it is.
            command = f"pip install torch=={public} {name}"
        elif local and torchs and local != torchs:
            reason = f"it is built for {local}, and torch for {torchs}"
            # Another build of the same version satisfies pip, and may sort above the right one.
            command = f"pip install --force-reinstall --no-deps {name}=={version.partition('+')[0]}"
        else:
            fits.append(f"{name} {version}")
            continue
        yield warning(
            f"{name} {version} does not belong to torch {torch}",
            f"{reason}: its compiled operators may fail to load or crash (its metadata, Requires-Dist)",
            command + index,
        )
    if fits:
        yield ok(f"{', '.join(fits)}: for torch {torch}")


def _requirement(facts: Facts, package: str) -> SpecifierSet:
    """What a package's metadata asks of torch. **Ex.:** ``==2.8.0``; empty if nothing."""
    assert facts.prefix is not None
    sites = site_directories(facts.prefix, facts.interpreter)
    lines: list[str] = []
    with contextlib.suppress(UnicodeDecodeError):
        for distribution in metadata.distributions(name=package, path=[*sites]):
            lines = lines or distribution.requires or []
    for line in lines:
        with contextlib.suppress(InvalidRequirement):
            required = Requirement(line)
            if required.name == "torch" and required.marker is None:
                return required.specifier
    return SpecifierSet()


def _numbers(version: str) -> tuple[int, ...]:
    """**Ex.:** ``2.8.0rc1``: ``(2, 8, 0)``."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


CHECKS = (
    Check("torch-build", show_build, has_environment),
    Check("torch-companions", show_companions, has_environment),
)
