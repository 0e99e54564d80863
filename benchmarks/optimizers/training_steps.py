# SPDX-License-Identifier: Apache-2.0
"""Compare steps of training: stock torch, eager and compiled, and what `xruntime.optimize` returns.

    python -m benchmarks.optimizers.training_steps
    python -m benchmarks.optimizers.training_steps --work bert --batch 16 --launches 4 --json training.json
    python -m benchmarks.optimizers.training_steps --work cnn --batch 64 --form eager --form optimize
    python -m benchmarks.optimizers.training_steps --ipex-python ~/venvs/ipex/bin/python

Two layers of BERT-base, ViT-base and GPT-2 with dropouts of 0.1, and a wide residual network with dropouts of 0.3,
with random weights, updated by AdamW. All forms compute in bf16, those of stock torch and of IPEX under autocast; in
fp32 on a CPU without instructions for bf16. The forms of a model are alive together and work in turns (turns.py).
Memory is the peak of the process's resident memory during steps. The Python with IPEX 2.8 needs
transformers 4.51.3, too: IPEX cannot be imported beside newer ones.

Goals: the best of the stock forms times 1.15 for BERT, 1.1 for ViT and GPT-2, 1.3 for the residual network, and no
more memory than eager.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch

from benchmarks.harness.measurement import machine_line, number_cell, print_table
from benchmarks.harness.other_python import add_ipex_option
from benchmarks.harness.programs import LAUNCHER
from benchmarks.harness.turns import (
    DIRECTORY,
    Contender,
    ContenderResults,
    measure_rows,
    rate_cell,
    times,
    turn_parser,
)
from benchmarks.optimizers.training_works import DTYPES, FORMS, WORKS, forms_of
from xruntime.devices import cpu_bf16_flags

SCRIPT = ("-m", "benchmarks.optimizers.training_works")
GOALS = {"bert": 1.15, "cnn": 1.3, "vit": 1.1, "gpt2": 1.1}
BASE, OPTIMIZE, IPEX = "eager", "optimize", "ipex"


def contenders(work: str, dtype: str, options: argparse.Namespace) -> dict[str, Contender]:
    """Return the chosen forms of a model, all launched the same way."""
    sizes = ["--dtype", dtype, "--batch", str(options.batch)]
    contenders = {}
    for form in forms_of(work):
        if form not in options.form:
            continue
        python = ["--python", str(options.ipex_python)] if form == IPEX else []
        command = [*LAUNCHER, *python, *SCRIPT, DIRECTORY, work, "--form", form, *sizes]
        contenders[form] = Contender(command, options.batch)
    return contenders


def rows(work: str, measured: dict[str, ContenderResults]) -> list[list[str]]:
    """Format the forms of a model."""
    cells = []
    for form, one in measured.items():
        peak, _ = one.memory_mib() or (None, None)
        p50, _ = one.percentiles_ms()
        cells.append(
            [work, form, rate_cell(one, measured[BASE]), number_cell(p50, 0), number_cell(peak, 0)]
        )
    return cells


def goals(work: str, measured: dict[str, ContenderResults]) -> list[str]:
    """Report whether the goals of a model are met."""
    rated = {form: one for form, one in measured.items() if one.rate() is not None}
    stock = [one for form, one in rated.items() if form not in (OPTIMIZE, IPEX)]
    if not stock or OPTIMIZE not in rated:
        return [f"goal open: {work}: not measured"]
    best = max(stock, key=lambda one: one.rate() or 0)
    ratio = times(measured[OPTIMIZE], best)
    lines = []
    if ratio is not None:
        least = GOALS[work]
        verdict = ratio.verdict(least)
        lines.append(f"goal {verdict}: {work}: {ratio} of the best stock form, at least {least}")
    ours, base = measured[OPTIMIZE].memory_mib(), measured[BASE].memory_mib()
    if ours is not None and base is not None:
        verdict = "met" if ours[0] <= base[0] else "MISSED"
        lines.append(f"goal {verdict}: {work}: {ours[0]:.0f} MiB, at most {base[0]:.0f}")
    return lines


def main() -> int:
    parser = turn_parser(__doc__, seconds=1.0)
    parser.set_defaults(launches=2, turns=3)
    parser.add_argument("--work", action="append", choices=WORKS, help="default: all")
    parser.add_argument(
        "--form", action="append", choices=FORMS, help=f"default: all; {IPEX} needs --ipex-python"
    )
    add_ipex_option(parser)
    parser.add_argument("--batch", type=int, default=4, help="default 4")
    parser.add_argument("--dtype", choices=DTYPES, help="default: bfloat16 where the CPU has it")
    options = parser.parse_args()
    options.form = options.form or [form for form in FORMS if form != IPEX or options.ipex_python]
    if BASE not in options.form:
        parser.error(f"--form {BASE} is what the others are compared with: add it")
    if IPEX in options.form and options.ipex_python is None:
        parser.error(f"--form {IPEX} needs --ipex-python: the path of a Python with IPEX 2.8")
    dtype = options.dtype or ("bfloat16" if cpu_bf16_flags() else "float32")
    load = os.getloadavg()[0]
    print(f"{machine_line()}; torch {torch.__version__}; {dtype}; load {load:.1f}")
    works = options.work or list(WORKS)
    cells = ((work, contenders(work, dtype, options)) for work in works)
    measured = measure_rows(cells, options, "training steps")
    header = ["model", "form", f"items/s (times {BASE} [95 %])", "median step, ms", "memory, MiB"]
    print_table(header, [row for work, one in measured.items() for row in rows(work, one)])
    print("", *[line for work, one in measured.items() for line in goals(work, one)], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
