# SPDX-License-Identifier: Apache-2.0
"""Checks of the CPUs, each on a tree where it fires and on one where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.launcher.doctor.checks.made_up import AMX, AVX512, CPU_DIRECTORY, machine, one, shown

from xlaunch.doctor.checks.findings import Severity


def frequency(governor: str, driver: str, **more: str) -> dict[str, str]:
    directory = f"{CPU_DIRECTORY}/cpu0/cpufreq"
    values = {"scaling_governor": governor, "scaling_driver": driver, **more}
    return {f"{directory}/{name}": value for name, value in values.items()}


@pytest.mark.parametrize(
    ("governor", "driver", "preference", "severity"),
    [
        ("performance", "acpi-cpufreq", "", Severity.OK),
        ("powersave", "acpi-cpufreq", "", Severity.WARNING),
        ("schedutil", "acpi-cpufreq", "", Severity.ADVICE),
        ("powersave", "intel_pstate", "balance_performance", Severity.OK),
        ("powersave", "amd-pstate-epp", "power", Severity.ADVICE),
    ],
)
def test_governor(governor: str, driver: str, preference: str, severity: Severity, tmp_path: Path):
    files = frequency(governor, driver, cpuinfo_min_freq="800000", cpuinfo_max_freq="3900000")
    if preference:
        files |= frequency(governor, driver, energy_performance_preference=preference)
    finding = one("frequency-governor", machine(tmp_path, files))
    assert finding.severity is severity
    assert governor in finding.found
    if severity is not Severity.OK:
        assert "0.8 to 3.9 GHz here" in finding.why


def test_governors_that_differ_are_named_with_their_cpus(tmp_path: Path):
    files = {
        f"{CPU_DIRECTORY}/cpu{cpu}/cpufreq/scaling_governor": governor
        for cpu, governor in enumerate(["performance", "powersave", "performance", "powersave"])
    }
    found = [it.found for it in shown("frequency-governor", machine(tmp_path, files))]
    assert found == [
        "frequency governor performance (cpufreq) on CPUs 0,2",
        "frequency governor powersave (cpufreq) on CPUs 1,3",
    ]


@pytest.mark.parametrize(
    ("files", "severity"),
    [
        ({"intel_pstate/no_turbo": "1"}, Severity.WARNING),
        ({"intel_pstate/no_turbo": "0"}, Severity.OK),
        ({"cpufreq/boost": "0"}, Severity.WARNING),
        ({"cpufreq/boost": "1"}, Severity.OK),
    ],
)
def test_boost(files: dict[str, str], severity: Severity, tmp_path: Path):
    files = {f"{CPU_DIRECTORY}/{name}": value for name, value in files.items()}
    cppc = f"{CPU_DIRECTORY}/cpu0/acpi_cppc"
    files |= {f"{cppc}/highest_perf": "196", f"{cppc}/nominal_perf": "140"}
    finding = one("boost", machine(tmp_path, files))
    assert finding.severity is severity
    if severity is Severity.WARNING:
        assert "up to 1.40 times here" in finding.why


def test_smt(tmp_path: Path):
    assert one("smt", machine(tmp_path / "off", {})).found == "one hardware thread a core"
    siblings = {
        f"{CPU_DIRECTORY}/cpu{cpu}/topology/core_cpus_list": "0-1" if cpu < 2 else "2-3"
        for cpu in range(4)
    }
    assert "2 hardware threads a core" in one("smt", machine(tmp_path / "on", siblings)).found


def test_offline_cpus(tmp_path: Path):
    off = {f"{CPU_DIRECTORY}/cpu{cpu}/online": "0" for cpu in (2, 3)}
    finding = one("offline-cpus", machine(tmp_path / "off", off, online="0-1"))
    assert finding.found == "CPUs 2-3 are offline"
    siblings = off | {f"{CPU_DIRECTORY}/smt/control": "off"}
    assert shown("offline-cpus", machine(tmp_path / "smt", siblings, online="0-1")) == []
    assert shown("offline-cpus", machine(tmp_path / "on", {})) == []


def test_isolated_cpus_that_may_be_used(tmp_path: Path):
    isolated = {f"{CPU_DIRECTORY}/isolated": "2-3"}
    finding = one("isolated-cpus", machine(tmp_path / "all", isolated))
    assert finding.severity is Severity.WARNING
    assert finding.advise == "xlaunch --cpus 0-1 PROGRAM"
    outside = isolated | {"proc/self/status": "Cpus_allowed_list: 0-1"}
    assert shown("isolated-cpus", machine(tmp_path / "outside", outside)) == []


def test_topology_that_a_hypervisor_hides(tmp_path: Path):
    flags = {"proc/cpuinfo": "flags : fpu lm hypervisor"}
    finding = one("hidden-topology", machine(tmp_path / "hidden", flags))
    assert finding.severity is Severity.ADVICE
    assert "4 CPUs without SMT siblings" in finding.found
    assert (
        shown("hidden-topology", machine(tmp_path / "real", {"proc/cpuinfo": "flags : fpu lm"}))
        == []
    )
    siblings = {f"{CPU_DIRECTORY}/cpu{cpu}/topology/core_cpus_list": "0-3" for cpu in range(4)}
    known = one("hidden-topology", machine(tmp_path / "shown", flags | siblings))
    assert known.severity is Severity.OK


@pytest.mark.parametrize(
    ("flags", "torch", "onednn"),
    [
        (f"{AVX512} {AMX}", "avx512", "avx512_core_amx"),
        (AVX512, "avx512", "avx512_core_bf16"),
        ("avx2 fma avx sse4_1", "avx2", "avx2"),
    ],
)
def test_instruction_set(flags: str, torch: str, onednn: str, tmp_path: Path):
    cpuinfo = {"proc/cpuinfo": f"model name : A CPU\nflags : lm {flags}"}
    finding = one("instruction-set", machine(tmp_path, cpuinfo))
    assert finding == (Severity.OK, f"A CPU: torch uses {torch}, oneDNN {onednn}", "", "")


def test_instruction_set_held_back_by_variables(tmp_path: Path):
    cpuinfo = {"proc/cpuinfo": f"flags : lm {AVX512} {AMX}"}
    variables = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    held, limited, used = shown("instruction-set", machine(tmp_path, cpuinfo, **variables))
    assert held.advise == "unset ATEN_CPU_CAPABILITY"
    assert "torch could use avx512." in held.why
    assert limited.found == "ONEDNN_MAX_CPU_ISA=AVX512_CORE holds back the instruction set"
    assert used.found == "torch uses avx2, oneDNN avx512_core"
    higher = machine(tmp_path, cpuinfo, ONEDNN_MAX_CPU_ISA="ALL", ATEN_CPU_CAPABILITY="avx512")
    assert one("instruction-set", higher).severity is Severity.OK


def test_instruction_set_of_old_and_other_cpus(tmp_path: Path):
    old = machine(tmp_path / "old", {"proc/cpuinfo": "flags : lm hypervisor sse4_1"})
    assert one("instruction-set", old).severity is Severity.WARNING
    arm = "CPU implementer : 0x41\nFeatures : fp asimd sve bf16"
    found = one("instruction-set", machine(tmp_path / "arm", {"proc/cpuinfo": arm})).found
    assert found == "Arm with asimd, sve, bf16"
    assert shown("instruction-set", machine(tmp_path / "none", {})) == []
