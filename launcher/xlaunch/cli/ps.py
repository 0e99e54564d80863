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

from xlaunch.console import say, terminal_width
from xlaunch.errors import UsageError, XLaunchError
from xlaunch.leases import Lease, described, of_others, read_leases
from xlaunch.machine.processes import TICKS_PER_SECOND, descendants, read_process, start_ticks
from xlaunch.options.commands import CONTEXT
from xlaunch.ownership import user_name
from xlaunch.report.run_client import STATE, TIMEOUT_S, ask
from xlaunch.text import fit, format_cpu_list, printable, size

SCHEMA_VERSION = 1
SAMPLE_S = 0.2
"""Seconds over which CPU time is measured."""
WATCH_S = 2.0
STATE_S = 1.0
"""How long a launch may take to answer, among all of them."""
STDOUT = 1
_NOT_LOCAL = " (other namespace)"
SELF = "self"
"""RUN of the launch that a command runs in."""


class LaunchUsage(NamedTuple):
    """A launch and what its processes use."""

    lease: Lease
    user: str
    cpu_percent: float | None
    """CPU time of the processes that may be read; 100 is one busy CPU. None: none may be read."""
    rss_bytes: int | None
    """Resident memory of the same processes; pages that several share count several times."""


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
        state: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        if run is None:
            state["launches"] = [*map(_to_dict, look())]
        else:
            state = state_of(find_run(run))
        click.echo(json.dumps(state, indent=1))
        return None
    while True:
        lines = table(look()) if run is None else _instance_table(state_of(find_run(run)))
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
    trees = [[lease.pid, *descendants(lease.pid)] if lease.is_local else [] for lease in leases]
    before = [_usage(tree)[0] for tree in trees]
    began = time.monotonic()
    time.sleep(SAMPLE_S)
    elapsed_s = time.monotonic() - began
    usages = []
    for lease, tree, ticks_before in zip(leases, trees, before, strict=True):
        cpu_percent, rss_bytes = None, None
        if tree:
            ticks, rss_bytes = _usage(tree)
            used_s = max(0, ticks - ticks_before) / TICKS_PER_SECOND
            cpu_percent = 100 * used_s / elapsed_s
        usages.append(LaunchUsage(lease, user_name(lease.uid), cpu_percent, rss_bytes))
    return usages


def _usage(pids: Sequence[int]) -> tuple[int, int]:
    """The CPU time of processes, in clock ticks, and their resident memory, in bytes."""
    running = [status for status in map(read_process, pids) if status is not None]
    return sum([process.cpu_ticks for process in running]), sum([p.rss_bytes for p in running])


def table(launches: Sequence[LaunchUsage]) -> list[str]:
    """The launches as lines of text, without columns that are empty for all."""
    if not launches:
        return ["no launch runs on this host"]
    leases, users, percents, sizes = zip(*launches, strict=True)
    columns = [
        ("pid", [f"{lease.pid}{'' if lease.is_local else _NOT_LOCAL}" for lease in leases]),
        ("user", list(users)),
        ("program", [lease.program or "-" for lease in leases]),
        ("instances", [str(lease.instances or "-") for lease in leases]),
        ("CPUs", [format_cpu_list(lease.cpus) or "not bound" for lease in leases]),
        ("GPUs", [" ".join(lease.gpus) for lease in leases]),
        ("uptime", [uptime(lease.uptime_s) for lease in leases]),
        ("CPU %", ["-" if percent is None else f"{percent:.0f}" for percent in percents]),
        ("memory", ["-" if rss_bytes is None else size(rss_bytes) for rss_bytes in sizes]),
        ("exclusive", ["yes" if lease.exclusive else "" for lease in leases]),
        ("metric", [lease.metric for lease in leases]),
        ("logs", [lease.log_dir for lease in leases]),
    ]
    return _without_empty(columns, optional=("logs", "user"))


def _without_empty(columns: Sequence[tuple[str, list[str]]], optional: Sequence[str]) -> list[str]:
    """The lines of a table, without columns that are empty in every row."""
    kept = [(name, cells) for name, cells in columns if any(cells)]
    rows = [[name for name, _ in kept], *zip(*[cells for _, cells in kept], strict=True)]
    return fit(rows, width=terminal_width(STDOUT), optional=optional)


