# SPDX-License-Identifier: Apache-2.0
"""Time reading and planning for a machine of 1,024 CPUs.

    python -m benchmarks.launching.planning
    python -m benchmarks.launching.planning --rounds 100 --json planning.json

The machine is synthetic: 2 packages, 8 NUMA nodes, 64 L3 groups of 8 cores, 2 threads a core, written
as the sysfs tree that Linux would show. Making the tree and importing Python modules do not count.
For comparison, all files of every CPU's topology and caches are only opened, read and closed. The tree
is in a temporary directory; the kernel's own sysfs is slower.
Goal: reading and planning together take at most 30 ms.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness.measurement import (
    Case,
    Result,
    goal_line,
    machine_line,
    measure_rounds,
    option_parser,
    print_table,
    quartiles,
    write_json,
)
from xlaunch.machine import read_machine
from xlaunch.machine.synthetic import parse_levels, write_tree
from xlaunch.planning import LayoutRequest, plan

SHAPE = "package:2 node:4 l3:8 core:8 pu:2"
CPUS = 1024
CPU_FILES = "sys/devices/system/cpu/cpu[0-9]*/**/*"
MAX_MS = 30
INSTANCE_COUNTS = (1, 64, 512)

READ = "read the machine"
EVERY_FILE = "only read every CPU's files"


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that `action` takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def read_each(files: list[str]) -> None:
    """Open, read and close each file."""
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.read(fd, 65536)
        os.close(fd)


def plan_name(instances: int) -> str:
    return f"plan {instances} instance{'s' if instances > 1 else ''}"


def main() -> None:
    arguments = option_parser(__doc__, rounds=50).parse_args()
    with tempfile.TemporaryDirectory() as directory:
        write_tree(parse_levels(SHAPE), directory)
        machine = read_machine(directory)
        if len(machine.topology.online_cpus) != CPUS:
            raise SystemExit(f"{SHAPE}: {len(machine.topology.online_cpus)} CPUs, not {CPUS}")

        cases = [Case(READ, lambda: timed(partial(read_machine, directory)))]
        for instances in INSTANCE_COUNTS:
            made = partial(plan, LayoutRequest(instances=instances), machine)
            cases.append(Case(plan_name(instances), partial(timed, made)))
        files = [str(path) for path in Path(directory).glob(CPU_FILES) if path.is_file()]
        cases.append(Case(EVERY_FILE, partial(timed, partial(read_each, files))))
        results = measure_rounds(cases, arguments.rounds)

    # Sums by round: the time of one start of the launcher.
    seconds = {result.name: result.seconds for result in results}
    sums = [
        Result(
            f"read, and {plan_name(instances)}",
            tuple(map(sum, zip(seconds[READ], seconds[plan_name(instances)], strict=True))),
        )
        for instances in INSTANCE_COUNTS
    ]
    print(f"{machine_line()}; {arguments.rounds} interleaved rounds; {CPUS:,} CPUs: {SHAPE}\n")
    rows = []
    for result in (*results, *sums):
        low, median, high = (1000 * value for value in quartiles(result.seconds))
        rows.append((result.name, f"{median:.1f} ms", f"{low:.1f} to {high:.1f}"))
    print(f"{EVERY_FILE}: {len(files):,} files\n")
    print_table(("", "median", "quartiles"), rows)

    goals = [
        goal_line(total.name, 1000 * quartiles(total.seconds).median, MAX_MS, "ms")
        for total in sums
    ]
    print("", *goals, sep="\n")
    write_json(arguments.json, "planning", results, goals)


if __name__ == "__main__":
    main()
