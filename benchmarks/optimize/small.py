# SPDX-License-Identifier: Apache-2.0
"""Compare what `xruntime.optimize(wait=True)` returns with the model itself, for models of two small layers.

    python -m benchmarks.optimize.small
    python -m benchmarks.optimize.small --units 64 --batch 1 --threads 1 --json small.json

Sequential(Linear(n, n), ReLU, Linear(n, n)) in fp32. The two objects are called as a program calls them, in blocks of
at least 2 ms that alternate within one process. The ratio is the median of the pairs of blocks, with the 5th and 95th
percentile. Code that does not pay for its own call has to be left: the goal is 0.97 for each model.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.harness.measurement import machine_line, option_parser, print_table, write_raw

UNITS = (64, 128, 256, 512, 1024, 4096)
BATCHES = (1, 64)
THREADS = (1, 2)
BLOCK_S = 2e-3
GOAL = 0.97


def block_s(call: Callable[[], Any], count: int) -> float:
    """Return the time of so many calls in seconds."""
    began = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - began


def measured(units: int, batch: int, threads: int, rounds: int) -> dict[str, Any]:
    """Return the ratios of one model, and what its calls run."""
    import torch
    from torch import nn

    from xruntime.optimization import explain, optimize

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(units, units), nn.ReLU(), nn.Linear(units, units)).eval()
    sample = torch.randn(batch, units)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        fast = optimize(model, sample_input=sample, wait=True)
    with torch.no_grad():
        for one in (model, fast):
            block_s(lambda one=one: one(sample), 20)
        count = max(1, round(BLOCK_S / block_s(lambda: model(sample), 1)))
        ratios = [
            block_s(lambda: model(sample), count) / block_s(lambda: fast(sample), count)
            for _ in range(rounds)
        ]
    step = explain(fast).step("graph")
    return {"ratios": ratios, "graph": f"{step.outcome.value}: {step.reason}"}


def main() -> int:
    parser = option_parser(__doc__, rounds=101)
    for name, values in (("units", UNITS), ("batch", BATCHES), ("threads", THREADS)):
        text = " ".join(map(str, values))
        parser.add_argument(
            f"--{name}", type=int, action="append", help=f"repeatable; default: {text}"
        )
    options = parser.parse_args()
    print(machine_line())
    raw, rows = {}, []
    for units in options.units or UNITS:
        for batch in options.batch or BATCHES:
            for threads in options.threads or THREADS:
                result = measured(units, batch, threads, options.rounds)
                ratio = statistics.median(result["ratios"])
                low, *_, high = statistics.quantiles(result["ratios"], n=20)
                verdict = "goal met" if ratio >= GOAL else "goal MISSED"
                name = f"{units} units, batch {batch}, {threads} threads"
                raw[name] = result
                rows.append(
                    [name, f"{ratio:.3f} [{low:.2f}, {high:.2f}]", verdict, result["graph"]]
                )
    print_table(["model", "times eager [5 %, 95 %]", f"at least {GOAL}", "calls run"], rows)
    write_raw(options.json, "optimize-small", raw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
