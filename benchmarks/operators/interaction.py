# SPDX-License-Identifier: Apache-2.0
"""The cases of the interaction: forward, and forward with backward.

Goal for fp32 and bf16: forward with backward 1.2 times as fast as the best peer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks.harness.comparison import MIN_MEASURED_S, Comparison, RatioGoal, repeated
from benchmarks.harness.measurement import Case
from benchmarks.harness.other_python import cases_of
from xruntime.nn import interaction

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
INPUTS, SAMPLES, FEATURES = 27, 2048, 128

Function = Callable[[Sequence[torch.Tensor]], torch.Tensor]


def plain(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack, multiply all pairs, and gather those below the diagonal."""
    stacked = torch.stack(list(tensors), 1)
    products = torch.bmm(stacked, stacked.transpose(1, 2))
    row, column = torch.tril_indices(len(tensors), len(tensors), -1)
    return torch.cat([tensors[0], products[:, row, column]], 1)


def forward(function: Function, inputs: Sequence[torch.Tensor]) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return function(inputs)

    return run


def training(
    function: Function, inputs: Sequence[torch.Tensor], gradient: torch.Tensor
) -> Callable[[], object]:
    return lambda: torch.autograd.grad(function(inputs), inputs, gradient)


def comparisons(options: argparse.Namespace) -> Iterator[Comparison]:
    """Yield forward and training for each dtype."""
    shape = INPUTS, SAMPLES, FEATURES
    columns = FEATURES + INPUTS * (INPUTS - 1) // 2
    for name, dtype in DTYPES.items():
        torch.manual_seed(0)
        inputs = [torch.randn(SAMPLES, FEATURES).to(dtype).requires_grad_() for _ in range(INPUTS)]
        gradient = torch.randn(SAMPLES, columns).to(dtype)
        functions: dict[str, Function] = {"xruntime": interaction, "torch, eager": plain}
        if not options.no_compile:
            torch.compiler.reset()
            functions["torch, compiled"] = torch.compile(plain)
        for kind in ("forward", "training"):
            cases: list[Case] = []
            for case, function in functions.items():
                if kind == "forward":
                    cases.append(repeated(case, forward(function, inputs)))
                else:
                    cases.append(repeated(case, training(function, inputs, gradient)))
            if options.ipex_python is not None:
                module = "benchmarks.operators.ipex_interaction"
                words = [kind, name, *map(str, shape), str(MIN_MEASURED_S)]
                cases += cases_of(["IPEX"], [options.ipex_python, "-m", module, *words])
            title = f"interaction, {kind}, {INPUTS} of {SAMPLES:,} x {FEATURES}, {name}"
            yield Comparison(
                title, "xruntime", cases, RatioGoal(1.2) if kind == "training" else None
            )
