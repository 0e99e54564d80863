# SPDX-License-Identifier: Apache-2.0
"""The peers of python -m benchmarks.operators in a Python with Intel's extension for PyTorch.

    PYTHON -m benchmarks.operators.ipex MIN_MEASURED_S embedding KIND DTYPE DISTRIBUTION TABLES ROWS DIM BATCH LENGTH
    PYTHON -m benchmarks.operators.ipex MIN_MEASURED_S interaction KIND DTYPE
    PYTHON -m benchmarks.operators.ipex MIN_MEASURED_S vision KIND SAMPLING_RATIO

KIND is forward or training. For each name that it reads it works for a moment and writes the seconds of one call. It
imports nothing that needs this project, which that Python does not have. The updates of embeddings by IPEX 2.8 are wrong
from 16 columns of fp32 and 32 of bf16 on (with AVX-512 from 32 of fp32), because it reads one part of a gradient's row
for all: its time of training is that of less work.
"""

from __future__ import annotations

import sys
from functools import partial

import intel_extension_for_pytorch as ipex
import torch
from intel_extension_for_pytorch.cpu.nn._roi_align_helper import roi_align
from intel_extension_for_pytorch.nn.modules import MergedEmbeddingBag, MergedEmbeddingBagWithSGD

from benchmarks.harness.other_python_side import measure_by_name
from benchmarks.operators.inputs import (
    DTYPES,
    Call,
    Shape,
    draw,
    draw_interaction,
    draw_regions,
    poolings,
    without_grad,
)


def embedding(kind: str, dtype: str, distribution: str, *sizes: str) -> dict[str, Call]:
    shape = Shape(*map(int, sizes))
    bags = [torch.nn.EmbeddingBag(shape.rows, shape.dim, mode="sum") for _ in range(shape.tables)]
    if kind == "training":
        merged = MergedEmbeddingBagWithSGD.from_embeddingbag_list(bags, lr=0.01)
        if dtype == "bfloat16":
            merged.to_bfloat16_train()
    else:
        merged = MergedEmbeddingBag.from_embeddingbag_list(bags).to(DTYPES[dtype])
    data = draw(shape, distribution, merged.weights[0].dtype)

    def forward() -> list[torch.Tensor]:
        return merged(data.indices, data.offsets)

    if kind == "forward":
        return {"IPEX": without_grad(forward)}
    return {"IPEX": lambda: torch.autograd.backward(forward(), data.gradients)}


def interaction(kind: str, dtype: str) -> dict[str, Call]:
    inputs, gradient = draw_interaction(DTYPES[dtype])
    forward = partial(ipex.nn.functional.interaction, *inputs)
    if kind == "forward":
        return {"IPEX": without_grad(forward)}
    return {"IPEX": lambda: torch.autograd.grad(forward(), inputs, gradient)}


def vision(kind: str, ratio: str) -> dict[str, Call]:
    calls = poolings("IPEX", roi_align, *draw_regions(), int(ratio))
    return {name: of_case[kind] for name, of_case in calls.items()}


OPERATORS = {"embedding": embedding, "interaction": interaction, "vision": vision}

if __name__ == "__main__":
    seconds, operator, *words = sys.argv[1:]
    measure_by_name(OPERATORS[operator](*words), float(seconds))
