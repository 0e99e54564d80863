# SPDX-License-Identifier: Apache-2.0
"""The peer of ops_cases_interaction.py in a Python with Intel's extension for PyTorch.

    PYTHON ops_ipex_interaction.py forward|training float32|bfloat16 INPUTS SAMPLES FEATURES

For each line that it reads it works for a moment and writes the seconds of one call. It imports
nothing of this project, which that Python does not have.
"""

from __future__ import annotations

import sys
import time

import intel_extension_for_pytorch as ipex
import torch

MIN_MEASURED_S = 0.2


def main() -> None:
    kind, name = sys.argv[1:3]
    count, samples, features = map(int, sys.argv[3:])
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    torch.manual_seed(0)
    inputs = [torch.randn(samples, features).to(dtype).requires_grad_() for _ in range(count)]
    gradient = torch.randn(samples, features + count * (count - 1) // 2).to(dtype)

    def call() -> None:
        if kind == "training":
            torch.autograd.grad(ipex.nn.functional.interaction(*inputs), inputs, gradient)
        else:
            with torch.no_grad():
                ipex.nn.functional.interaction(*inputs)

    for _ in sys.stdin:
        calls, began = 0, time.perf_counter()
        while (taken_s := time.perf_counter() - began) < MIN_MEASURED_S:
            call()
            calls += 1
        print(taken_s / calls, flush=True)


if __name__ == "__main__":
    main()
