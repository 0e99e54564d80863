# SPDX-License-Identifier: Apache-2.0
"""The peers of python -m benchmarks.optimizers in a Python with Intel's extension for PyTorch.

    PYTHON optim_ipex.py LAYOUT ELEMENTS MIN_MEASURED_S

For each name of OPTIMIZERS that it reads it works for a moment and writes the seconds of one step. It
imports nothing that needs this project, which that Python does not have.
"""

from __future__ import annotations

import logging
import sys
from functools import partial

import intel_extension_for_pytorch as ipex
import torch
from intel_extension_for_pytorch.optim._lamb import Lamb
from intel_extension_for_pytorch.optim._lars import Lars

from benchmarks.harness.other_python_side import measure_by_name
from benchmarks.optimizers.layouts import LAYOUTS

MOMENTUM = {"lr": 1e-3, "momentum": 0.9}
OPTIMIZERS = {
    "IPEX SGD, split": (partial(torch.optim.SGD, **MOMENTUM), torch.bfloat16),
    "IPEX Lars, fp32": (partial(Lars, **MOMENTUM), torch.float32),
    "IPEX Adagrad, split": (torch.optim.Adagrad, torch.bfloat16),
    "IPEX Adam, split": (torch.optim.Adam, torch.bfloat16),
    "IPEX AdamW, fp32 and bf16 copy": (torch.optim.AdamW, torch.bfloat16),
    "IPEX Lamb, split": (Lamb, torch.bfloat16),
    "IPEX Lamb, fp32": (Lamb, torch.float32),
}
"""How each is made, and the dtype of the weights in the model. IPEX 2.8 has no fused AdamW for CPUs, and its
Lars fails with split bf16."""


def main() -> None:
    logging.disable(logging.WARNING)  # of options that IPEX will drop
    sizes = LAYOUTS[sys.argv[1]](int(sys.argv[2]))
    steps = {}
    for name, (make, dtype) in OPTIMIZERS.items():
        torch.manual_seed(0)
        model = torch.nn.ParameterList(torch.randn(size) for size in sizes)
        # Packed weights, of convolutions and linear layers, would need AVX-512 for bf16.
        model, optimizer = ipex.optimize(
            model,
            optimizer=make(model.parameters()),
            dtype=dtype,
            inplace=True,
            weights_prepack=False,
        )
        for parameter in model.parameters():
            assert parameter.dtype == dtype
            parameter.grad = torch.randn_like(parameter)
        steps[name] = optimizer.step
    measure_by_name(steps, float(sys.argv[3]))


if __name__ == "__main__":
    main()
