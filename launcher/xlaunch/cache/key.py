# SPDX-License-Identifier: Apache-2.0
"""Keys: the hardware and the versions that the entries of a cache are valid for.

A key leaves out CPU features that no compiler uses, which a new kernel may add to /proc/cpuinfo, and
packages that the cache's row does not name.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from xlaunch.cache.table import CACHES, Cache, Part
from xlaunch.machine.topology import Gpu
from xlaunch.machine.tree import Tree, parse_fields

UNKNOWN = "unknown"
ABSENT = "absent"
"""The version of a package that is not installed."""

X86_EXTENSIONS = frozenset(
    (
        "cx16", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2", "sse4a", "lahf_lm", "movbe", "abm",
        "bmi1", "bmi2", "tbm", "xop", "fma4", "fma", "f16c", "adx", "avx", "avx2", "avx_vnni",
        "avx_vnni_int8", "avx_vnni_int16", "avx_ifma", "avx_ne_convert", "avx10", "avx512f",
        "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi",
        "avx512_vbmi2", "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq", "avx512_bf16",
        "avx512_fp16", "avx512_vp2intersect", "avx512er", "avx512pf", "avx512_4vnniw",
        "avx512_4fmaps", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "amx_complex", "aes",
        "vaes", "pclmulqdq", "vpclmulqdq", "gfni", "sha_ni", "sha512", "sm3", "sm4",
    )
)  # fmt: skip
"""Names in /proc/cpuinfo of the extensions that ``-march=native`` of GCC and LLVM may use. See
arch/x86/include/asm/cpufeatures.h of Linux and the list of GCC's x86 options. Instructions that
compilers never choose by themselves, such as clwb and xsave, are left out."""

ARM_NOT_EXTENSIONS = frozenset(("evtstrm", "cpuid", "paca", "pacg", "bti"))
"""Features of Arm processors that compilers do not use."""


class Hardware(NamedTuple):
    """The facts of a machine that keys are made of."""

    architecture: str
    instruction_set: tuple[str, ...]
    cpu_model: str
    gpus: tuple[Gpu, ...]
    gpu_drivers: tuple[str, ...]
    """One for each vendor of `gpus`. **Ex.:** ``("NVIDIA 550.54.15",)``."""
    c_library: str = UNKNOWN
    """**Ex.:** ``"glibc 2.36"``; libraries that were linked against another version may not load."""

    @property
    def why_unknown(self) -> str | None:
        """Why compiled code cannot be kept for this machine; None if it can be."""
        if self.instruction_set or sys.platform != "linux":
            return None
        return "/proc/cpuinfo does not say which instructions this processor has; is /proc mounted?"


class Packages(NamedTuple):
    """The environment of the program, as far as it is known."""

    versions: Mapping[str, str] | None = None
    """Version of each installed distribution; None: not known."""
    python: str | None = None
    """**Ex.:** ``"3.11"``."""


class Key(NamedTuple):
    """What the entries of one cache are valid for."""

    cache: str
    parts: tuple[tuple[str, str], ...]
    """**Ex.:** ``(("architecture", "x86_64"), ..., ("torch", "2.13.0+cpu"))``."""

    @property
    def name(self) -> str:
        """The name of its directory. **Ex.:** ``torch2.13.0+cpu-py3.11-x86_64-5f0c9a21``."""
        return _name_of(self.parts)


@functools.cache
def _name_of(parts: tuple[tuple[str, str], ...]) -> str:
    facts, text_of = set(Part), dict(parts)
    text_of_known = {name: text for name, text in parts if text not in (ABSENT, UNKNOWN)}
    words = [f"{name}{text}" for name, text in text_of_known.items() if name not in facts]
    words += [f"py{text_of_known[Part.PYTHON]}"] if Part.PYTHON in text_of_known else []
    digest = zlib.crc32(repr(parts).encode())
    text = "-".join([*words, text_of[Part.ARCHITECTURE], f"{digest:08x}"])
    return "".join([c if c.isalnum() or c in "+-._" else "_" for c in text])


def is_key_name(name: str) -> bool:
    """Whether a directory has a name that only `Key.name` gives."""
    return re.fullmatch(r".+-[0-9a-f]{8}", name) is not None


def read_hardware(root: str = "/") -> Hardware:
    """Read what keys are made of from /proc and /sys."""
    # Imported here: a program whose cache a launch has chosen needs no key.
    from xlaunch.machine.gpus import gpu_models, read_driver_version, read_gpus
    from xlaunch.machine.sysfs import glibc_version

    tree = Tree(root)
    architecture = os.uname().machine if hasattr(os, "uname") else UNKNOWN
    fields = parse_fields(tree.read_start("/proc/cpuinfo").split("\n\n", 1)[0])
    gpus = gpu_models(read_gpus(tree))
    vendors = dict.fromkeys(gpu.vendor for gpu in gpus)
    glibc = glibc_version()
    return Hardware(
        architecture,
        _instruction_set(architecture, fields, tree),
        " ".join([fields[name] for name in _MODEL if name in fields]) or UNKNOWN,
        gpus,
        tuple([f"{v.value} {read_driver_version(v, tree) or UNKNOWN}" for v in vendors]),
        "glibc {}.{}".format(*glibc) if glibc is not None else "not glibc",
    )


_MODEL = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "cpu", "uarch")


def _instruction_set(architecture: str, fields: Mapping[str, str], tree: Tree) -> tuple[str, ...]:
    if "flags" in fields:  # x86
        return tuple(sorted(X86_EXTENSIONS.intersection(fields["flags"].split())))
    if architecture == "aarch64":
        extensions = {*fields.get("Features", "").split()} - ARM_NOT_EXTENSIONS
        if "sve" in extensions:  # the width of its vectors differs between processors
            width = tree.read("/proc/sys/abi/sve_default_vector_length")
            extensions.add(f"sve-{width or UNKNOWN}-bytes")
        return tuple(sorted(extensions))
    names = ("isa", "features", "Features", "cpu", "machine")
    return tuple([fields[name] for name in names if name in fields])


def key_of(cache: Cache, hardware: Hardware, packages: Packages) -> Key:
    """The key of one cache for a machine and a program's environment."""
    facts = {
        Part.ARCHITECTURE: hardware.architecture,
        Part.INSTRUCTION_SET: " ".join(hardware.instruction_set) or UNKNOWN,
        Part.CPU_MODEL: hardware.cpu_model,
        Part.C_LIBRARY: hardware.c_library,
        Part.PYTHON: packages.python or UNKNOWN,
        Part.GPUS: ", ".join([f"{g.vendor.value} {g.model}" for g in hardware.gpus]) or ABSENT,
        Part.GPU_DRIVER: ", ".join(hardware.gpu_drivers) or ABSENT,
    }
    versions = packages.versions
    parts = [(part.value, facts[part]) for part in cache.parts]
    for name in cache.packages:
        version = UNKNOWN if versions is None else versions.get(name, ABSENT)
        if version is not ABSENT or name == cache.packages[0]:
            parts.append((name, version))
    return Key(cache.name, tuple(parts))


