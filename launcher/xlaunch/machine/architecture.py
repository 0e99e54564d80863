# SPDX-License-Identifier: Apache-2.0
"""The architecture of a machine or a captured tree, by the name that uname uses."""

from __future__ import annotations

import os

from xlaunch.machine.tree import Tree

UNKNOWN = "unknown"


def read_architecture(tree: Tree, *, live: bool) -> str:
    """The name that uname gives; for a captured tree, the one in the kernel's file, else a guess
    from other files.
    """
    if live:
        return os.uname().machine
    return (
        tree.read("/proc/sys/kernel/arch")  # since Linux 6.1
        or _from_cpuinfo(tree.read("/proc/cpuinfo") or "")
        or _from_sysfs(tree)
        or UNKNOWN
    )


def _from_cpuinfo(text: str) -> str | None:
    """The architecture from fields that only its kernel prints."""
    # Reversed, so that the first counts: 32-bit Arm kernels write "Processor" before "processor".
    fields = {name.lower(): value for name, value in reversed(parse_cpuinfo(text[:16384]).items())}
    if "flags" in fields:
        # Only 32-bit kernels report the bug of the first Pentium, also on 64-bit processors.
        is_64_bit = "fdiv_bug" not in fields and " lm " in f" {fields['flags']} "
        return "x86_64" if is_64_bit else "i686"
    if fields.get("vendor_id", "").startswith("IBM/S390"):
        return "s390x"
    if fields.get("arch") == "IA-64":
        return "ia64"
    if "cpu implementer" in fields or "ARM" in fields.get("processor", ""):
        features = fields.get("features", "").split()
        return "armv7l" if {"half", "thumb", "swp"}.intersection(features) else "aarch64"
    if isa := fields.get("isa"):
        for beginning, name in (("rv64", "riscv64"), ("rv32", "riscv32")):
            if isa.startswith(beginning):
                return name
        return "loongarch64" if "loongarch64" in isa else None
    if "loongson-64bit" in fields.get("cpu family", "").lower():
        return "loongarch64"
    cpu = fields.get("cpu", "")
    if "sparc" in cpu.lower():
        return "sparc64"
    if cpu.startswith("POWER"):
        # The byte order is nowhere in cpuinfo; systems for POWER9 and later are little-endian.
        generation = "".join(ch for ch in cpu[5:7] if ch.isdecimal())
        return "ppc64le" if generation and int(generation) >= 9 else "ppc64"
    if "platform" in fields and "machine" in fields:
        return "ppc"
    return None


def _from_sysfs(tree: Tree) -> str | None:
    """The architecture from an attribute that only its kernel fills in.

    ``physical_line_partition`` is x86's alone among the attributes of caches, and Itanium was the
    only one with a level 2 cache for instructions.
    """
    cpu_directory = "/sys/devices/system/cpu"
    first = f"{cpu_directory}/cpu{next(iter(tree.numbered(cpu_directory, 'cpu')), 0)}"
    if tree.read(first + "/regs/identification/midr_el1"):
        return "aarch64"
    if tree.read(first + "/topology/book_id"):
        return "s390x"
    if tree.read(first + "/topology/ppin"):
        return "x86_64"
    for index in tree.numbered(first + "/cache", "index"):
        directory = f"{first}/cache/index{index}"
        if tree.read(directory + "/physical_line_partition"):
            return "x86_64"
        if (
            tree.read(directory + "/level") == "2"
            and tree.read(directory + "/type") == "Instruction"
        ):
            return "ia64"
    return None


def parse_cpuinfo(text: str) -> dict[str, str]:
    """**Ex.:** ``{"processor": "0", "vendor_id": "AuthenticAMD", "cpu family": "25", ...}``."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def glibc_version() -> tuple[int, int] | None:
    """The system's glibc version; None with another C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, minor = version.split(".")[:2]
    except (ValueError, OSError, AttributeError):
        return None
    return (int(major), int(minor)) if name == "glibc" else None
