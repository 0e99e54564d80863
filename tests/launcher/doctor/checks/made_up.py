# SPDX-License-Identifier: Apache-2.0
"""Made-up machines of a few files, and what a check finds on them."""

from __future__ import annotations

from pathlib import Path

from tests.launcher.machine.trees import cpus, write_files

from xlaunch.cli.doctor_machine import facts_of
from xlaunch.doctor.checks import FAMILIES
from xlaunch.doctor.checks.findings import Facts, Finding, Severity
from xlaunch.machine import read_machine

CPU_DIRECTORY = "sys/devices/system/cpu"
AVX512 = "avx2 fma avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx_vnni avx sse4_1"
AMX = "amx_tile amx_int8 amx_bf16"
GPU = "sys/bus/pci/drivers/nvidia/0000:01:00.0"
NVIDIA = {f"{GPU}/vendor": "0x10de", f"{GPU}/device": "0x2335"}
ARC = "sys/bus/pci/drivers/xe/0000:03:00.0"
INTEL = {f"{ARC}/vendor": "0x8086", f"{ARC}/device": "0x56a0"}


def machine(root: Path, files: dict[str, str], online: str = "0-3", **variables: str) -> Facts:
    """What checks read of a captured tree of these files, and a program with these variables."""
    write_files(root, {**cpus(online, core_cpus_list=["0", "1", "2", "3"]), **files})
    made = facts_of(read_machine(str(root)), {}, sysroot=str(root))
    return made._replace(environment=variables)


def program(facts: Facts, prefix: Path) -> Facts:
    """The same with a program's environment in `prefix`."""
    return facts._replace(interpreter=f"{prefix}/bin/python", prefix=str(prefix))


def shown(check: str, facts: Facts) -> list[Finding]:
    """What the check of that name finds."""
    (found,) = [it for checks in FAMILIES.values() for it in checks if it.name == check]
    assert found.available(facts), f"{check} is not available here"
    return list(found.show(facts))


def one(check: str, facts: Facts) -> Finding:
    """The check's only finding; what is not in order says why, and what to do."""
    (finding,) = shown(check, facts)
    if finding.severity is not Severity.OK:
        assert finding.why
        assert finding.advise
    return finding


def told(check: str, facts: Facts) -> list[str]:
    """The check's only finding as text; one line if it finds nothing."""
    if not shown(check, facts):
        return [f"{check}: nothing"]
    finding = one(check, facts)
    more = [part for part in (finding.why, finding.advise) if part]
    return [f"{check}: {finding.severity.value}: {finding.found}", *more]


def severity(check: str, facts: Facts) -> Severity:
    return one(check, facts).severity


def expect(check: str, facts: Facts, severity: Severity | None, said: str = "") -> None:
    """The check's only finding is as severe and says that; None: it finds nothing."""
    if severity is None:
        assert shown(check, facts) == []
        return
    finding = one(check, facts)
    assert finding.severity is severity, finding
    assert said in "\n".join(finding[1:]), finding


def torch_build(
    site: Path, version: str, *, cuda: str | None = None, hip: str | None = None
) -> None:
    """The file of torch that says how it was built."""
    (site / "torch").mkdir(exist_ok=True)
    (site / "torch" / "version.py").write_text(
        "from typing import Optional\n\n__all__ = ['__version__', 'cuda']\n"
        f"__version__ = {version!r}\ndebug = False\ncuda: Optional[str] = {cuda!r}\n"
        f"git_version = 'abc'\nhip: Optional[str] = {hip!r}\nxpu: Optional[str] = None\n"
    )
    (site / f"torch-{version}.dist-info").mkdir(exist_ok=True)
