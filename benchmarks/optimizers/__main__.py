# SPDX-License-Identifier: Apache-2.0
"""Compare the bytes per second of optimizer steps: xruntime.optim and torch's fused optimizers in fp32.

    python -m benchmarks.optimizers
    python -m benchmarks.optimizers --elements 100_000_000 --rounds 20 --json optim.json
    python -m benchmarks.optimizers --layout large
    python -m benchmarks.optimizers --ipex-python ~/venvs/ipex/bin/python
    python -m benchmarks.optimizers --curves docs/optimizers_loss.svg

Every step updates the same number of elements in few large, in odd-sized or in many small tensors. All
reads and writes of weights, remainders, gradients and states are counted, for both passes of Lamb and
Lars. The peer of Lamb is torch's fused AdamW, that of Lars torch's fused SGD. Goal: at least 85 % of the
peer's bytes per second for every split optimizer, Lamb and Lars.

Rows of IPEX count the bytes of ours, whatever it moves. For AdamW it has no kernel: it copies gradients to
fp32, lets torch step fp32 weights, and copies those to bf16.

With --curves it measures no time: it trains a network on scikit-learn's digits and a small transformer for
1,000 steps by AdamW with each way of storing the weights, and draws their losses. Goal: split bf16 stays
within 1 % of fp32's loss at every step.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.harness import line_chart
from benchmarks.harness.comparison import torch_line
from benchmarks.harness.measurement import (
    Case,
    machine_line,
    measure_rounds,
    option_parser,
    print_table,
    quartiles,
    time_cell,
    until_stopped,
    write_json,
    write_raw,
)
from benchmarks.harness.other_python import add_ipex_option, cases_of
from benchmarks.harness.other_python_side import seconds_of_one
from benchmarks.optimizers import training as optim_training
from benchmarks.optimizers.layouts import LAYOUTS
from xruntime import optim

GOAL = 0.85
MIN_MEASURED_S = 0.05
CURVE_STEPS = 1_000
CURVE_GOAL = 0.01


class OptimizerKind(NamedTuple):
    """One optimizer with the way its weights are stored, and the bytes of a step for each element."""

    name: str
    make: Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer] | None
    """None: IPEX's, of optim_ipex.py."""
    dtype: torch.dtype
    bytes_: int
    peer: str | None


def bytes_of(weight: int, gradient: int, states: int, *, norms: str | None = None) -> int:
    """Count the bytes of a step: reads, writes, and those of the pass for norms.

    `weight` includes the remainder. Lamb's first pass ("moments") reads all and writes the states, and
    its second reads no gradient; Lars's first ("weights") reads weights and gradients.
    """
    one_pass = weight + gradient + states + weight + states
    if norms == "moments":
        return weight + gradient + 2 * states + weight + states + weight
    return one_pass + (weight + gradient if norms == "weights" else 0)


def kinds() -> list[OptimizerKind]:
    full, half = torch.float32, torch.bfloat16
    momentum = {"lr": 1e-3, "momentum": 0.9}
    torch_sgd, torch_adagrad, torch_adamw = (
        partial(optimizer, fused=True)
        for optimizer in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.AdamW)
    )
    sgd, adagrad, adamw = "torch SGD, fp32", "torch Adagrad, fp32", "torch AdamW, fp32"
    lars = partial(optim.Lars, **momentum)
    of_lars, of_lamb = {"norms": "weights"}, {"norms": "moments"}
    return [
        OptimizerKind(sgd, partial(torch_sgd, **momentum), full, bytes_of(4, 4, 4), None),
        OptimizerKind("SGD, split", partial(optim.SGD, **momentum), half, bytes_of(4, 2, 4), sgd),
        OptimizerKind("Lars, split", lars, half, bytes_of(4, 2, 4, **of_lars), sgd),
        OptimizerKind("Lars, fp32", lars, full, bytes_of(4, 4, 4, **of_lars), sgd),
        OptimizerKind(adagrad, torch_adagrad, full, bytes_of(4, 4, 4), None),
        OptimizerKind("Adagrad, split", optim.Adagrad, half, bytes_of(4, 2, 4), adagrad),
        OptimizerKind(adamw, torch_adamw, full, bytes_of(4, 4, 8), None),
        OptimizerKind("AdamW, split", optim.AdamW, half, bytes_of(4, 2, 8), adamw),
        OptimizerKind("Lamb, split", optim.Lamb, half, bytes_of(4, 2, 8, **of_lamb), adamw),
        OptimizerKind("Lamb, fp32", optim.Lamb, full, bytes_of(4, 4, 8, **of_lamb), adamw),
    ]


IPEX_KINDS = {
    "IPEX SGD, split": "SGD, split",
    "IPEX Lars, fp32": "Lars, fp32",
    "IPEX Adagrad, split": "Adagrad, split",
    "IPEX Adam, split": "AdamW, split",
    "IPEX AdamW, fp32 and bf16 copy": "AdamW, split",
    "IPEX Lamb, split": "Lamb, split",
    "IPEX Lamb, fp32": "Lamb, fp32",
}
"""IPEX's optimizers, and the ones of ours whose bytes and peer they have: the result of a step is the same."""


