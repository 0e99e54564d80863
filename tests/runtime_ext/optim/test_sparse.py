# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients of whole rows: the rows with a gradient take torch's step, others do not change."""

from __future__ import annotations

import pytest
import torch
from tests.runtime_ext.optim.training import ours, torchs

from xruntime.optim.split_bf16 import join

ROWS, WIDTH = 50, 7


def gradient_of(indices: torch.Tensor, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """A gradient that is not coalesced: rows occur repeatedly."""
    values = torch.randn(len(indices), WIDTH, generator=torch.Generator().manual_seed(seed))
    return torch.sparse_coo_tensor(
        indices[None], values.bfloat16().to(dtype), (ROWS, WIDTH), check_invariants=True
    )


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["plain", "adagrad"])
def test_rows_follow_torch(name: str, dtype: torch.dtype, maximize: bool) -> None:
    start = torch.randn(ROWS, WIDTH).bfloat16()
    table, exact = (torch.nn.Parameter(start.to(d, copy=True)) for d in (dtype, torch.float64))
    optimizer = ours(name, [table], maximize=maximize)
    reference = torchs(name, [exact], maximize=maximize, foreach=False)
    touched = set()
    for seed in range(5):
        indices = torch.arange(20) * (seed + 1) % 40
        touched |= set(indices.tolist())
        # Coalesced in bf16, the sums of a row would be rounded.
        coalesced = gradient_of(indices, torch.float64, seed).coalesce().to(torch.bfloat16)
        table.grad = coalesced.to(dtype)
        exact.grad = coalesced.to(torch.float64)
        optimizer.step()
        with torch.sparse.check_sparse_tensor_invariants():
            reference.step()
    master = table.float()
    if dtype == torch.bfloat16:
        master = join(table, optimizer.state[table]["remainder"])
    torch.testing.assert_close(master.double(), exact.detach(), rtol=1e-5, atol=1e-6)
    rest = [row for row in range(ROWS) if row not in touched]
    assert len(rest) >= 10
    assert torch.equal(table[rest], start[rest].to(dtype))
    if name == "adagrad":
        state = optimizer.state[table]
        assert float(state["step"]) == 5
        assert torch.equal(state["sum"][rest], torch.full((len(rest), WIDTH), 0.1))


@pytest.mark.parametrize("rounding", ["split", "stochastic"])
def test_repeated_rows_are_added_first(rounding: str) -> None:
    table = torch.nn.Parameter(torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16))
    values = torch.ones(3, WIDTH, dtype=torch.bfloat16)
    indices = torch.tensor([[4, 9, 4]])
    table.grad = torch.sparse_coo_tensor(indices, values, (ROWS, WIDTH), check_invariants=True)
    ours("plain", [table], lr=0.5, rounding=rounding).step()
    assert table[4].tolist() == [-1.0] * WIDTH
    assert table[9].tolist() == [-0.5] * WIDTH
    assert int((table != 0).sum()) == 2 * WIDTH


def test_a_gradient_without_rows_counts_as_a_step() -> None:
    table = torch.nn.Parameter(torch.ones(ROWS, WIDTH, dtype=torch.bfloat16))
    table.grad = gradient_of(torch.zeros(0, dtype=torch.int64), torch.bfloat16, 0)
    optimizer = ours("adagrad", [table])
    optimizer.step()
    assert float(optimizer.state[table]["step"]) == 1
    assert (table == 1).all()


def test_an_embedding_trains_beside_dense_parameters() -> None:
    torch.manual_seed(0)
    table = torch.nn.Embedding(ROWS, WIDTH, sparse=True, dtype=torch.bfloat16)
    layer = torch.nn.Linear(WIDTH, 1, dtype=torch.bfloat16)
    optimizer = ours("adagrad", [*table.parameters(), *layer.parameters()])
    losses = []
    for _ in range(30):
        loss = (layer(table(torch.arange(20))).float().squeeze() - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
