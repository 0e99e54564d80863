# SPDX-License-Identifier: Apache-2.0
"""The peer of ops_cases_interaction.py in a Python with Intel's extension for PyTorch.

    PYTHON ops_ipex_interaction.py forward|training float32|bfloat16 INPUTS SAMPLES FEATURES MIN_MEASURED_S

For each line "IPEX" that it reads it works for a moment and writes the seconds of one call. It imports
nothing that needs this project, which that Python does not have.
"""

from __future__ import annotations

import sys

import intel_extension_for_pytorch as ipex
import torch

from benchmarks.harness.other_python_side import measure_by_name


def main() -> None:
    kind, name = sys.argv[1:3]
    count, samples, features = map(int, sys.argv[3:6])
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

    measure_by_name({"IPEX": call}, float(sys.argv[6]))


if __name__ == "__main__":
    main()
