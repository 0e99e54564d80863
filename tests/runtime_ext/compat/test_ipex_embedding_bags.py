# SPDX-License-Identifier: Apache-2.0
"""Merged embedding bags and the interaction, as the extension's scripts call them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.runtime_ext.nn.vision_references import interaction_reference
from torch import nn

import xruntime.compat.ipex as ipex
import xruntime.nn
from xruntime.compat.ipex.nn.modules import EmbeddingSpec
from xruntime.errors import EmbeddingBagError

pytestmark = pytest.mark.usefixtures("native")

SGD = ipex.nn.modules.MergedEmbeddingBagWithSGD
ADAGRAD = ipex.nn.modules.MergedEmbeddingBagWithAdaGrad
SIZES = ((7, 33), (11, 5))
INDICES = [torch.tensor([1, 2, 4, 5, 4]), torch.tensor([3, 10, 3])]
OFFSETS = [torch.tensor([0, 2, 2]), torch.tensor([0, 1, 3])]


def bags(**options: Any) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList([nn.EmbeddingBag(*size, mode="sum", **options) for size in SIZES])


def loss(outputs: list[torch.Tensor]) -> torch.Tensor:
    return sum((one.float().square().sum() for one in outputs), start=torch.zeros(()))


def plain_step(modules: nn.ModuleList, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    pairs = zip(INDICES, OFFSETS, strict=True)
    loss([m(i, o) for m, (i, o) in zip(modules, pairs, strict=True)]).backward()
    optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_merged_bags_give_what_the_modules_give(dtype: torch.dtype) -> None:
    modules = bags(dtype=dtype)
    merged = ipex.nn.modules.MergedEmbeddingBag.from_embeddingbag_list(modules)
    outputs = merged(INDICES, OFFSETS)
    expected = [m(i, o) for m, i, o in zip(modules, INDICES, OFFSETS, strict=True)]
    torch.testing.assert_close(outputs, expected)
    wanted = torch.autograd.grad(loss(expected), list(modules.parameters()))
    torch.testing.assert_close(torch.autograd.grad(loss(outputs), list(merged.weights)), wanted)
    assert [tuple(weight.shape) for weight in merged.weights] == list(SIZES)
    without_offsets = merged([torch.tensor([[1, 2]]), torch.tensor([[3, 3]])])
    assert [tuple(one.shape) for one in without_offsets] == [(1, 33), (1, 5)]


def test_tables_of_float64_are_not_updated_in_backward() -> None:
    with pytest.raises(EmbeddingBagError, match=r"table 0 is of torch\.float64"):
        SGD.from_embeddingbag_list(bags(dtype=torch.float64))


def test_sgd_updates_in_backward_and_follows_sgd_args() -> None:
    modules = bags()
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.1)
    merged = SGD.from_embeddingbag_list(bags(), lr=0.1)
    for lr in (0.1, 0.025):
        optimizer.param_groups[0]["lr"] = lr
        merged.sgd_args = merged.sgd_args._replace(lr=lr)
        plain_step(modules, optimizer)
        loss(merged(INDICES, OFFSETS)).backward()
    assert merged.sgd_args == (0, 0.025)
    for module, weight in zip(modules, merged.weights, strict=True):
        torch.testing.assert_close(weight.detach(), module.weight.detach())


@pytest.mark.parametrize("kind", [SGD, ADAGRAD])
def test_bf16_training_keeps_the_fp32_weights(kind: Any) -> None:
    # Rows of these bags are updated once, so both have the same gradient but for its rounding.
    fp32, bf16 = (
        kind.from_embeddingbag_list(bags(), lr=0.01),
        kind.from_embeddingbag_list(bags(), 0.01),
    )
    before = [weight.clone() for weight in bf16.weights]
    bf16.to_bfloat16_train()
    assert {weight.dtype for weight in bf16.weights} == {torch.bfloat16}
    for found, expected in zip(bf16.master_weights(), before, strict=True):
        assert torch.equal(found, expected)
    for _ in range(3):
        loss(fp32(INDICES, OFFSETS)).backward()
        loss(bf16(INDICES, OFFSETS)).backward()
    for found, expected, start in zip(bf16.master_weights(), fp32.weights, before, strict=True):
        torch.testing.assert_close(found, expected.detach(), atol=0.02 * 0.2, rtol=0)
        assert not torch.equal(found, start)
    assert bf16.optimizer.param_groups[0]["lr"] == 0.01


def test_specs() -> None:
    weight = torch.rand(3, 4)
    first = EmbeddingSpec(3, 4, "mean", torch.float32, weight, False, False)
    drawn = first._replace(num_embeddings=5, weight=None)
    merged = SGD([first, drawn], lr=0.5)
    outputs = merged([torch.tensor([0, 2]), torch.tensor([4])], [torch.tensor([0])] * 2)
    torch.testing.assert_close(outputs[0], weight[[0, 2]].mean(0, keepdim=True))
    assert tuple(outputs[1].shape) == (1, 4)
    with pytest.raises(
        EmbeddingBagError, match="table 1 has pooling_mode='sum', and table 0 'mean'"
    ):
        SGD([first, drawn._replace(pooling_mode="sum")])
    with pytest.raises(
        EmbeddingBagError, match=r"dtype=torch.bfloat16, and its weight is torch.float"
    ):
        SGD([first._replace(dtype=torch.bfloat16)])
    with pytest.raises(EmbeddingBagError, match="no tables"):
        SGD([])


@pytest.mark.parametrize(
    ("dtypes", "promoted"),
    [
        ((torch.float32, torch.float32, torch.float32), torch.float32),
        ((torch.bfloat16, torch.float32, torch.bfloat16), torch.float32),
        ((torch.bfloat16, torch.float16, torch.float16), torch.float32),
        ((torch.bfloat16, torch.bfloat16, torch.bfloat16), torch.bfloat16),
    ],
)
def test_interaction_promotes_and_has_a_gradient(
    dtypes: tuple[torch.dtype, ...], promoted: torch.dtype
) -> None:
    inputs = [torch.rand(3, 5, dtype=dtype, requires_grad=True) for dtype in dtypes]
    output = ipex.nn.functional.interaction(*inputs)
    assert output.dtype == promoted
    expected = interaction_reference([one.to(promoted) for one in inputs])
    close = {"rtol": 0.02, "atol": 0.02} if promoted == torch.bfloat16 else {}
    torch.testing.assert_close(output, expected, **close)
    gradients = torch.autograd.grad(output.square().sum(), inputs, retain_graph=True)
    wanted = torch.autograd.grad(expected.square().sum(), inputs)
    for found, reference in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(found, reference, rtol=0.05, atol=0.05)


def test_the_frozen_batch_norm_is_xruntimes() -> None:
    assert ipex.nn.FrozenBatchNorm2d is xruntime.nn.FrozenBatchNorm2d
