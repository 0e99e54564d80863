# SPDX-License-Identifier: Apache-2.0
"""Record what the old launchers bound: random command lines, and the CPUs of each instance.

    python -m tests.launcher.options.record_old_plans --ipex DIRECTORY

It needs torch 2.13 for `run_cpu`, and in DIRECTORY the unpacked wheel of intel-extension-for-pytorch
2.8.0, of which only the launcher's Python files are imported. Both launchers run as they are. What
they learn of the machine comes from an `lscpu` made up for each of `MACHINES`, and what they bind goes
to a `numactl` that writes down its arguments.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.launcher.planning.shapes import make_machine

from xlaunch.machine.topology import CoreKind, Machine
from xlaunch.text import format_cpu_list, parse_cpu_list

PLANS = Path(__file__).with_name("old_plans.jsonl")

MACHINES = {
    "one-cpu": make_machine(packages=(1,), nodes=(1,)),
    "one-node": make_machine(packages=(8,), nodes=(8,)),
    "one-node-smt": make_machine(packages=(6,), nodes=(6,), smt=2),
    "adjacent-siblings": make_machine(packages=(6,), nodes=(6,), smt=2, adjacent_siblings=True),
    "two-nodes": make_machine(packages=(8, 8), nodes=(8, 8)),
    "two-nodes-smt": make_machine(packages=(28, 28), nodes=(28, 28), smt=2),
    "uneven-nodes": make_machine(packages=(10,), nodes=(6, 4), smt=2),
    "four-nodes": make_machine(packages=(10, 10), nodes=(5, 5, 5, 5)),
    "hybrid": make_machine(
        packages=(12,),
        nodes=(12,),
        kinds=(
            CoreKind(tuple(range(8, 12)), 0, (("FrequencyMaxMHz", "3800"),)),
            CoreKind(tuple(range(8)), 1, (("FrequencyMaxMHz", "5000"),)),
        ),
    ),
}


class OldPlan(NamedTuple):
    """A command line of an old launcher, and what it did."""

    machine: str
    launcher: str
    """``ipexrun`` or ``run_cpu``."""
    options: str
    instances: tuple[str, ...]
    """The CPUs of each instance, by the lowest. **Ex.:** ``("0-3", "4-7")``."""
    ended: str = ""
    """Where no instance ran: ``refused``, ``nothing`` (without a word), ``no-cores`` (an instance without)."""


def read_old_plans() -> list[OldPlan]:
    """The recorded plans."""
    rows = [json.loads(line) for line in PLANS.read_text().splitlines()]
    return [OldPlan(*row[:3], tuple(row[3]), *row[4:]) for row in rows]


def draw(launcher: str, machine: Machine, random_: random.Random) -> str:
    """The options of a random command line."""
    cores = [core[0] for core in machine.topology.cores]
    words: list[str] = []

    def sometimes(probability: float, *choices: str) -> None:
        if random_.random() < probability:
            words.extend(random_.choice(choices).split())

    sizes = sorted({1, 2, 3, 4, 5, len(cores) // 2, len(cores) // 3, len(cores)} - {0})
    counts = sorted({1, 2, 3, 4, 5, 7, len(cores) // 2} - {0})
    nodes = [node.id for node in machine.topology.numa_nodes]
    first = random_.randrange(len(cores))
    several = cores[first : first + random_.choice((4, 6, 8, 16))]
    pairs = [core for core in machine.topology.cores if core[0] in several]
    logical = random_.choice((several, sorted(itertools.chain(*pairs))))
    spread = ("--ncores-per-instance -1",) if launcher == "ipexrun" else ()
    fitting = [
        f"--ninstances {count} --ncores-per-instance {size}"
        for count in counts
        for size in sizes
        if count * size <= len(cores)
    ]
    counts_alone = [f"--ninstances {it}" for it in counts]
    sizes_alone = [f"--ncores-per-instance {it}" for it in sizes]
    sometimes(0.3, *fitting, f"{counts_alone[-1]} {sizes_alone[-1]}")
    if not words:
        sometimes(0.5, *counts_alone)
        if not words:
            sometimes(0.6, *sizes_alone)
        elif spread:
            sometimes(0.2, *spread)
    if launcher == "ipexrun":
        sometimes(0.35, "--bind-numa-node", "--bind-numa-node", "--skip-cross-node-cores")
        sometimes(0.2, *[f"--nodes-list {it}" for it in nodes])
        sometimes(0.2, f"--cores-list {format_cpu_list(logical)}")
        sometimes(0.25, "--use-logical-cores")
        sometimes(0.4, "--strategy close", "--strategy scatter")
        sometimes(0.1, "--instance-idx 0", "--instance-idx 0-1")
        sometimes(0.1, "--latency-mode", "--throughput-mode")
        if machine.topology.core_kinds:
            sometimes(0.4, "--use-e-cores")
    else:
        sometimes(0.35, "--skip-cross-node-cores")
        sometimes(0.2, *[f"--node-id {it}" for it in nodes])
        sometimes(0.15, f"--core-list {','.join(map(str, logical))}")
        sometimes(0.25, "--use-logical-core")
        sometimes(0.1, "--rank 0", "--rank 1")
        sometimes(0.1, "--multi-instance")
        sometimes(0.1, "--latency-mode", "--throughput-mode")
    return " ".join(words)


def lscpu_tables(machine: Machine) -> tuple[str, str]:
    """What ``lscpu --all --extended`` and ``lscpu --parse=CPU,Core,Socket,Node`` print of a machine."""
    topology = machine.topology
    core_of = {cpu: number for number, core in enumerate(topology.cores) for cpu in core}
    socket_of = {cpu: it.id for it in topology.packages for cpu in it.cpus}
    node_of = {cpu: it.id for it in topology.numa_nodes for cpu in it.cpus}
    mhz = {
        cpu: dict(kind.attributes)["FrequencyMaxMHz"]
        for kind in topology.core_kinds
        for cpu in kind.cpus
    }
    extended, parsed = ["CPU NODE SOCKET CORE MAXMHZ"], ["# CPU,Core,Socket,Node"]
    for cpu in topology.online_cpus:
        node, socket, core = node_of[cpu], socket_of[cpu], core_of[cpu]
        extended.append(f"{cpu} {node} {socket} {core} {mhz.get(cpu, 3000)}.0000")
        parsed.append(f"{cpu},{core},{socket},{node}")
    return "\n".join(extended) + "\n", "\n".join(parsed) + "\n"


LSCPU = """\
#!/bin/sh
case "$*" in *--parse*) cat "$(dirname "$0")/parsed";; *) cat "$(dirname "$0")/extended";; esac
"""
NUMACTL = """\
#!/bin/sh
case "$*" in *hostname) ;; *) echo "$*" >> "$(dirname "$0")/bound";; esac
"""


def record(row: tuple[str, str, str], main: Callable[[list[str]], None]) -> OldPlan:
    """Run an old launcher in a child, and read what it bound."""
    machine, _, options = row
    with tempfile.TemporaryDirectory() as directory:
        bound = Path(directory, "bound")
        bound.touch()
        for name, text in zip(
            ("extended", "parsed", "lscpu", "numactl"),
            (*lscpu_tables(MACHINES[machine]), LSCPU, NUMACTL),
            strict=True,
        ):
            Path(directory, name).write_text(text)
            Path(directory, name).chmod(0o755)
        child = os.fork()
        if not child:
            os.environ["PATH"] = f"{directory}:{os.environ['PATH']}"
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            try:
                main([*options.split(), "x.py"])
            except BaseException:  # noqa: BLE001 - of another project's program
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        instances = []
        for line in bound.read_text().splitlines():
            words = line.split()
            if words[1].startswith("-"):
                return OldPlan(*row, (), "no-cores")
            instances.append(parse_cpu_list(words[1]))
    ended = "" if instances else "refused" if status else "nothing"
    return OldPlan(*row, tuple(map(format_cpu_list, sorted(instances))), ended)


def main() -> None:
    """Record anew all plans."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ipex", required=True, help="directory with the unpacked wheel")
    parser.add_argument("--count", type=int, default=480, help="number of command lines")
    asked = parser.parse_args()
    for name in ("KMP_AFFINITY", "LD_PRELOAD", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"):
        os.environ.pop(name, None)
    sys.path.insert(0, asked.ipex)
    from intel_extension_for_pytorch import launcher as ipexrun
    from torch.backends.xeon import run_cpu

    def start_ipexrun(words: list[str]) -> None:
        sys.argv = ["ipexrun", "cpu", *words]
        ipexrun.main()

    def start_run_cpu(words: list[str]) -> None:
        own = argparse.ArgumentParser()
        run_cpu.create_args(own)
        run_cpu.main(own.parse_args(words))

    launchers = {"ipexrun": start_ipexrun, "run_cpu": start_run_cpu}
    random_, rows = random.Random(50), dict[tuple[str, str, str], OldPlan]()
    choices = itertools.cycle(itertools.product(MACHINES, ("ipexrun", "run_cpu", "ipexrun")))
    while len(rows) < asked.count:
        machine, launcher = next(choices)
        row = (machine, launcher, draw(launcher, MACHINES[machine], random_))
        if row not in rows:
            rows[row] = record(row, launchers[launcher])
    with PLANS.open("w") as file:
        for plan in sorted(rows.values()):
            file.write(json.dumps([*plan[:4], *([plan.ended] if plan.ended else [])]) + "\n")


if __name__ == "__main__":
    main()
