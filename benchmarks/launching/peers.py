# SPDX-License-Identifier: Apache-2.0
"""Compare xlaunch with what else a reader would type, on the works of the examples.

    python -m benchmarks.launching.peers --json peers.json
    python -m benchmarks.launching.peers --works resnet50-bf16-16 timm:convnext_tiny-bf16-8 --instances 4 16
    python -m benchmarks.launching.peers --markdown peers.json       # the table of an earlier run
    python -m benchmarks.launching.peers --markdown peers.json --svg peers.svg       # and its bars

Peers: plain python, python with tcmalloc or jemalloc preloaded, torch's run_cpu with and without
`--enable-tcmalloc`, numactl, ipexrun, xlaunch, and xlaunch with `--optimize auto` when its code is
compiled. `run_cpu+instances` and `xlaunch+instances` divide the CPUs among so many processes, whose rates
are added; of several counts the best is shown. The batch is the same everywhere.

In each round every peer is restarted, and all take turns (turns.py). `sentences` is the work of
examples/infer.py, `digits` that of examples/train.py; harness/works.py has the names. Works whose packages
are not installed are skipped, and peers that cannot run are named, with the reason. Goal: xlaunch is at
least 0.97 times python with tcmalloc on every work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness.bar_chart import Bar, Panel, svg
from benchmarks.harness.measurement import (
    at_least_2,
    machine_line,
    option_parser,
    print_table,
    until_stopped,
    write_raw,
)
from benchmarks.harness.programs import LAUNCHER, installed_library
from benchmarks.harness.turns import (
    WORKLOADS,
    Contender,
    ContenderResults,
    LaunchResults,
    rate_cell,
    take_turns,
    times,
)
from benchmarks.harness.works import NamedWork, named_work
from xlaunch.environment.libraries import how_to_install, inspect_library

WORKS = ("resnet50-fp32-16", "resnet50-bf16-16", "sentences", "digits")
PLAIN, TCMALLOC = "python", "python+tcmalloc"
BASES = (PLAIN, TCMALLOC)
PEERS = (
    *(PLAIN, TCMALLOC, "python+jemalloc", "run_cpu", "run_cpu+tcmalloc", "numactl", "ipexrun"),
    *("xlaunch", "xlaunch+optimize", "run_cpu+instances", "xlaunch+instances"),
)
MIN_OF_TCMALLOC = 0.97

Rows = dict[str, dict[str, ContenderResults]]
"""By work and contender."""


class Peers:
    """The commands of the peers on this machine."""

    def __init__(self, asked: argparse.Namespace, directory: Path) -> None:
        """`directory`: where links to allocators, and compiled code, are kept during the run."""
        self._counts = asked.instances
        # run_cpu looks for libtcmalloc.so in the lib directory of VIRTUAL_ENV, and for others, too.
        libraries = directory / "lib"
        libraries.mkdir()
        for path in Path(os.environ.get("VIRTUAL_ENV", sys.prefix), "lib").glob("*.so"):
            (libraries / path.name).symlink_to(path)
        run_cpu = [sys.executable, "-m", "torch.backends.xeon.run_cpu"]
        with_tcmalloc = ["env", f"VIRTUAL_ENV={directory}", *run_cpu, "--enable-tcmalloc"]
        # xlaunch finds an installed allocator by itself.
        given = ["env", f"LD_LIBRARY_PATH={libraries}"] if asked.tcmalloc else []
        xlaunch = [*given, *LAUNCHER]
        caches = directory / "caches"
        caches.mkdir(mode=0o700)
        optimize = ["--optimize", "auto", "--optimize-wait", "--cache-dir", str(caches)]
        self._launchers = {
            PLAIN: [sys.executable],
            "run_cpu": run_cpu,
            "numactl": ["numactl", "-N", "0", "-m", "0", sys.executable],
            "ipexrun": [str(asked.ipex_python and asked.ipex_python.with_name("ipexrun"))],
            "xlaunch": xlaunch,
            "xlaunch+optimize": [*xlaunch, *optimize],
            "run_cpu+instances": run_cpu,
            "xlaunch+instances": xlaunch,
        }
        absent = {}
        for name in ("tcmalloc", "jemalloc"):
            found = getattr(asked, name) or installed_library(name)
            if found is None:
                absent[f"python+{name}"] = f"{name} is not installed: {how_to_install(name)}"
                continue
            link = libraries / f"lib{name}.so"
            link.unlink(missing_ok=True)
            link.symlink_to(found)
            self._launchers[f"python+{name}"] = ["env", f"LD_PRELOAD={found}", sys.executable]
            if name == "tcmalloc":
                self._launchers["run_cpu+tcmalloc"] = with_tcmalloc
                self._launchers["run_cpu+instances"] = with_tcmalloc
        if TCMALLOC in absent:
            absent["run_cpu+tcmalloc"] = absent[TCMALLOC]
        if shutil.which("numactl") is None:
            absent["numactl"] = "numactl is not installed"
        if asked.ipex_python is None:
            absent["ipexrun"] = "no --ipex-python was given"
        self.absent = {name: why for name, why in absent.items() if name in asked.peers}
        """Reasons why peers cannot run."""
        self._names = [name for name in asked.peers if name not in absent]

    def contenders(self, work: NamedWork) -> dict[str, Contender]:
        """Return what is measured of a work: one process each, and each count of instances."""
        program = [*WORKLOADS, *work.arguments]
        contenders = {}
        for name in self._names:
            if not name.endswith("+instances"):
                contenders[name] = Contender([*self._launchers[name], *program], work.items)
                continue
            for count in self._counts:
                cores = str(len(os.sched_getaffinity(0)) // count)
                options = ["--instances", str(count), "--no-tag"]
                if name.startswith("run_cpu"):
                    options = ["--ninstances", str(count), "--ncores-per-instance", cores]
                command = [*self._launchers[name], *options, *program]
                contenders[f"{name}={count}"] = Contender(command, work.items, count)
        return contenders


def measure(works: Sequence[NamedWork], peers: Peers, asked: argparse.Namespace) -> Rows:
    """Measure round after round; print the rates of each work, and write all, after each of them."""
    rows: Rows = {work.name: {} for work in works}
    with until_stopped():
        for number in range(asked.rounds):
            for work in works:
                turns = take_turns(
                    peers.contenders(work),
                    launches=1,
                    turns=asked.turns,
                    seconds=asked.seconds,
                    title=f"{work.name}, round {number + 1}",
                )
                *_, measured = turns
                row = rows[work.name]
                for name, one in measured.items():
                    before = row.get(name, ContenderResults(())).launches
                    row[name] = ContenderResults((*before, *one.launches))
                plain = {w: {n: m.plain() for n, m in row.items()} for w, row in rows.items()}
                values = {"machine": machine_line(), "absent": peers.absent, "raw": plain}
                write_raw(asked.json, "peers", values)
                shown = [f"{name} {one.rate() or 0:.3g}" for name, one in row.items()]
                print(f"{work.name}, after round {number + 1}: {', '.join(shown)}", flush=True)
    return rows


def read_rows(path: Path) -> tuple[str, dict[str, str], Rows]:
    """Return machine, absent peers and rows of a file that `measure` wrote."""
    content = json.loads(path.read_text())
    rows = {
        work: {
            name: ContenderResults(
                tuple(LaunchResults(value["rates"], [], [], []) for value in values["launches"])
            )
            for name, values in row.items()
        }
        for work, row in content["raw"].items()
    }
    return content["machine"], content["absent"], rows


def best_of(row: Mapping[str, ContenderResults]) -> dict[str, tuple[str, ContenderResults]]:
    """Return for each peer its fastest contender, with the count of instances."""
    best: dict[str, tuple[str, ContenderResults]] = {}
    for name, measured in row.items():
        peer, _, count = name.partition("=")
        if peer not in best or (measured.rate() or 0) > (best[peer][1].rate() or 0):
            best[peer] = (count, measured)
    return best


def print_rows(rows: Rows, absent: Mapping[str, str]) -> None:
    """Print a table of peers and works, the ratios over python with tcmalloc, and the goal."""
    best = {work: best_of(row) for work, row in rows.items() if row}
    peers = [peer for peer in PEERS if any(peer in row for row in best.values())]
    for base in BASES:
        if base not in peers:
            continue
        print(f"\nItems a second, times {base} [95 % confidence interval]:\n")
        lines = [[peer, *(cell(row, peer, base) for row in best.values())] for peer in peers]
        print_table(["", *best], lines)
    print()
    for peer, reason in absent.items():
        print(f"{peer}: not measured, {reason}")
    for work, row in best.items():
        if "xlaunch" in row and TCMALLOC in row:
            gain = times(row["xlaunch"][1], row[TCMALLOC][1])
            if gain is not None:
                print(
                    f"goal {gain.verdict(MIN_OF_TCMALLOC)}: {work}: xlaunch is {gain} times {TCMALLOC}, at least {MIN_OF_TCMALLOC}"
                )


def cell(row: Mapping[str, tuple[str, ContenderResults]], peer: str, base: str) -> str:
    """Format the rate, the number of instances, and the ratio."""
    count, measured = row.get(peer, ("", ContenderResults(())))
    return rate_cell(measured, row[base][1] if base in row else measured, count)


def panels(rows: Rows) -> list[Panel]:
    """Return a panel for each work: the rates of the peers that worked on all of them, over plain python."""
    best = {work: best_of(row) for work, row in rows.items() if row}
    shown = [peer for peer in PEERS if all(_worked(row, peer) for row in best.values())]
    if PLAIN not in shown:
        return []
    return [Panel(work, [_bar(row, peer) for peer in shown]) for work, row in best.items()]


def _worked(row: Mapping[str, tuple[str, ContenderResults]], peer: str) -> bool:
    return peer in row and row[peer][1].rate() is not None


def _bar(row: Mapping[str, tuple[str, ContenderResults]], peer: str) -> Bar:
    count, measured = row[peer]
    base = row[PLAIN][1]
    ratio = (measured.rate() or 0.0) / (base.rate() or 1.0)
    interval = times(measured, base) or (ratio, ratio, ratio)  # one launch has no interval
    return Bar(peer, rate_cell(measured, measured, count), *interval)


def write_svg(path: Path, rows: Rows) -> None:
    """Draw the rates as bars, or print why not."""
    if drawn := panels(rows):
        path.write_text(svg(drawn), encoding="utf-8")
    else:
        print(f"{path}: not written, {PLAIN} did not work on every work")


def library(name: str) -> object:
    """Return the parser of a path to an allocator."""

    def parsed(text: str) -> Path:
        library = inspect_library(name, text, None, origin="named", named=True)
        if library.refusal:
            raise argparse.ArgumentTypeError(f"{text}: {library.refusal}")
        return Path(library.path)

    return parsed


def ipex_python(text: str) -> Path:
    if not Path(text).with_name("ipexrun").is_file():
        raise argparse.ArgumentTypeError(f"{text}: there is no ipexrun beside it")
    return Path(text)


def parse() -> argparse.Namespace:
    cpus = len(os.sched_getaffinity(0))
    parser = option_parser(__doc__, rounds=3)
    parser.add_argument(
        "--works",
        nargs="+",
        type=named_work,
        metavar="WORK",
        default=[named_work(name) for name in WORKS],
        help=f"default: {' '.join(WORKS)}",
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=PEERS,
        default=PEERS,
        metavar="PEER",
        help=f"default: all of {' '.join(PEERS)}",
    )
    parser.add_argument("--turns", type=at_least_2, default=3, help="turns in a round; default 3")
    parser.add_argument("--seconds", type=float, default=0.7, help="length of a turn; default 0.7")
    parser.add_argument(
        "--instances",
        nargs="+",
        type=int,
        metavar="N",
        default=sorted({max(2, cpus // 4), cpus}),
        help="default: one for each 4 CPUs, one for each CPU",
    )
    parser.add_argument(
        "--tcmalloc", type=library("tcmalloc"), metavar="FILE", help="default: the installed one"
    )
    parser.add_argument(
        "--jemalloc", type=library("jemalloc"), metavar="FILE", help="default: the installed one"
    )
    parser.add_argument(
        "--ipex-python", type=ipex_python, metavar="PATH", help="a Python with ipexrun beside it"
    )
    parser.add_argument(
        "--markdown",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="only print the tables of earlier JSON files",
    )
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw the rates over python's as bars"
    )
    asked = parser.parse_args()
    if asked.svg and len(asked.markdown or ()) > 1:
        parser.error("--svg draws one run: give --markdown one file")
    for count in asked.instances:
        if not 1 <= count <= cpus:
            parser.error(f"--instances {count}: 1 to {cpus}, the number of CPUs")
    return asked


def main() -> int:
    asked = parse()
    if asked.markdown:
        for path in asked.markdown:
            machine, absent, rows = read_rows(path)
            print(machine)
            print_rows(rows, absent)
            if asked.svg:
                write_svg(asked.svg, rows)
        return 0
    print(machine_line())
    works = []
    for work in asked.works:
        if missing := work.missing_modules():
            print(f"{work.name}: skipped, {', '.join(missing)} is not installed")
        else:
            works.append(work)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-"))
        peers = Peers(asked, Path(directory))
        rows = measure(works, peers, asked)
    print_rows(rows, peers.absent)
    if asked.svg:
        write_svg(asked.svg, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
