# SPDX-License-Identifier: Apache-2.0
"""`xlaunch ps`: the launches that run on this host, the cores that they have taken, and their instances."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from xlaunch.cli.runs import ask_run, find_run, state_of
from xlaunch.console import say, terminal_width
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.leases import Lease, described, read_leases
from xlaunch.machine.cpu_list import format_cpu_list
from xlaunch.machine.processes import TICKS_PER_SECOND, descendants, read_process, start_ticks
from xlaunch.options.commands import CONTEXT
from xlaunch.ownership import user_name
from xlaunch.report.run_client import STATE
from xlaunch.text import fit, printable, size

SCHEMA_VERSION = 1
SAMPLE_S = 0.2
"""Seconds over which CPU time is measured."""
WATCH_S = 2.0
STATE_S = 1.0
"""How long a launch may take to answer, among all of them."""
STDOUT = 1


class LaunchUsage(NamedTuple):
    """A launch and what its processes use."""

    lease: Lease
    user: str
    cpu_percent: float | None
    """CPU time of the processes that may be read; 100 is one busy CPU. None: none may be read."""
    rss_bytes: int | None
    """Resident memory of the same processes. A page that several of them share is counted several
    times."""


@click.command(context_settings={**CONTEXT, "allow_interspersed_args": True})
@click.option("--json", "as_json", is_flag=True, help="Print the launches as JSON.")
@click.option("--watch", is_flag=True, help=f"Show them again every {WATCH_S:.0f} seconds.")
@click.option("--ready", is_flag=True, help="Of a RUN: exit with 0 if it is ready, else with 1.")
@click.argument("run", required=False, metavar="[RUN]")
def command(*, as_json: bool, watch: bool, ready: bool, run: str | None) -> int | None:
    """Show the launches that run here, or the parts of one.

    Each with its cores, program, uptime, CPU time, memory and last metric. Of other users' launches
    the program's process is named, without metric and logs. Launches in other containers are not shown.

    RUN is the PID of a supervised launch, or self for the one of this container.
    """
    if ready and run is None:
        raise UsageError("--ready asks one launch: xlaunch ps RUN --ready")
    if ready and (as_json or watch):
        raise UsageError("--ready prints nothing: it goes without --json and --watch")
    if start_ticks(os.getpid()) is None:
        say(
            "warning: /proc does not show the processes of this PID namespace: launches are shown like"
            " those of other namespaces"
        )
    if ready:
        return 0 if state_of(find_run(run or ""))["ready"] else 1
    if as_json:
        click.echo(json.dumps(_document(run), indent=1))
        return None
    while True:
        lines = table(look()) if run is None else instance_table(state_of(find_run(run)))
        if not watch:
            click.echo("\n".join(lines))
            return None
        if sys.stdout.isatty():
            click.clear()
        click.echo("\n".join([time.strftime("%H:%M:%S"), *lines]))
        time.sleep(WATCH_S)


def look() -> list[LaunchUsage]:
    """The launches that run now, the oldest first. Takes `SAMPLE_S`."""
    leases = [described(lease) for lease in read_leases()]
    if not leases:
        return []
    # The PID of a launch in another namespace is another process here.
    trees = [[it.pid, *descendants(it.pid)] if it.is_local else [] for it in leases]
    before = [_usage(tree)[0] for tree in trees]
    began = time.monotonic()
    time.sleep(SAMPLE_S)
    elapsed_s = time.monotonic() - began
    found = []
    for lease, tree, ticks_before in zip(leases, trees, before, strict=True):
        cpu_percent, rss_bytes = None, None
        if tree:
            ticks, rss_bytes = _usage(tree)
            used_s = max(0, ticks - ticks_before) / TICKS_PER_SECOND
            cpu_percent = 100 * used_s / elapsed_s
        found.append(LaunchUsage(lease, user_name(lease.uid), cpu_percent, rss_bytes))
    return found


def _usage(pids: Sequence[int]) -> tuple[int, int]:
    """The CPU time of processes, in clock ticks, and their resident memory, in bytes."""
    running = [status for status in map(read_process, pids) if status is not None]
    return sum([it.cpu_ticks for it in running]), sum([it.rss_bytes for it in running])


def table(found: Sequence[LaunchUsage]) -> list[str]:
    """The launches as lines of text, without columns that are empty for all."""
    if not found:
        return ["no launch runs on this host"]
    columns = [
        ("pid", [_pid(it.lease) for it in found]),
        ("user", [it.user for it in found]),
        ("program", [it.lease.program or "-" for it in found]),
        ("instances", [str(it.lease.instances or "-") for it in found]),
        ("CPUs", [format_cpu_list(it.lease.cpus) or "not bound" for it in found]),
        ("GPUs", [" ".join(it.lease.gpus) for it in found]),
        ("uptime", [uptime(it.lease.uptime_s) for it in found]),
        ("CPU %", ["-" if it.cpu_percent is None else f"{it.cpu_percent:.0f}" for it in found]),
        ("memory", ["-" if it.rss_bytes is None else size(it.rss_bytes) for it in found]),
        ("exclusive", ["yes" if it.lease.exclusive else "" for it in found]),
        ("metric", [it.lease.metric for it in found]),
        ("logs", [it.lease.log_dir for it in found]),
    ]
    kept = [(name, cells) for name, cells in columns if any(cells)]
    rows = [[name for name, _ in kept], *zip(*[cells for _, cells in kept], strict=True)]
    return fit(rows, width=terminal_width(STDOUT), optional=("logs", "user"))


def instance_table(state: dict[str, Any]) -> list[str]:
    """The instances of a run as lines of text. `state`: see docs/supervision.md."""
    found = state["instances"]
    columns = [
        ("instance", [str(one["index"]) for one in found]),
        ("state", [one["state"] for one in found]),
        ("pid", [str(one["pid"] or "-") for one in found]),
        ("CPUs", [format_cpu_list(one["cpus"]) or "not bound" for one in found]),
        ("uptime", ["-" if one["age_s"] is None else uptime(one["age_s"]) for one in found]),
        ("CPU s", [f"{one['cpu_s']:.1f}" for one in found]),
        ("memory", [size(one["rss_bytes"]) if one["pid"] else "-" for one in found]),
        ("restarts", [str(one["restarts"]) for one in found]),
        ("last probe", [printable(one["probe_problem"] or "") for one in found]),
    ]
    kept = [(name, cells) for name, cells in columns if any(cells)]
    rows = [[name for name, _ in kept], *zip(*[cells for _, cells in kept], strict=True)]
    lines = fit(rows, width=terminal_width(STDOUT), optional=("restarts", "memory"))
    lines.append(f"{state['state']}, {'ready' if state['ready'] else 'not ready'}")
    group = state["cgroup"]
    if group is not None and group["cpu_limit"] is not None:
        throttled = f"throttled for {group['throttled_s']:.1f} s in {group['throttled_periods']}"
        lines.append(
            f"limit of {group['cpu_limit']:g} CPUs: {throttled} of {group['periods']} periods ({group['path']})"
        )
    return lines


def _document(run: str | None) -> dict[str, Any]:
    if run is not None:
        return state_of(find_run(run))
    launches = [_to_dict(one) for one in look()]
    return {"schema_version": SCHEMA_VERSION, "launches": launches}


def _state(lease: Lease) -> dict[str, Any] | None:
    """The state of a supervised launch that answers."""
    with contextlib.suppress(XLaunchError):
        return ask_run(lease, STATE, STATE_S)
    return None


def _pid(lease: Lease) -> str:
    return str(lease.pid) if lease.is_local else f"{lease.pid} (other namespace)"


def uptime(seconds: float) -> str:
    """**Ex.:** ``42s``, ``3m 20s``, ``5h 02m``, ``2d 03h``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02}h"


def _to_dict(one: LaunchUsage) -> dict[str, object]:
    lease = one.lease
    return {
        "pid": lease.pid,
        "same_pid_namespace": lease.is_local,
        "user": one.user,
        "program": lease.program or None,
        "instances": lease.instances or None,
        "cpus": list(lease.cpus),
        "gpus": list(lease.gpus),
        "exclusive": lease.exclusive,
        "uptime_s": round(lease.uptime_s, 1),
        "cpu_percent": None if one.cpu_percent is None else round(one.cpu_percent, 1),
        "rss_bytes": one.rss_bytes,
        "metric": lease.metric or None,
        "log_dir": lease.log_dir or None,
        "state": _state(lease),
    }
