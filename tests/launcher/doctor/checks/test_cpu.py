# SPDX-License-Identifier: Apache-2.0
"""Checks of the CPUs, each on trees where it fires and where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.doctor.checks.made_up import (
    AMX,
    AVX512,
    CPU_DIRECTORY,
    expect,
    machine,
    one,
    shown,
    told,
)

from xlaunch.doctor.checks.findings import Severity

OK, ADVICE, WARNING = Severity.OK, Severity.ADVICE, Severity.WARNING
Files = dict[str, str]


def frequency(governor: str, driver: str, preference: str = "") -> Files:
    values = {"scaling_governor": governor, "scaling_driver": driver}
    values |= {"cpuinfo_min_freq": "800000", "cpuinfo_max_freq": "3900000"}
    values |= {"energy_performance_preference": preference} if preference else {}
    return {f"{CPU_DIRECTORY}/cpu0/cpufreq/{name}": value for name, value in values.items()}


def boost(name: str, value: str) -> Files:
    cppc = f"{CPU_DIRECTORY}/cpu0/acpi_cppc"
    files = {f"{cppc}/highest_perf": "196", f"{cppc}/nominal_perf": "140"}
    return files | {f"{CPU_DIRECTORY}/{name}": value}


ISOLATED = {f"{CPU_DIRECTORY}/isolated": "2-3"}
GUEST = {"proc/cpuinfo": "flags : fpu lm hypervisor"}


def test_checks(golden: Golden, tmp_path: Path):
    found = []
    for number, (check, files) in enumerate((
        ("frequency-governor", frequency("performance", "acpi-cpufreq")),
        ("frequency-governor", frequency("powersave", "acpi-cpufreq")),
        ("frequency-governor", frequency("schedutil", "acpi-cpufreq")),
        ("frequency-governor", frequency("powersave", "intel_pstate", "balance_performance")),
        ("frequency-governor", frequency("powersave", "amd-pstate-epp", "power")),
        ("boost", boost("intel_pstate/no_turbo", "1")), ("boost", boost("intel_pstate/no_turbo", "0")),
        ("boost", boost("cpufreq/boost", "0")), ("boost", boost("cpufreq/boost", "1")), ("offline-cpus", {}),
        ("isolated-cpus", ISOLATED),
        ("isolated-cpus", ISOLATED | {"proc/self/status": "Cpus_allowed_list: 2-3"}),
        ("isolated-cpus", ISOLATED | {"proc/self/status": "Cpus_allowed_list: 0-1"}), ("topology", GUEST),
        ("instruction-set", {"proc/cpuinfo": "flags : lm hypervisor sse4_1"}),
        ("instruction-set", {"proc/cpuinfo": "CPU implementer : 0x41\nFeatures : fp asimd sve bf16"}),
        ("instruction-set", {}),
    )):  # fmt: skip
        found += told(check, machine(tmp_path / str(number), files))
    golden(found)


def test_governors_that_differ_are_named_with_their_cpus(golden: Golden, tmp_path: Path):
    files = {
        f"{CPU_DIRECTORY}/cpu{cpu}/cpufreq/scaling_governor": governor
        for cpu, governor in enumerate(["performance", "powersave", "performance", "powersave"])
    }
    found = [it.found for it in shown("frequency-governor", machine(tmp_path, files))]
    golden(found)


def test_offline_cpus(golden: Golden, tmp_path: Path):
    off = {f"{CPU_DIRECTORY}/cpu{cpu}/online": "0" for cpu in (2, 3)}
    finding = one("offline-cpus", machine(tmp_path / "off", off, online="0-1"))
    golden(finding.found, finding.advise)


def test_many_offline_cpus_take_several_commands(tmp_path: Path):
    apart = range(5, 200, 2)  # beside the machine's own four
    off = {f"{CPU_DIRECTORY}/cpu{cpu}/online": "0" for cpu in apart}
    finding = one("offline-cpus", machine(tmp_path / "off", off, online="0"))
    commands = [command.rpartition(" ") for command in finding.advise.split("\n")]
    assert {start for start, _, _ in commands} == {"sudo chcpu --enable"}
    assert max(len(listed) for _, _, listed in commands) <= 45
    assert ",".join([listed for _, _, listed in commands]) == ",".join(["1-3", *map(str, apart)])


@pytest.mark.parametrize(
    ("control", "active", "online", "expected"),
    [
        ("off", "0", "0-1", None),
        ("forceoff", "0", "0-1", None),
        ("on", "0", "0-1", None),  # siblings were switched off one by one
        ("on", "1", "0-1", ADVICE),
        ("notsupported", "0", "0-1", ADVICE),
        ("off", "0", "0", ADVICE),  # more than the siblings of one core
    ],
)
def test_offline_siblings(
    control: str, active: str, online: str, expected: Severity | None, tmp_path: Path
):
    files = {f"{CPU_DIRECTORY}/cpu{cpu}/online": "0" for cpu in (1, 2, 3)}
    files |= {f"{CPU_DIRECTORY}/smt/control": control, f"{CPU_DIRECTORY}/smt/active": active}
    if online == "0-1":
        del files[f"{CPU_DIRECTORY}/cpu1/online"]
    expect("offline-cpus", machine(tmp_path, files, online=online), expected)


def test_instruction_set(golden: Golden, tmp_path: Path):
    found = []
    for number, flags in enumerate((f"{AVX512} {AMX}", AVX512, "avx2 fma avx sse4_1")):
        cpuinfo = {"proc/cpuinfo": f"model name : A CPU\nflags : lm {flags}"}
        found += told("instruction-set", machine(tmp_path / str(number), cpuinfo))
    golden(found)


def test_instruction_set_held_back_by_variables(golden: Golden, tmp_path: Path):
    cpuinfo = {"proc/cpuinfo": f"flags : lm {AVX512} {AMX}"}
    variables = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    held, limited, used = shown("instruction-set", machine(tmp_path, cpuinfo, **variables))
    assert held.advise == "unset ATEN_CPU_CAPABILITY"
    golden(held.why, limited.found, used.found)
    higher = {"ONEDNN_MAX_CPU_ISA": "ALL", "ATEN_CPU_CAPABILITY": "avx512"}
    expect("instruction-set", machine(tmp_path, cpuinfo, **higher), OK)