def _instance_table(state: dict[str, Any]) -> list[str]:
    """The instances of a run as lines of text. `state`: see docs/supervision.md."""
    rows = state["instances"]
    columns = [
        ("instance", [str(row["index"]) for row in rows]),
        ("state", [row["state"] for row in rows]),
        ("pid", [str(row["pid"] or "-") for row in rows]),
        ("CPUs", [format_cpu_list(row["cpus"]) or "not bound" for row in rows]),
        ("uptime", ["-" if row["age_s"] is None else uptime(row["age_s"]) for row in rows]),
        ("CPU s", [f"{row['cpu_s']:.1f}" for row in rows]),
        ("memory", [size(row["rss_bytes"]) if row["pid"] else "-" for row in rows]),
        ("restarts", [str(row["restarts"]) for row in rows]),
        ("last probe", [printable(row["probe_problem"] or "") for row in rows]),
    ]
    lines = _without_empty(columns, optional=("restarts", "memory"))
    lines.append(f"{state['state']}, {'ready' if state['ready'] else 'not ready'}")
    group = state["cgroup"]
    if group is not None and group["cpu_limit"] is not None:
        throttled = f"throttled for {group['throttled_s']:.1f} s in {group['throttled_periods']}"
        lines.append(
            f"limit of {group['cpu_limit']:g} CPUs: {throttled} of {group['periods']} periods ({group['path']})"
        )
    return lines


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


def _to_dict(launch: LaunchUsage) -> dict[str, object]:
    lease, state = launch.lease, None
    with contextlib.suppress(XLaunchError):  # one that is not supervised, or does not answer
        state = ask_run(lease, STATE, STATE_S)
    return {
        "pid": lease.pid,
        "same_pid_namespace": lease.is_local,
        "user": launch.user,
        "program": lease.program or None,
        "instances": lease.instances or None,
        "cpus": list(lease.cpus),
        "gpus": list(lease.gpus),
        "exclusive": lease.exclusive,
        "uptime_s": round(lease.uptime_s, 1),
        "cpu_percent": None if launch.cpu_percent is None else round(launch.cpu_percent, 1),
        "rss_bytes": launch.rss_bytes,
        "metric": lease.metric or None,
        "log_dir": lease.log_dir or None,
        "state": state,
    }


def find_run(word: str) -> Lease:
    """The launch that RUN names. Raises `UsageError` where there is none, or several.

    A PID, or ``self``: the launch that this command runs in, else the only one of this PID namespace.
    """
    leases = [lease for lease in read_leases() if lease.is_local]
    if word == SELF:
        outside = [lease.path for lease in of_others(leases)]
        named = [lease for lease in leases if lease.path not in outside][-1:] or leases
    elif word.isascii() and word.isdigit():
        named = [lease for lease in leases if lease.pid == int(word)]
    else:
        raise UsageError(f"{word!r} is not the PID of a launch, nor self; xlaunch ps lists them")
    if not named:
        problem = "no launch runs here" if word == SELF else f"no launch has the PID {word}"
        raise UsageError(f"{problem}; xlaunch ps lists them")
    if len(named) > 1:
        pids = ", ".join([str(lease.pid) for lease in named])
        raise UsageError(f"several launches run here: name one of {pids}")
    return described(named[0])


def state_of(lease: Lease) -> dict[str, Any]:
    """The state of a run. Raises `XLaunchError` if it has no socket, or does not answer."""
    return ask_run(lease, STATE)


def ask_run(lease: Lease, word: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """What a run answers to a request. Raises `XLaunchError`."""
    if os.geteuid() not in (0, lease.uid):
        raise UsageError(f"launch {lease.pid} is of {user_name(lease.uid)}, who alone may ask it")
    if not lease.socket:
        raise UsageError(
            f"launch {lease.pid} has no socket: it began just now, or is not supervised (see --supervise)"
        )
    return ask(lease.socket, word, timeout_s)
