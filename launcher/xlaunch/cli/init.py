# SPDX-License-Identifier: Apache-2.0
"""`xlaunch init`: a preset to start from, with the machine and every option explained in it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from xlaunch.cli import say
from xlaunch.cli.options import CONTEXT, MACHINE, with_options
from xlaunch.cli.presets.files import SUFFIX
from xlaunch.cli.presets.writing import comment, options_text
from xlaunch.cli.topology import machine_of
from xlaunch.errors import UsageError
from xlaunch.machine.cpu_list import name_numbers
from xlaunch.machine.topology import Machine
from xlaunch.planning import MAX, Mode, Request
from xlaunch.planning import plan as make_plan
from xlaunch.planning.plans import Plan
from xlaunch.whole_files import write_output
from xlaunch.wording import counted, plural

DEFAULT_FILE = "xlaunch.toml"
"""Where no file is named: what ``--preset xlaunch`` finds in the same folder."""


@click.command(context_settings=CONTEXT | {"allow_interspersed_args": True})
@click.argument("file", default=DEFAULT_FILE)
@with_options(
    [click.option("-f", "--force", is_flag=True, help="Replace FILE if it is there.")], MACHINE
)
def init(*, file: str, force: bool, sysroot: str | None, synthetic: str | None) -> None:
    """Write a preset to start from: this machine, layouts for it, every option with its default.

    FILE is xlaunch.toml where none is given. All options in it are commented out, so that it
    changes nothing until you choose.
    """
    if not file.endswith(SUFFIX):
        raise UsageError(f"{file!r}: the name of a preset ends in {SUFFIX}")
    if os.path.lexists(file) and not force:
        raise UsageError(f"{file!r} is there already; --force replaces it, or name another file")
    if os.path.lexists(file) and not os.path.isfile(file):
        raise UsageError(f"{file!r} is not a regular file; name another one")
    with machine_of(sysroot, synthetic) as machine:
        text = preset_for(machine, use=file)
    write_output(file, text)
    say(f"{file}: written; choose in it, then: xlaunch --preset {use_name(file)} PROGRAM")


def use_name(file: str) -> str:
    """What to write after ``--preset`` from the current folder."""
    return file.removesuffix(SUFFIX) if os.path.dirname(file) == "" else file


def preset_for(machine: Machine, *, use: str) -> str:
    """The text of the preset. Options are lines that begin with ``#`` and no space."""
    from xlaunch.cli.launch import launch

    head = [
        *comment(f"Options for xlaunch. To use them: xlaunch --preset {use_name(use)} PROGRAM"),
        "#",
        *comment(
            "A line that begins with # and no space is an option: take the # away to set it. "
            "What is left as it is does nothing."
        ),
    ]
    facts = [line for fact in describe(machine) for line in comment(fact)]
    heading = comment(
        "Layouts for this machine. Choose one at most; their options come again below, and may be "
        "set once."
    )
    parts = ["\n".join(head), "\n".join(facts), "\n".join(heading), *_layouts(machine)]
    parts += ["\n".join(comment("Every option, with its default.")), options_text(launch)]
    return "\n\n".join(parts) + "\n"


def describe(machine: Machine) -> Iterator[str]:
    """What the machine has, and what of it may be used; a sentence each."""
    topology, limits = machine.topology, machine.limits
    counts = [
        (len(topology.packages), "package"),
        (len(topology.numa_nodes), "NUMA node"),
        (len(topology.l3_groups), "L3 cache"),
        (len(topology.cores) if topology.cores_known else 0, "core"),
        (len(topology.online_cpus), "CPU"),
    ]
    listed = ", ".join([counted(number, noun) for number, noun in counts if number])
    yield f"This machine: {listed} ({topology.architecture})."
    narrowed = f" by {', '.join(limits.narrowed_by)}" if limits.narrowed_by else ""
    yield f"Allowed here{narrowed}: {name_numbers('CPU', limits.allowed_cpus)}."
    if limits.cpu_quota is not None:
        yield f"CPU quota: {limits.cpu_quota:g} CPUs' worth of time."
    for size, what in (
        (limits.memory_total_bytes, "Memory"),
        (limits.memory_limit_bytes, "Memory limit"),
    ):
        if size is not None:
            yield f"{what}: {size / 2**30:.1f} GiB."


def _layouts(machine: Machine) -> Iterator[str]:
    """Layouts that differ on this machine, each with its numbers and the options that choose it."""
    caches = len(machine.topology.l3_groups)
    alternatives: list[tuple[str, Request, list[str]]] = [
        ("Everything to one instance (the default)", Request(), []),
        (
            "Throughput, an instance for each NUMA node",
            Request(mode=Mode.THROUGHPUT),
            ['mode = "throughput"'],
        ),
        (
            "An instance for each L3 cache",
            Request(instances=caches or 1),
            [f"instances = {caches or 1}"],
        ),
        (
            "Latency, four cores for each instance",
            Request(mode=Mode.LATENCY),
            ['mode = "latency"'],
        ),
        (
            "An instance for each core",
            Request(instances=MAX, ncores=1),
            ['instances = "max"', "ncores = 1"],
        ),
    ]
    seen = set()
    for title, request, lines in alternatives:
        try:
            plan = make_plan(request, machine)
        except UsageError:
            continue  # this machine cannot have it
        layout = tuple([(instance.cpus, instance.threads) for instance in plan.instances])
        if layout in seen:
            continue
        seen.add(layout)
        block = [*comment(f"{title}: {_numbers(plan)}."), *(f"#{line}" for line in lines)]
        yield "\n".join(block)


def _numbers(plan: Plan) -> str:
    """**Ex.:** ``4 instances of 8 cores, 8 threads each, 1 crosses L3 caches``."""
    cores = sorted({instance.ncores for instance in plan.instances})
    threads = sorted({instance.threads for instance in plan.instances})
    crossing = sum(instance.l3_touched > 1 for instance in plan.instances)
    parts = [
        f"{counted(plan.count, 'instance')} of {_span(cores)} {plural(cores[-1], 'core')}",
        f"{_span(threads)} {plural(threads[-1], 'thread')} each",
    ]
    if plan.count > 1 and crossing:
        parts.append(f"{crossing} of them over several L3 caches")
    if plan.idle_cpus:
        parts.append(f"{name_numbers('CPU', plan.idle_cpus)} idle")
    return ", ".join(parts)


def _span(numbers: list[int]) -> str:
    first, last = numbers[0], numbers[-1]
    return str(first) if first == last else f"{first} to {last}"
