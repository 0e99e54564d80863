# SPDX-License-Identifier: Apache-2.0
"""Checks of the machine, one module a family. They show and advise; nothing is changed."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from xlaunch.doctor.checks import caches, cpu, gpus, libraries, limits, memory, packages, processes
from xlaunch.doctor.checks.findings import Check, Facts, Finding, Severity

FAMILIES: dict[str, tuple[Check, ...]] = {
    "GPUs": gpus.CHECKS,
    "Packages": packages.CHECKS,
    "Libraries": libraries.CHECKS,
    "Limits": limits.CHECKS,
    "CPU": cpu.CHECKS,
    "Memory": memory.CHECKS,
    "Load": processes.LOAD,
    "Caches": caches.CHECKS,
    "Container": processes.CONTAINER,
}
"""The checks by the title under which they are shown."""


class CheckResult(NamedTuple):
    """A finding with its place."""

    group: str
    """**Ex.:** ``"Memory"``."""
    check: str
    """**Ex.:** ``"swap"``."""
    finding: Finding


def run_checks(facts: Facts, ignore: Collection[str] = ()) -> tuple[list[CheckResult], list[str]]:
    """All findings, sorted by severity within groups and between them; and the checks that cannot
    run here. Checks whose names are in `ignore` are left out.

    Raises `UsageError` for a module of `Facts.imports` that does not exist.
    """
    results, unavailable = [], []
    for title, checks in FAMILIES.items():
        for check in checks:
            if check.name in ignore:
                continue
            if check.available(facts):
                findings = check.show(facts)
                results += [CheckResult(title, check.name, finding) for finding in findings]
            else:
                unavailable.append(check.name)
    order = list(Severity)
    worst: dict[str, int] = {}
    for result in results:
        rank = order.index(result.finding.severity)
        worst[result.group] = min(rank, worst.get(result.group, rank))
    titles = list(FAMILIES)
    results.sort(
        key=lambda r: (worst[r.group], titles.index(r.group), order.index(r.finding.severity))
    )
    return results, unavailable
