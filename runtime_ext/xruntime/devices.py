# SPDX-License-Identifier: Apache-2.0
"""`device`: where a script computes, chosen by what works; and the option ``--device`` for its users.

    parser = argparse.ArgumentParser()
    device_option(parser)                  # --device auto|cpu|cuda[:N]|xpu[:N]|mps
    device = parser.parse_args().device    # a torch.device on which a small result was computed
    print(describe_device(device))

The line on standard error says what was taken and why others were not:

    xruntime: device cpu (AMD EPYC); not cuda, xpu, mps: not in this build of torch (2.13.0+cpu)
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from xlaunch.machine.gpus import read_driver_version, read_gpus
from xlaunch.machine.topology import Vendor
from xlaunch.machine.tree import Tree, parse_fields
from xlaunch.text import align, format_cpu_list, size
from xruntime.errors import DeviceError

if TYPE_CHECKING:
    import click
    import torch

VARIABLE = "XLAUNCH_DEVICE"
"""The device that ``auto`` stands for; without it, whatever works."""

KINDS = ("cuda", "xpu", "mps", "cpu")
"""What ``auto`` tries, in this order."""

SPELLINGS = "auto, cpu, cuda[:N], xpu[:N] or mps"
VENDORS = {"cuda": (Vendor.NVIDIA, Vendor.AMD), "xpu": (Vendor.INTEL,)}
"""The vendors of the GPUs of each kind; torch calls AMD's "cuda", too."""

BF16_FLAGS = frozenset(("avx512_bf16", "amx_bf16", "bf16"))
"""Instructions for bf16 as /proc/cpuinfo names them; the last is Arm's."""

MAX_REASON_CHARACTERS = 200

Target = TypeVar("Target")


class DeviceProperties(NamedTuple):
    """The properties of a device, and as `str()` a text of a few lines. None: unknown, not applicable."""

    device: str
    """**Ex.:** ``cuda:0``."""
    name: str
    """**Ex.:** ``NVIDIA H100 80GB HBM3``."""
    memory_bytes: int | None
    """Memory of a GPU; for the CPU, the part of the machine's memory that this process may use."""
    free_bytes: int | None
    """Memory of a GPU that no process has taken."""
    compute_capability: str | None
    """**Ex.:** ``9.0`` of NVIDIA, ``gfx942`` of AMD."""
    driver: str | None
    torch: str
    """torch's version and what it is built for. **Ex.:** ``2.11.0+cu130 (CUDA 13.0)``."""
    bf16: bool | None
    """Whether the hardware has instructions for bfloat16."""
    cpus: str | None
    """The CPUs that this process may use, for the CPU. **Ex.:** ``0-3,8-11``."""
    instruction_set: str | None
    """The instruction set that torch's own kernels use on the CPU. **Ex.:** ``AVX512``."""

    def __str__(self) -> str:
        facts = self._asdict()
        rows = [
            ("", label.removesuffix("_bytes").replace("_", " "), _as_text(value))
            for label, value in facts.items()
            if value is not None and label != "device"
        ]
        return "\n".join([f"device {self.device}", *align(rows)])


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return size(value) if isinstance(value, int) else str(value)


def device(name: str | torch.device = "auto") -> torch.device:
    """Return a device that works: a small result was computed on it and was right.

    name
        ``auto``, ``cpu``, ``cuda``, ``cuda:N``, ``xpu``, ``xpu:N`` or ``mps``. Of ``cuda`` and ``xpu`` the
        first that works is taken, beginning with the current one. ``auto`` is what the variable
        XLAUNCH_DEVICE says; without it the first that works of cuda, xpu, mps and cpu.

    A line on standard error says which was taken and why others were not, once for each. The process has initialized
    the device then, so it has to choose after it has forked. Raises `DeviceError` if the name is
    unknown or the named device does not work.
    """
    asked, prefix = str(name), ""
    if asked == "auto" and os.environ.get(VARIABLE):
        asked, prefix = os.environ[VARIABLE], f"{VARIABLE}: "
    refused: dict[str, list[str]] = {}
    for candidate in _candidates(asked, prefix):
        problem = _problem(candidate)
        if problem is None:
            _say(candidate, f"device {candidate} ({_name_of(candidate)})", prefix, refused)
            return candidate
        refused.setdefault(problem, []).append(str(candidate))
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in refused.items())
    raise DeviceError(f"{prefix}device {reasons}; cpu always works, auto takes what works")


