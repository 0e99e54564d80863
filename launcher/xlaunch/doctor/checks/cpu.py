# SPDX-License-Identifier: Apache-2.0
"""The CPUs: frequency, boost, offline and isolated ones, their topology, and the instruction set."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from xlaunch.doctor.checks.findings import Check, Facts, Finding, advice, ok, warning
from xlaunch.machine.tree import parse_fields
from xlaunch.text import counted, format_cpu_list, name_numbers

CPU = "/sys/devices/system/cpu"
MAX_NAMES = 60
"""Maximum characters of a list of CPUs; of a longer one only the number of CPUs is shown."""
MAX_COMMAND_NAMES = 45
"""The same, in a command that is shown whole: a longer list needs several commands."""
OWN_GOVERNORS = ("intel_pstate", "amd-pstate-epp")
"""Drivers whose "powersave" does not mean a low frequency: see amd-pstate.rst."""

ATEN = "ATEN_CPU_CAPABILITY"
ONEDNN = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")

TORCH_LEVELS = (
    ("avx512", ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma")),
    ("avx2", ("avx2", "fma")),
    ("default", ()),
)
"""Kernels that torch is built with, and what they need: aten/src/ATen/native/DispatchStub.cpp."""

ONEDNN_LEVELS = (
    ("avx512_core_amx", ("avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")),
    ("avx512_core_bf16", ("avx512_bf16",)),
    ("avx512_core_vnni", ("avx512_vnni",)),
    ("avx512_core", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    ("avx2_vnni", ("avx_vnni",)),
    ("avx2", ("avx2",)),
    ("avx", ("avx",)),
    ("sse41", ("sse4_1",)),
)
"""oneDNN developer guide, CPU Dispatcher Control."""


def show_governor(facts: Facts) -> Iterator[Finding]:
    """Whether the frequency follows the load, and how."""
    governors: dict[str, list[int]] = {}
    for cpu in facts.machine.limits.allowed_cpus:
        if governor := facts.tree.read(f"{CPU}/cpu{cpu}/cpufreq/scaling_governor"):
            governors.setdefault(governor, []).append(cpu)
    first = facts.machine.limits.allowed_cpus[0]
    driver = facts.tree.read(f"{CPU}/cpu{first}/cpufreq/scaling_driver") or "cpufreq"
    command = "sudo cpupower frequency-set -g performance"
    for governor, cpus in governors.items():
        where = "" if len(governors) == 1 else f" on {name_numbers('CPU', cpus)}"
        setting = f"frequency governor {governor} ({driver}){where}"
        if governor == "performance":
            yield ok(setting)
        elif governor == "powersave" and driver not in OWN_GOVERNORS:
            yield warning(
                setting,
                "it keeps the lowest frequency whatever the load is"
                f"{_range(facts, first)} (kernel, admin-guide/pm/cpufreq.rst)",
                command,
            )
        else:
            preference = facts.tree.read(f"{CPU}/cpu{first}/cpufreq/energy_performance_preference")
            if preference in ("performance", "balance_performance"):
                yield ok(f"{setting}, prefers {preference}")
                continue
            yield advice(
                setting + (f", prefers {preference}" if preference else ""),
                "the frequency rises only after load was seen, so short work runs slower and "
                f"timings vary{_range(facts, first)} (kernel, admin-guide/pm/cpufreq.rst)",
                command,
            )


def _range(facts: Facts, cpu: int) -> str:
    """**Ex.:** ``: 0.8 to 3.9 GHz here``."""
    low, high = (
        facts.tree.read_int(f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_{end}_freq") for end in ("min", "max")
    )
    return f": {low / 1e6:.1f} to {high / 1e6:.1f} GHz here" if low and high else ""


def show_boost(facts: Facts) -> Iterator[Finding]:
    """Whether frequencies above the nominal one are allowed."""
    no_turbo = facts.tree.read(f"{CPU}/intel_pstate/no_turbo")
    boost = facts.tree.read(f"{CPU}/cpufreq/boost")
    if no_turbo is None and boost is None:
        return
    if no_turbo == "1" or (no_turbo is None and boost == "0"):
        cppc = f"{CPU}/cpu{facts.machine.limits.allowed_cpus[0]}/acpi_cppc"
        highest, nominal = (
            facts.tree.read_int(f"{cppc}/{name}_perf") for name in ("highest", "nominal")
        )
        gain = (
            f": up to {highest / nominal:.2f} times here (acpi_cppc)" if highest and nominal else ""
        )
        path, value = ("intel_pstate/no_turbo", 0) if no_turbo == "1" else ("cpufreq/boost", 1)
        yield warning(
            "boost is off",
            f"cores stay at their nominal frequency though power and heat allow more{gain} "
            "(kernel, admin-guide/pm/cpufreq.rst, Frequency Boost Support)",
            f"echo {value} | sudo tee {CPU}/{path}",
        )
    else:
        yield ok("boost is on")


def show_offline(facts: Facts) -> Iterator[Finding]:
    """CPUs that are present but offline, apart from SMT siblings that were switched off."""
    offline = facts.machine.topology.offline_cpus
    online = len(facts.machine.topology.online_cpus)
    # Siblings may be switched off together, or one by one; an offline CPU does not show its core.
    control, active = (facts.tree.read(f"{CPU}/smt/{name}") for name in ("control", "active"))
    without_smt = control in ("off", "forceoff") or (control == "on" and active == "0")
    if not offline or (without_smt and len(offline) <= online):
        return
    named = name_numbers("CPU", offline)
    if len(named) > MAX_NAMES:
        named = counted(len(offline), "CPU")
    lists = textwrap.wrap(format_cpu_list(offline).replace(",", " "), MAX_COMMAND_NAMES)
    commands = [f"sudo chcpu --enable {cpus.replace(' ', ',')}" for cpus in lists]
    yield advice(
        f"{named} {'is' if len(offline) == 1 else 'are'} offline",
        f"{counted(online, 'CPU')} of {online + len(offline)} can run anything",
        "\n".join(commands),
    )


def show_isolated(facts: Facts) -> Iterator[Finding]:
    """CPUs that the scheduler does not balance, among those that may be used."""
    allowed = facts.machine.limits.allowed_cpus
    isolated = [cpu for cpu in allowed if cpu in facts.machine.topology.isolated_cpus]
    others = format_cpu_list([cpu for cpu in allowed if cpu not in isolated])
    if isolated:
        yield warning(
            f"{name_numbers('CPU', isolated)} may be used, and {'is' if len(isolated) == 1 else 'are'} "
            "isolated",
            "the scheduler moves no thread to or from isolated CPUs: all threads of a team can stay on "
            "one of them (kernel, admin-guide/kernel-parameters.txt, isolcpus)",
            f"xlaunch --cpus {others} PROGRAM"
            if others
            else "xlaunch --instances max --ncores 1 PROGRAM",
        )


def show_topology(facts: Facts) -> Iterator[Finding]:
    """Files of the kernel that contradict each other."""
    for note in facts.machine.notes:
        yield advice(note, "cores and instances are placed by these files", "xlaunch topology")


def show_instruction_set(facts: Facts) -> Iterator[Finding]:
    """The kernels that torch and oneDNN choose: by the CPU, and by variables that hold them back."""
    flags, architecture = facts.flags, facts.machine.topology.architecture
    fields = parse_fields(facts.tree.read_start("/proc/cpuinfo"))
    brand = " ".join(fields.get("model name", "").split())
    named = f"{brand}: " if brand else ""
    if architecture == "aarch64" and flags:
        extensions = [name for name in ("sve2", "sve", "bf16", "i8mm") if name in flags]
        instructions = f"{named}Arm with {', '.join(['asimd', *extensions])}"
        yield ok(instructions)
    if architecture != "x86_64" or not flags:
        return
    torch = _levels(TORCH_LEVELS, flags)
    onednn = _levels(ONEDNN_LEVELS, flags)
    used = facts.environment.get(ATEN, "").lower()
    if used in torch[1:]:
        yield _held_back(ATEN, facts.environment[ATEN], f"torch could use {torch[0]}")
    for variable in ONEDNN:
        limit = facts.environment.get(variable, "").lower()
        level_names = [name for name, _ in ONEDNN_LEVELS]
        if (
            limit in level_names
            and onednn
            and level_names.index(limit) > level_names.index(onednn[0])
        ):
            yield _held_back(variable, facts.environment[variable], f"oneDNN could use {onednn[0]}")
            onednn = [limit]
    if torch[0] == "default":
        virtual = "hypervisor" in flags
        yield warning(
            f"{named}no AVX2{', or it is hidden' if virtual else ''}",
            "torch uses its kernels of 128 bits: a quarter of AVX-512's width"
            + (". The hypervisor may show an older model than the host is" if virtual else ""),
            "virsh edit DOMAIN  # <cpu mode='host-passthrough'/>" if virtual else "",
        )
        return
    level = used if used in torch else torch[0]
    yield ok(f"{named}torch uses {level}, oneDNN {onednn[0] if onednn else 'none'}")


def _levels(table: tuple[tuple[str, tuple[str, ...]], ...], flags: frozenset[str]) -> list[str]:
    return [name for name, needed in table if flags.issuperset(needed)]


def _held_back(variable: str, value: str, could: str) -> Finding:
    return warning(
        f"{variable}={value} holds back the instruction set",
        f"{could}. With AMX, ResNet-50 ran at 387 images/s in bf16 and 148 in fp32 (docs/optimize.md)",
        f"unset {variable}",
    )


CHECKS = (
    Check("frequency-governor", show_governor),
    Check("boost", show_boost),
    Check("offline-cpus", show_offline),
    Check("isolated-cpus", show_isolated),
    Check("topology", show_topology),
    Check("instruction-set", show_instruction_set),
)
