# SPDX-License-Identifier: Apache-2.0
"""Measure what a model keeps of its speed beside a process of each priority, and what that process gets.

    python -m benchmarks.optimize.priority
    python -m benchmarks.optimize.priority --dtype float32 --rounds 5 --json priority.json

The model has MiniLM's sizes and random weights, and is optimized without compiled code; it gets batches of 32
sentences of 20 tokens, and as many threads as torch takes, or one less. The process only computes, on the same CPUs.
A round measures the model alone and beside each priority, 3 s each; medians are printed. From these figures comes how
`xruntime.kept.making` compiles beside a program.

Needs `pip install transformers`.
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
FEWER = ", a thread less"

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
    import torch
    from transformers import BertConfig, BertModel

    from xruntime import optimize
    from xruntime.threads.team import team_of

    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
    tokens = torch.randint(0, 30000, (32, 20))
    sample = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    dtype = getattr(torch, arguments.dtype)
    bert = BertModel(BertConfig(**sizes)).eval()
    model = optimize(bert, sample_input=sample, dtype=dtype, graph="none")

    def rate() -> float:
        model(**sample)  # for another number of threads some things are prepared
        began, calls = time.monotonic(), 0
        while time.monotonic() - began < SECONDS:
            model(**sample)
            calls += 1
        return calls / (time.monotonic() - began)

    rate()
    rates: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {}
    threads = torch.get_num_threads()
    for _ in range(arguments.rounds):
        for fewer in ("", FEWER) if threads > 1 else ("",):
            with team_of(threads - bool(fewer)):
                rates.setdefault(ALONE + fewer, []).append(rate())
                for name in PRIORITIES:
                    with subprocess.Popen(
                        [sys.executable, "-c", COMPETITOR, name], stdout=subprocess.PIPE, text=True
                    ) as competitor:
                        assert competitor.stdout is not None
                        competitor.stdout.readline()
                        rates.setdefault(name + fewer, []).append(rate())
                        share = float(competitor.stdout.read()) / SECONDS
                        shares.setdefault(name + fewer, []).append(share)
    alone = statistics.median(rates[ALONE])
    print(f"{machine_line()}; {threads} threads; {arguments.dtype}")
    print_table(
        ("priority", "calls/s", "times alone", "CPUs of the process"),
        [
            (
                name,
                f"{statistics.median(found):.1f}",
                f"{statistics.median(found) / alone:.2f}",
                f"{statistics.median(shares[name]):.2f}" if name in shares else "",
            )
            for name, found in rates.items()
        ],
    )
    write_raw(arguments.json, "priority", {"rates": rates, "shares": shares})
    return 0


if __name__ == "__main__":
    sys.exit(main())