def describe_device(name: str | torch.device = "auto") -> DeviceProperties:
    """Return the properties of a device, chosen and checked as by `device`; print them to read them."""
    import torch

    chosen = device(name)
    memory_bytes = free_bytes = capability = driver = bf16 = cpus = instruction_set = None
    if chosen.type == "cpu":
        if sys.platform.startswith("linux"):
            from xlaunch.machine import read_machine
            from xlaunch.machine.limits import usable_memory_bytes

            limits = read_machine().limits
            memory_bytes = usable_memory_bytes(limits)
            cpus = format_cpu_list(limits.allowed_cpus)
        flags = cpu_bf16_flags()
        bf16 = None if flags is None else bool(flags)
        instruction_set = torch.backends.cpu.get_cpu_capability()
    elif chosen.type == "mps":
        memory_bytes = torch.mps.recommended_max_memory()
        free_bytes = memory_bytes - torch.mps.driver_allocated_memory()
        driver = f"macOS {platform.mac_ver()[0]}"
        bf16 = _problem(chosen, torch.bfloat16) is None
    else:
        properties: Any = getattr(torch, chosen.type).get_device_properties(chosen)
        memory_bytes = properties.total_memory
        with contextlib.suppress(RuntimeError):  # some of Intel's do not say
            free_bytes = getattr(torch, chosen.type).mem_get_info(chosen)[0]
        if chosen.type == "xpu":
            driver = properties.driver_version
            bf16 = getattr(properties, "has_bfloat16_conversions", None)
        elif torch.version.hip:
            capability = properties.gcnArchName
            driver = read_driver_version(Vendor.AMD, Tree("/"))
            bf16 = True
        else:
            capability = f"{properties.major}.{properties.minor}"
            driver = read_driver_version(Vendor.NVIDIA, Tree("/"))
            bf16 = properties.major >= 8
    return DeviceProperties(
        device=str(chosen),
        name=_name_of(chosen),
        memory_bytes=memory_bytes,
        free_bytes=free_bytes,
        compute_capability=capability,
        driver=driver,
        torch=f"{torch.__version__} ({_built_for()})",
        bf16=bf16,
        cpus=cpus,
        instruction_set=instruction_set,
    )


def device_option(target: Target) -> Target:
    """Give a command line the option ``--device``, whose value is a `torch.device` that works.

    target
        A parser of argparse, or a group of one; or a function that click makes a command of, then as a
        decorator. It is returned.

            device_option(parser)                        @click.command()
            device = parser.parse_args().device          @device_option
                                                         def train(device): ...

    The default is ``auto``, see `device`. A device that is unknown or does not work is a usage error of
    one line. torch is imported when the command line is read, and not for ``--help``.
    """
    text = f"{SPELLINGS}; auto (the default) is {VARIABLE}, or what works"
    add_argument = getattr(target, "add_argument", None)
    if add_argument is not None:
        add_argument("--device", type=_argparse_type, default="auto", metavar="DEVICE", help=text)
        return target
    if not callable(target):
        raise DeviceError(
            f"device_option({target!r}): not a parser of argparse, nor a function for click"
        )
    import click

    option = click.option(
        "--device", callback=_click_callback, default="auto", metavar="DEVICE", help=text
    )
    return option(target)


def _argparse_type(text: str) -> torch.device:
    import argparse

    try:
        return device(text)
    except DeviceError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _click_callback(
    context: click.Context, parameter: click.Parameter, text: str
) -> torch.device | None:
    import click

    if context.resilient_parsing:  # the shell completes a line
        return None
    try:
        return device(text)
    except DeviceError as error:
        raise click.BadParameter(str(error), context, parameter) from error


