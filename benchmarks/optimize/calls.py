# SPDX-License-Identifier: Apache-2.0
"""Measure what a call of a compiled model costs beside its code.

    python -m benchmarks.optimize.calls
    python -m benchmarks.optimize.calls --layers 32 --json calls.json

Sequential of linears and ReLUs, 16 units, batch 1, one thread. `xruntime.optimize(wait=True)` compiles it. A call of what it
returns finds out whether anything of the model has changed, finds the library for the arguments, and checks these. The same
library is called directly with the same tensors, in blocks of at least 20 ms that alternate with blocks of such calls. The
difference is divided by the number of objects of the model that are looked at: its modules, parameters and buffers.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.harness.measurement import machine_line, option_parser, print_table, write_raw
from benchmarks.optimize.small import block_s

LAYERS = (8, 32, 128)
UNITS = 16
BLOCK_S = 2e-2
FIXED_GOAL_US, OBJECT_GOAL_US = 10.0, 0.3


def measured(layers: int, rounds: int) -> dict[str, Any]:
    """Return the microseconds of a call of the model, eager and optimized, and of its code, in each round."""
    import torch
    from torch import nn

    from xruntime.kept.calls import flat_call
    from xruntime.optimization import optimize
    from xruntime.optimization.optimized_code import optimized_code

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        *[part for _ in range(layers) for part in (nn.Linear(UNITS, UNITS), nn.ReLU())]
    ).eval()
    sample = torch.randn(1, UNITS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        fast = optimize(model, sample_input=sample, wait=True)
    code, call = optimized_code(fast), flat_call((sample,), {})
    library = code.kinds[0].fitting(call.sizes) if code is not None and code.kinds else None
    if library is None:
        raise SystemExit(
            f"{layers} layers: the model is not compiled here, so there is no code to call"
        )
    calls: dict[str, Callable[[], Any]] = {
        "eager": lambda: model(sample),
        "optimized": lambda: fast(sample),
        "code": lambda: library(call.tensors, call.sizes),
    }
    us: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        counts = {}
        for name, one_call in calls.items():
            block_s(one_call, 100)
            counts[name] = max(1, round(BLOCK_S / (block_s(one_call, 20) / 20)))
        for _ in range(rounds):
            for name, one_call in calls.items():
                us[name].append(1e6 * block_s(one_call, counts[name]) / counts[name])
    objects = sum(1 for _ in (*model.modules(), *model.parameters(), *model.buffers()))
    return {"us": us, "objects": objects}


def main() -> int:
    parser = option_parser(__doc__, rounds=101)
    text = " ".join(map(str, LAYERS))
    parser.add_argument("--layers", type=int, action="append", help=f"repeatable; default: {text}")
    options = parser.parse_args()
    print(machine_line())
    raw, rows = {}, []
    for layers in options.layers or LAYERS:
        raw[f"{layers} layers"] = result = measured(layers, options.rounds)
        median = {name: statistics.median(values) for name, values in result["us"].items()}
        beside = statistics.median(
            optimized - code
            for optimized, code in zip(result["us"]["optimized"], result["us"]["code"], strict=True)
        )
        goal = FIXED_GOAL_US + OBJECT_GOAL_US * result["objects"]
        rows.append(
            [
                f"{layers} layers, {result['objects']} objects",
                *[f"{median[name]:.1f}" for name in ("eager", "optimized", "code")],
                f"{beside:.1f}",
                f"{goal:.1f}: {'met' if beside <= goal else 'MISSED'}",
            ]
        )
    heads = [
        "model",
        "eager, us",
        "optimized, us",
        "its code, us",
        "beside the code, us",
        "goal, us",
    ]
    print_table(heads, rows)
    write_raw(options.json, "optimize-calls", raw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
