# SPDX-License-Identifier: Apache-2.0
"""The peer of ops_cases_embedding.py in a Python with Intel's extension for PyTorch.

    PYTHON ops_ipex_embedding.py forward|training float32|bfloat16 uniform|zipf \
        TABLES ROWS DIM BATCH LENGTH MIN_MEASURED_S

For each line "IPEX" that it reads it works for a moment and writes the seconds of one call. It imports
nothing that needs this project, which that Python does not have. The updates of IPEX 2.8 are wrong from 16
columns of fp32 and 32 of bf16 on (with AVX-512 from 32 of fp32), because it reads one part of a gradient's
row for all: its time of training is that of less work.
"""

from __future__ import annotations

import sys

import torch
from intel_extension_for_pytorch.nn.modules import MergedEmbeddingBag, MergedEmbeddingBagWithSGD

from benchmarks.harness.other_python_side import measure_by_name

EXPONENT = 1.05


def main() -> None:
    kind, dtype, distribution = sys.argv[1:4]
    tables, rows, dim, batch, length = map(int, sys.argv[4:9])
    torch.manual_seed(0)
    count = batch * length
    if distribution == "uniform":
        indices = [torch.randint(rows, (count,)) for _ in range(tables)]
    else:
        shares = torch.arange(1, rows + 1, dtype=torch.float64).pow(-EXPONENT).cumsum(0)
        drawn = [torch.rand(count, dtype=torch.float64) * shares[-1] for _ in range(tables)]
        ranks = [torch.searchsorted(shares, one).clamp(max=rows - 1) for one in drawn]
        indices = [torch.randperm(rows)[rank] for rank in ranks]
    offsets = [torch.arange(0, count, length) for _ in range(tables)]
    bags = [torch.nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables)]
    if kind == "training":
        merged = MergedEmbeddingBagWithSGD.from_embeddingbag_list(bags, lr=0.01)
        if dtype == "bfloat16":
            merged.to_bfloat16_train()
    else:
        merged = MergedEmbeddingBag.from_embeddingbag_list(bags)
        if dtype == "bfloat16":
            merged = merged.bfloat16()
    gradients = [torch.randn(batch, dim).to(merged.weights[0].dtype) for _ in range(tables)]

    def call() -> None:
        if kind == "training":
            torch.autograd.backward(merged(indices, offsets), gradients)
        else:
            with torch.no_grad():
                merged(indices, offsets)

    measure_by_name({"IPEX": call}, float(sys.argv[9]))


if __name__ == "__main__":
    main()
