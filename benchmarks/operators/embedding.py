# SPDX-License-Identifier: Apache-2.0
"""The cases of merged embedding bags: forward, and forward with backward and SGD.

Uniform indices name every row alike; Zipf's, whose frequencies fall with the rank, are those of words
and products. Goals for fp32: forward 1.3 times as fast as the best peer; training with the update in
backward twice as fast as nn.EmbeddingBag(sparse=True) with torch.optim.SGD.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.harness.comparison import Comparison, RatioGoal, repeated
from benchmarks.harness.measurement import Case
from benchmarks.harness.other_python import ipex_cases
from benchmarks.operators.inputs import BAG_LENGTH, DIM, DTYPES, Data, Shape, draw, without_grad
from xruntime.nn import MergedEmbeddingBag, MergedEmbeddingBagWithSGD

DISTRIBUTIONS = ("uniform", "zipf")
LR = 0.01
LOOP = "loop of nn.EmbeddingBag"
IPEX_SAFE_DIM = 15
"""With more columns IPEX 2.8 may update by wrong gradients: see ipex.py."""


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("embedding")
    group.add_argument("--tables", type=int, default=26, help="default 26")
    group.add_argument("--rows", type=int, default=100_000, help="of a table; default 100,000")
    group.add_argument("--batch", type=int, default=2048, help="bags of a table; default 2048")
    group.add_argument("--dtype", choices=DTYPES, action="append", help="default: all")


def forward_cases(
    loop: nn.ModuleList, data: Data, *, compiled: bool, ipex: list[Case]
) -> list[Case]:
    """All cases share the tables."""
    merged = MergedEmbeddingBag.from_embeddingbag_list(list(loop))

    def each() -> list[torch.Tensor]:
        return [bag(*one) for bag, *one in zip(loop, data.indices, data.offsets, strict=True)]

    cases = [
        repeated("merged", without_grad(lambda: merged(data.indices, data.offsets))),
        repeated(f"{LOOP}, eager", without_grad(each)),
    ]
    if compiled:
        torch.compiler.reset()
        cases.append(repeated(f"{LOOP}, compiled", without_grad(torch.compile(each))))
    return [*cases, *ipex]


def training_cases(loop: nn.ModuleList, data: Data, *, ipex: list[Case]) -> list[Case]:
    """Forward, backward and a step of SGD. All cases share the tables."""
    updating = MergedEmbeddingBagWithSGD.from_embeddingbag_list(list(loop), lr=LR)
    merged = MergedEmbeddingBag.from_embeddingbag_list(list(loop))
    optimizer = torch.optim.SGD(loop.parameters(), lr=LR)

    def update() -> None:
        torch.autograd.backward(updating(data.indices, data.offsets), data.gradients)

    def step(results: list[torch.Tensor]) -> None:
        torch.autograd.backward(results, data.gradients)
        optimizer.step()
        optimizer.zero_grad()

    def each() -> None:
        triples = zip(loop, data.indices, data.offsets, strict=True)
        step([bag(indices, offsets) for bag, indices, offsets in triples])

    return [
        repeated("merged, updated in backward", update),
        repeated(
            "merged, sparse=True, torch SGD", lambda: step(merged(data.indices, data.offsets))
        ),
        repeated(f"{LOOP}, sparse=True, torch SGD", each),
        *ipex,
    ]


def comparisons(options: argparse.Namespace) -> Iterator[Comparison]:
    """Yield forward and training for each dtype and distribution."""
    shape = Shape(options.tables, options.rows, DIM, options.batch, BAG_LENGTH)
    pairs = itertools.product(options.dtype or DTYPES, DISTRIBUTIONS)
    for dtype, distribution in pairs:
        data = draw(shape, distribution, DTYPES[dtype])
        loop = nn.ModuleList(
            nn.EmbeddingBag(shape.rows, shape.dim, mode="sum", sparse=True, dtype=DTYPES[dtype])
            for _ in range(shape.tables)
        )
        sizes = f"{shape.tables} tables of {shape.rows:,} x {shape.dim}, {dtype}, {distribution}"
        exact = dtype == "float32"
        words = (dtype, distribution, *map(str, shape))
        ipex = ipex_cases(options, ["IPEX"], "operators.ipex", "embedding", "forward", *words)
        cases = forward_cases(loop, data, compiled=not options.no_compile, ipex=ipex)
        yield Comparison(f"forward, {sizes}", "merged", cases, RatioGoal(1.3) if exact else None)
        ipex = ipex_cases(options, ["IPEX"], "operators.ipex", "embedding", "training", *words)
        if shape.dim > IPEX_SAFE_DIM:
            ipex = [case._replace(name="IPEX (its updates may be wrong)") for case in ipex]
        cases = training_cases(loop, data, ipex=ipex)
        goal = RatioGoal(2.0, (f"{LOOP}, sparse=True, torch SGD",)) if exact else None
        yield Comparison(f"training, {sizes}", "merged, updated in backward", cases, goal)
