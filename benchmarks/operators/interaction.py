# SPDX-License-Identifier: Apache-2.0
"""The cases of the interaction: forward, and forward with backward.

Goal for fp32 and bf16: forward with backward 1.2 times as fast as the best peer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from benchmarks.harness.comparison import Comparison, RatioGoal, repeated
from benchmarks.harness.other_python import ipex_cases
from benchmarks.operators.inputs import (
    DTYPES,
    FEATURES,
    INPUTS,
    SAMPLES,
    draw_interaction,
    without_grad,
)
from xruntime.nn import interaction

Function = Callable[[Sequence[torch.Tensor]], torch.Tensor]


def plain(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack, multiply all pairs, and gather those below the diagonal."""
    stacked = torch.stack(list(tensors), 1)
    products = torch.bmm(stacked, stacked.transpose(1, 2))
    row, column = torch.tril_indices(len(tensors), len(tensors), -1)
    return torch.cat([tensors[0], products[:, row, column]], 1)


def training(
    function: Function, inputs: Sequence[torch.Tensor], gradient: torch.Tensor
) -> Callable[[], object]:
    return lambda: torch.autograd.grad(function(inputs), inputs, gradient)


def comparisons(options: argparse.Namespace) -> Iterator[Comparison]:
    """Yield forward and training for each dtype."""
    for name, dtype in DTYPES.items():
        inputs, gradient = draw_interaction(dtype)
        functions: dict[str, Function] = {"xruntime": interaction, "torch, eager": plain}
        if not options.no_compile:
            torch.compiler.reset()
            functions["torch, compiled"] = torch.compile(plain)
        for kind in ("forward", "training"):
            cases = [
                repeated(
                    case,
                    without_grad(partial(function, inputs))
                    if kind == "forward"
                    else training(function, inputs, gradient),
                )
                for case, function in functions.items()
            ]
            cases += ipex_cases(options, ["IPEX"], "operators.ipex", "interaction", kind, name)
            title = f"interaction, {kind}, {INPUTS} of {SAMPLES:,} x {FEATURES}, {name}"
            goal = RatioGoal(1.2) if kind == "training" else None
            yield Comparison(title, "xruntime", cases, goal)
