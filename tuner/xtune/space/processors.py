# SPDX-License-Identifier: Apache-2.0
"""The model of a machine's processor, from /proc/cpuinfo."""

from __future__ import annotations

import re
from typing import NamedTuple

from xlaunch.machine.files import Tree

_IDENTITY = (
    "vendor_id", "cpu family", "model", "model name", "stepping",  # x86, LoongArch
    "cpu implementer", "cpu architecture", "cpu variant", "cpu part", "cpu revision",  # Arm
    "mvendorid", "marchid", "mimpid", "uarch", "isa",  # RISC-V
    "cpu", "revision", "arch", "family", "type",  # POWER, SPARC, Itanium
)  # fmt: skip
"""Fields, in lower case, that identify the design of a core; unlike clock rate, serial number and
microcode."""

_S390_MACHINE = re.compile(r"\bmachine = (\d+)")

# Other words, for mitigations and bugs, change with the version of the kernel.
_VECTOR_FEATURES = {
    "flags": re.compile(
        r"(avx|amx|s?sse|fma|bmi|vaes|vpclmulqdq|gfni)\w*|f16c|sha_ni|hypervisor|lm"
    ),
    "Features": re.compile(r"(asimd|sve|sme|fp|neon|vfp)\w*|bf16|i8mm|half|lsx|lasx|crc32"),
    "features": re.compile(r"v[xm]\w*|sort|dflt"),
}


class Processor(NamedTuple):
    """The model of a machine's cores."""

    models: tuple[str, ...]
    """A line for each design of core, ascending. Empty if unknown.

    **Ex.:** ``"vendor_id=GenuineIntel, cpu family=6, model=207, model name=..., stepping=2"``."""
    features: tuple[str, ...] = ()
    """Vector instruction sets, and ``hypervisor`` in a virtual machine."""

    @property
    def has_fast_bf16(self) -> bool:
        """Whether oneDNN computes in bf16 faster than in fp32: AMX, or Arm's BF16 extension."""
        return "amx_bf16" in self.features or {"asimd", "bf16"} <= set(self.features)


def read_processor(root: str = "/") -> Processor:
    """Read the processor of the machine whose /proc is below `root`; empty if it has none."""
    text = Tree(root).read("/proc/cpuinfo") or ""
    models: set[str] = set()
    features: set[str] = set()
    common: dict[str, str] = {}
    for block in re.split(r"\n\s*\n", text):
        lines = [line.partition(":") for line in block.splitlines() if ":" in line]
        values = {name.strip(): value.strip() for name, _, value in lines}
        for name, known in _VECTOR_FEATURES.items():
            words = values.get(name, "").split()
            features |= {word for word in words if known.fullmatch(word)}
        machines = {m[1] for value in values.values() if (m := _S390_MACHINE.search(value))}
        lowered = {name.lower(): value for name, value in values.items()}
        identity = {name: lowered[name] for name in _IDENTITY if name in lowered}
        if machines:
            identity["machine"] = "/".join(sorted(machines))
        # s390 and some Arm kernels give the design once, outside the blocks of the CPUs.
        if "processor" not in values:
            common |= identity
        elif identity:
            models.add(", ".join([f"{name}={value}" for name, value in identity.items()]))
    if common:
        shared = ", ".join([f"{name}={value}" for name, value in common.items()])
        models = {f"{model}, {shared}" for model in models} or {shared}
    return Processor(tuple(sorted(models)), tuple(sorted(features)))