def _candidates(asked: str, prefix: str) -> list[torch.device]:
    import torch

    if asked == "auto":
        return [candidate for kind in KINDS for candidate in _candidates(kind, prefix)]
    if not re.fullmatch(r"(cuda|xpu)(:\d{1,3})?|(cpu|mps)(:0)?", asked):
        raise DeviceError(f"{prefix}device {asked!r}: not {SPELLINGS}")
    kind, colon, _ = asked.partition(":")
    if kind in ("cpu", "mps"):
        return [torch.device(kind)]
    module: Any = getattr(torch, kind)
    count = module.device_count()
    if colon or not count:
        return [torch.device(asked)]
    current = module.current_device() if module.is_initialized() else 0
    return [torch.device(kind, (current + step) % count) for step in range(count)]


def _problem(chosen: torch.device, dtype: torch.dtype | None = None) -> str | None:
    """Why a product of two matrices cannot be computed on the device; None if it can."""
    import torch

    kind = chosen.type
    built = {
        "cpu": True,
        "cuda": bool(torch.version.cuda or torch.version.hip),
        "xpu": torch.version.xpu is not None,
        "mps": torch.backends.mps.is_built(),
    }
    if not built[kind]:
        problem = f"not in this build of torch ({torch.__version__})"
        beside = [gpu.vendor for gpu in read_gpus(Tree("/")) if gpu.vendor in VENDORS.get(kind, ())]
        if beside:
            problem += (
                f", and this machine has a GPU of {beside[0].value}: install torch's build for it"
            )
        return problem
    count = getattr(torch, kind).device_count()
    if 0 < count <= (chosen.index or 0):
        return f"there is none of this number, only {kind}:0" + (
            f" to {kind}:{count - 1}" if count > 1 else ""
        )
    try:
        # Sums up to 72, which bf16 has exactly.
        numbers = (torch.arange(64, device="cpu") % 4).reshape(8, 8)
        matrix = numbers.to(chosen, dtype or torch.float32)
        right = torch.equal((matrix @ matrix).cpu().long(), numbers @ numbers)
    except Exception as error:  # noqa: BLE001 - drivers raise anything; the reason is reported
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return (lines or [type(error).__name__])[0][:MAX_REASON_CHARACTERS]
    return None if right else "it computes a wrong product of two matrices"


def _name_of(chosen: torch.device) -> str:
    import torch

    if chosen.type in ("cuda", "xpu"):
        return str(getattr(torch, chosen.type).get_device_name(chosen))
    name = parse_fields(Tree("/").read_start("/proc/cpuinfo")).get("model name")
    return name or platform.processor() or platform.machine()


def cpu_bf16_flags() -> tuple[str, ...] | None:
    """The flags of this CPU's instructions for bf16, sorted; None where /proc/cpuinfo has no flags."""
    flags = cpu_flags()
    return tuple(sorted(BF16_FLAGS & flags)) if flags else None


def cpu_flags() -> set[str]:
    """The CPU's flags from /proc/cpuinfo; empty if it has none."""
    fields = parse_fields(Tree("/").read_start("/proc/cpuinfo"))
    return set((fields.get("flags") or fields.get("Features") or "").split())  # x86, Arm


def _built_for() -> str:
    from torch import version

    versions = {"CUDA": version.cuda, "ROCm": version.hip, "XPU": version.xpu}
    return (
        ", ".join(f"{name} {number}" for name, number in versions.items() if number) or "CPU only"
    )


_said: set[torch.device] = set()


def _say(taken: torch.device, text: str, prefix: str, refused: dict[str, list[str]]) -> None:
    """One line on standard error for each device that a process takes."""
    if taken in _said or sys.stderr is None:
        return
    _said.add(taken)
    parts = [f"xruntime: {prefix}{text}"]
    parts += [f"not {', '.join(names)}: {reason}" for reason, names in refused.items()]
    with contextlib.suppress(OSError, ValueError):  # it is closed
        print("; ".join(parts), file=sys.stderr, flush=True)