def ipex_kinds() -> list[OptimizerKind]:
    ours = {kind.name: kind for kind in kinds()}
    return [ours[same]._replace(name=name, make=None) for name, same in IPEX_KINDS.items()]


def case_of(kind: OptimizerKind, sizes: Sequence[int]) -> Case:
    """A case that repeats steps for MIN_MEASURED_S and returns the seconds of one."""
    assert kind.make is not None
    parameters = [torch.nn.Parameter(torch.randn(size, dtype=kind.dtype)) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return Case(kind.name, partial(seconds_of_one, kind.make(parameters).step, MIN_MEASURED_S))


def cases(layout: str, options: argparse.Namespace) -> list[Case]:
    """The cases of all kinds, and those of IPEX in one process."""
    sizes = LAYOUTS[layout](options.elements)
    listed = [case_of(kind, sizes) for kind in kinds()]
    if options.ipex_python is not None:
        module = "benchmarks.optimizers.ipex"
        words = [layout, str(options.elements), str(MIN_MEASURED_S)]
        listed += cases_of([*IPEX_KINDS], [options.ipex_python, "-m", module, *words])
    return listed


def draw_curves(svg: Path, json: Path | None) -> None:
    """Train each network in each way; print the differences from fp32, and draw the losses."""
    x = range(optim_training.INTERVAL, CURVE_STEPS + 1, optim_training.INTERVAL)
    charts, goals = [], []
    curves: dict[str, dict[str, list[float]]] = {}
    for work in (optim_training.digits(), optim_training.transformer()):
        of_way = {
            name: optim_training.losses(work, "adamw", way, CURVE_STEPS)
            for name, way in optim_training.WAYS.items()
        }
        full = of_way["fp32"]
        rows = [
            [name, f"{curve[-1]:.4f}", f"{optim_training.gap(curve, full):.2%}"]
            for name, curve in of_way.items()
        ]
        print(f"\n{work.name}, {CURVE_STEPS:,} steps of AdamW")
        print_table(["weights", "last loss", "largest difference from fp32"], rows)
        gap = optim_training.gap(of_way["split bf16"], full)
        verdict = "met" if gap <= CURVE_GOAL else "MISSED"
        goals.append(
            f"goal {verdict}: {work.name}: split bf16 within {gap:.2%} of fp32, at most {CURVE_GOAL:.0%}"
        )
        curves[work.name] = {name: curve.tolist() for name, curve in of_way.items()}
        charts.append(line_chart.Chart(work.name, x, curves[work.name]))
    print("", *goals, sep="\n")
    svg.write_text(line_chart.svg(charts, x_title="step", y_title="loss"))
    write_raw(json, "optim curves", {"goals": goals, "steps": list(x), "losses": curves})


def main() -> int:
    parser = option_parser(__doc__, rounds=9)
    parser.add_argument(
        "--elements",
        type=int,
        default=20_000_000,
        help="of all tensors together (default 20 million)",
    )
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="default: all of them")
    parser.add_argument(
        "--curves", type=Path, metavar="SVG", help="train instead, and draw the losses to this file"
    )
    add_ipex_option(parser)
    options = parser.parse_args()
    if options.elements < 100_000:
        parser.error("--elements is at least 100,000")
    all_results, goals = [], []
    if options.curves:
        if not options.curves.parent.is_dir():
            parser.error(
                f"--curves {options.curves}: there is no directory {options.curves.parent}"
            )
        if importlib.util.find_spec("sklearn") is None:
            parser.error("--curves needs scikit-learn, for its digits: pip install scikit-learn")
        draw_curves(options.curves, options.json)
        return 0
    print(f"{machine_line()}; {torch_line()}")
    all_kinds = [*kinds(), *(ipex_kinds() if options.ipex_python else [])]
    by_name = {kind.name: kind for kind in all_kinds}
    with until_stopped():
        for layout in options.layout or LAYOUTS:
            sizes = LAYOUTS[layout](options.elements)
            results = measure_rounds(cases(layout, options), options.rounds)
            seconds = {result.name: result.seconds for result in results}
            rows = []
            for kind in by_name.values():
                moved = kind.bytes_ * sum(sizes)
                median = quartiles(seconds[kind.name]).median
                row = [
                    kind.name,
                    time_cell(seconds[kind.name], digits=1),
                    f"{moved / median / 1e9:.1f}",
                    "",
                ]
                if kind.peer is not None:
                    peer = by_name[kind.peer]
                    pairs = zip(seconds[kind.peer], seconds[kind.name], strict=True)
                    share = quartiles([a / b * kind.bytes_ / peer.bytes_ for a, b in pairs]).median
                    row[-1] = f"{share:.0%}"
                    if kind.make is not None:
                        verdict = "met" if share >= GOAL else "MISSED"
                        goals.append(
                            f"goal {verdict}: {layout}: {kind.name}: {share:.0%} of {kind.peer}'s bytes"
                            f" per second, at least {GOAL:.0%}"
                        )
                rows.append(row)
            print(f"\n{len(sizes)} tensors ({layout}), {sum(sizes):,} elements")
            print_table(["step", "time (quartiles)", "GB/s", "of its peer"], rows)
            all_results += [r._replace(name=f"{layout}: {r.name}") for r in results]
    print("", *goals, sep="\n")
    write_json(options.json, "optim", all_results, goals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
