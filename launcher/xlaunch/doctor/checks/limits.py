# SPDX-License-Identifier: Apache-2.0
"""Limits of this process: CPU quota and open files; and system calls that are refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from xlaunch.doctor.checks.findings import Check, Facts, Finding, is_live, ok, serious, warning
from xlaunch.machine.limits import ControlGroups, read_counters
from xlaunch.text import counted

MIN_FILES = 1024
"""The usual soft limit of open files."""


def show_quota(facts: Facts) -> Iterator[Finding]:
    """Whether a program that counts CPUs starts more threads than the quota can run."""
    limits = facts.machine.limits
    quota = limits.cpu_quota
    if quota is None:
        yield ok("no CPU quota")
        return
    asked = facts.environment.get("OMP_NUM_THREADS", "").partition(",")[0]
    inherited = asked.isdecimal() and int(asked) > 0
    threads = int(asked) if inherited else len(limits.allowed_cpus)
    counts = "OMP_NUM_THREADS is" if inherited else "torch sees"
    if threads <= max(1, quota):
        yield ok(f"CPU quota {quota:g}, {counts} {threads}")
        return
    few = max(1, int(quota))
    yield serious(
        f"CPU quota {quota:g}, and {counts} {threads}{'' if inherited else ' CPUs'}",
        f"{threads} busy threads use up each period after {quota / threads:.0%} of it and stop until the "
        f"next (kernel, scheduler/sched-bwc.rst){_throttled(facts)}",
        # A count that is inherited is kept by xlaunch.
        f"{'unset OMP_NUM_THREADS; ' if inherited else ''}xlaunch PROGRAM\nexport OMP_NUM_THREADS={few}",
    )


def _throttled(facts: Facts) -> str:
    """How often the groups of this process were stopped. **Ex.:** ``; so far in 95 % of periods``."""
    for group in ControlGroups(facts.tree).all_enclosing("cpu"):
        stat = read_counters(facts.tree, f"{group.directory}/cpu.stat")
        if stat.get("nr_periods"):
            share = stat.get("nr_throttled", 0) / stat["nr_periods"]
            return f"; here in {share:.0%} of the periods so far (cpu.stat)"
    return ""


def show_affinity(facts: Facts) -> Iterator[Finding]:
    """Whether a process may set its affinity mask; tried by setting the mask that it has."""
    if not hasattr(os, "sched_setaffinity"):
        return
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except OSError as error:
        yield serious(
            f"sched_setaffinity is refused ({error.strerror})",
            "nothing can be bound to cores: threads move, and instances share cores. 8 bound instances "
            "ran ResNet-50 at 2.66 times plain python's rate (README)",
            "docker run --security-opt seccomp=builtin IMAGE  # docker's own profile allows it",
        )
    else:
        yield ok("CPU affinity can be set")


def show_memory_policy(facts: Facts) -> Iterator[Finding]:
    """Whether a process may set its memory policy; tried by setting the policy that it has."""
    from xlaunch.supervision.syscalls import read_memory_policy, restore_memory_policy

    try:
        restore_memory_policy(read_memory_policy())
    except OSError as error:
        several = len(facts.machine.topology.numa_nodes) > 1
        refusal = f"set_mempolicy is refused ({error.strerror})"
        if not several:
            yield ok(f"{refusal}; there is one NUMA node")
            return
        yield warning(
            refusal,
            "memory lies where it is first touched, which may be another NUMA node "
            "(set_mempolicy(2); docker allows it with CAP_SYS_NICE)",
            "docker run --cap-add SYS_NICE IMAGE",
        )
    else:
        yield ok("the NUMA memory policy can be set")


def show_files(facts: Facts) -> Iterator[Finding]:
    """The limits of open files."""
    text = facts.tree.read("/proc/self/limits") or ""  # see proc_pid_limits(5)
    match = re.search(r"^Max open files +(\d+|unlimited) +(\d+|unlimited)\b", text, re.MULTILINE)
    if match is None:
        return
    soft, hard = (None if word == "unlimited" else int(word) for word in match.groups())
    most = 65536 if hard is None else min(hard, 65536)
    limit_text = (
        f"{counted(soft, 'open file')} allowed" if soft is not None else "open files: no limit"
    )
    if soft is None or soft >= MIN_FILES:
        yield ok(limit_text)
        return
    yield warning(
        limit_text,
        "each tensor that a DataLoader's worker hands over holds a descriptor (torch.multiprocessing, "
        "file_descriptor), and a supervised instance of xlaunch 5",
        f"ulimit -n {most}"
        if most >= MIN_FILES
        else "sudo prlimit --pid $$ --nofile=65536:65536\ndocker run --ulimit nofile=65536 IMAGE",
    )


CHECKS = (
    Check("cpu-quota", show_quota),
    Check("affinity-calls", show_affinity, is_live),
    Check("memory-policy-calls", show_memory_policy, is_live),
    Check("open-files", show_files),
)