def applies(cache: Cache, hardware: Hardware, *, everything: bool = False) -> bool:
    """Whether a launch sets up this cache. `everything`: also if it changes what programs do."""
    if cache.changes_behaviour and not everything:
        return False
    return cache.vendor is None or cache.vendor in {gpu.vendor for gpu in hardware.gpus}


def fingerprint(hardware: Hardware, packages: Packages) -> dict[str, Any]:
    """The keys of all caches with their parts, as plain values: ``xlaunch cache fingerprint``."""
    keys = [key_of(cache, hardware, packages) for cache in CACHES]
    return {
        "schema_version": 1,
        "caches": {key.cache: {"key": key.name, "parts": dict(key.parts)} for key in keys},
    }


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Why two sets of parts are not the same key, a line for each part.

    **Ex.:** ``instruction_set: only the first has amx_bf16 amx_int8``. Two unknown instruction sets
    may be different ones.
    """
    lines = []
    for name in dict.fromkeys([*one, *other]):
        left, right = one.get(name, ABSENT), other.get(name, ABSENT)
        instructions = name == Part.INSTRUCTION_SET
        unknown = instructions and {left, right} & {UNKNOWN, ""}
        if left == right and not unknown:
            continue
        if unknown or not instructions:
            lines.append(f"{name}: {left}; {right}")
            continue
        words, others = set(left.split()), set(right.split())
        halves = [("the first", words - others), ("the second", others - words)]
        lines += [f"{name}: only {w} has {' '.join(sorted(it))}" for w, it in halves if it]
    return lines
