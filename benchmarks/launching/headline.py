#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare launches: plain python, run_cpu, xlaunch without a flag, and two layouts.

    python -m benchmarks.launching.headline --json headline.json
    python -m benchmarks.launching.headline --work resnet50-bf16 --launches 6 --layout 16x4 --layout 64x1
    python -m benchmarks.launching.headline --work minilm-fp32 --layout 2x1       # on two CPUs

ResNet-50 and BERT-base (random weights, eager), fp32 and bf16; MiniLM on request. One process works
on batches of 64; the instances of a layout work on batches of 1, and their rates are added. Several
launches of each case of a row are alive and work in turns (turns.py). Goals on 64 CPUs:
without a flag at least 2.5 times plain python on ResNet-50 bf16 and 1.4 times on BERT bf16; the best
layout 4 and 2.5 times.
"""

from __future__ import annotations

import sys

from benchmarks.harness.measurement import machine_line, print_table
from benchmarks.harness.turns import (
    LAUNCHER,
    WORKLOADS,
    Contender,
    measure_rows,
    rate_cell,
    turn_parser,
)
from benchmarks.harness.works import named_work

DEFAULT = ("resnet50-fp32", "resnet50-bf16", "bert-fp32", "bert-bf16")
PLAIN = "python"
BATCH = 64


def contenders(work: str, layouts: list[str]) -> dict[str, Contender]:
    """Return the cases of a row."""
    large, small = ([*WORKLOADS, *named_work(f"{work}-{size}").arguments] for size in (BATCH, 1))
    found = {
        PLAIN: Contender([sys.executable, *large], BATCH),
        "run_cpu": Contender([sys.executable, "-m", "torch.backends.xeon.run_cpu", *large], BATCH),
        "xlaunch": Contender([*LAUNCHER, *large], BATCH),
    }
    for layout in layouts:
        instances, cores = layout.split("x")
        options = ["--instances", instances, "--ncores", cores, "--no-tag"]
        command = [*LAUNCHER, *options, *small]
        found[f"xlaunch {layout}"] = Contender(command, processes=int(instances))
    return found


def name_of(text: str) -> str:
    """Check the name of a work."""
    return named_work(text).name


def main() -> int:
    parser = turn_parser(__doc__, seconds=1.0)
    parser.add_argument(
        "--work",
        action="append",
        type=name_of,
        metavar="NAME",
        help=f"default: {', '.join(DEFAULT)}",
    )
    parser.add_argument("--layout", action="append", help="instances x cores; default 16x4, 64x1")
    options = parser.parse_args()
    print(machine_line())
    layouts = options.layout or ["16x4", "64x1"]
    rows = ((work, contenders(work, layouts)) for work in options.work or DEFAULT)
    measured = measure_rows(rows, options, "headline")
    names = list(next(iter(measured.values()), {}))
    print_table(
        [f"images or sequences/s, times {PLAIN} [95 %]", *names],
        [[w, *(rate_cell(one, row[PLAIN]) for one in row.values())] for w, row in measured.items()],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
