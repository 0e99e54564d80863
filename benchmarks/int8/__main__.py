# SPDX-License-Identifier: Apache-2.0
"""Compare the speed of INT8 models: torch in fp32, torchao as it documents it, xruntime.quantization.

    python -m benchmarks.int8 --json int8.json
    python -m benchmarks.int8 --work resnet50 --batch 64 --launches 4 --turns 8

Each contender is one process on all allowed CPUs, under xlaunch, which sets the same allocator, threads and
caches for all. Several launches of each are alive and work in turns (turns.py). Goals: INT8 by xruntime is
not slower than by torchao alone, and for ResNet-50 4 times eager fp32 on a CPU with VNNI or AMX. "open"
means that more launches or turns are needed to tell.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.harness.measurement import machine_line, number_cell, print_table
from benchmarks.harness.programs import LAUNCHER
from benchmarks.harness.turns import (
    DIRECTORY,
    Contender,
    ContenderResults,
    Times,
    measure_rows,
    times,
    turn_parser,
)
from benchmarks.int8.works import FORMS, WORKS, work_name

SCRIPT = ("-m", "benchmarks.int8.works")

TIMES_EAGER = {"resnet50": 4.0}
"""Goals of xruntime's INT8, relative to eager fp32."""

SLOWER = 0.95
"""A contender is not slower if the whole confidence interval of its ratio is above this."""

TITLES = {
    "eager": "fp32, eager",
    "compiled": "fp32, torch.compile with freezing",
    "torchao": "INT8, torchao and torch.compile",
    "xruntime": "INT8, xruntime.quantization",
}


def contenders(work: str, batch: int, forms: list[str]) -> dict[str, Contender]:
    """Return the contenders of a model, by form."""
    script = [*LAUNCHER, *SCRIPT, DIRECTORY, work, "--batch", str(batch)]
    return {form: Contender([*script, "--form", form], batch) for form in forms}


def main() -> int:
    parser = turn_parser(__doc__, seconds=2.0)
    parser.add_argument(
        "--work",
        action="append",
        type=work_name,
        metavar="WORK",
        help=f"{', '.join(WORKS)}, or LIBRARY:MODEL; default resnet50 and minilm",
    )
    parser.add_argument("--batch", type=int, default=16, help="items of a batch; default 16")
    parser.add_argument("--form", action="append", choices=FORMS, help="default: all")
    options = parser.parse_args()
    works, forms = options.work or ["resnet50", "minilm"], options.form or list(FORMS)
    print(machine_line())
    print(f"batches of {options.batch}; vector instructions: {_flags()}")

    def rows() -> Iterator[tuple[str, dict[str, Contender]]]:
        for work in works:
            yield work, contenders(work, options.batch, forms)

    measured = measure_rows(rows(), options, "int8")
    for work, row in measured.items():
        print(f"\n{work}\n")
        header = ["what", "items/s", "times eager [95 %]", "times compiled", "times torchao"]
        print_table([*header, "p50 ms"], [_row(form, row) for form in row])
        for line in _goal_lines(work, row):
            print(line)
    return 0


def _row(form: str, row: Mapping[str, ContenderResults]) -> list[str]:
    one = row[form]
    ratios = [_times(row, form, base) for base in ("eager", "compiled", "torchao")]
    p50, _ = one.percentiles_ms()
    shown = ["-" if ratio is None else str(ratio) for ratio in ratios]
    return [TITLES[form], number_cell(one.rate()), *shown, number_cell(p50)]


def _goal_lines(work: str, row: Mapping[str, ContenderResults]) -> Iterator[str]:
    """Judge by the 95 % confidence intervals."""
    against = _times(row, "xruntime", "torchao")
    if against is not None:
        verdict = "MISSED" if against.high < 1 else "met" if against.low > SLOWER else "open"
        yield f"goal {verdict}: {work}: xruntime is {against} times torchao by hand, not slower"
    against = _times(row, "xruntime", "eager")
    if against is not None and work in TIMES_EAGER:
        least = TIMES_EAGER[work]
        verdict = against.verdict(least)
        yield f"goal {verdict}: {work}: xruntime is {against} times eager fp32, at least {least:g}"


def _times(row: Mapping[str, ContenderResults], form: str, base: str) -> Times | None:
    if form == base or form not in row or base not in row:
        return None
    return times(row[form], row[base])


def _flags() -> str:
    """List this CPU's instructions for INT8."""
    known = ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
    text = Path("/proc/cpuinfo").read_text(errors="replace")
    flags = {word for line in text.splitlines() for word in line.split()[2:] if word in known}
    return ", ".join(sorted(flags)) or "none for INT8"


if __name__ == "__main__":
    sys.exit(main())
