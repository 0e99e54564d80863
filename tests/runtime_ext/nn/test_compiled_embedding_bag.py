# SPDX-License-Identifier: Apache-2.0
"""Merged embedding bags as operators of torch: opcheck, compilation, export."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from xruntime.nn import (
    MergedEmbeddingBag,
    MergedEmbeddingBagWithAdaGrad,
    MergedEmbeddingBagWithSGD,
)
from xruntime.nn.native_operators import LIBRARY

TABLES = [(50, 33), (9, 4)]
SUM, MEAN, MAX = range(3)

pytestmark = pytest.mark.usefixtures("native")


def lookups(bags: int = 6) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    indices = [torch.randint(rows, (5 * bags,)) for rows, _ in TABLES]
    return indices, [torch.arange(0, 5 * bags, 5) for _ in TABLES]


def weights(dtype: torch.dtype = torch.float32, *, grad: bool = True) -> list[torch.Tensor]:
    return [torch.randn(size).to(dtype).requires_grad_(grad) for size in TABLES]


def factors() -> list[torch.Tensor]:
    return [torch.rand(30, requires_grad=True) for _ in TABLES]


def gradients() -> list[torch.Tensor]:
    return [torch.randn(6, dim) for _, dim in TABLES]


def check(name: str, *arguments: Any, tests: tuple[str, ...] | None = None) -> None:
    operator = getattr(torch.ops.xruntime, name).default
    given = {} if tests is None else {"test_utils": tests}
    found = torch.library.opcheck(operator, arguments, **given)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.long
@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
def test_opcheck_of_forward(mode: int) -> None:
    given = factors() if mode == SUM else []
    check("merged_embedding_bag", weights(), False, *lookups(), given, mode, False)
    fixed = [factor.detach() for factor in given]
    check("merged_embedding_bag_packed", weights(grad=False), *lookups(), fixed, mode, False)


@pytest.mark.long
def test_opcheck_of_gradients() -> None:
    rows = [rows for rows, _ in TABLES]
    arguments = gradients(), rows, [], *lookups(), [], SUM, False
    check("merged_embedding_bag_dense_gradients", *arguments)
    schema = ("test_schema", "test_faketensor")
    check("merged_embedding_bag_sparse_gradients", *arguments, tests=schema)
    given = [factor.detach() for factor in factors()]
    arguments = gradients(), weights(grad=False), *lookups(), given, SUM, False
    check("merged_embedding_bag_factor_gradients", *arguments)


def test_opcheck_of_updates() -> None:
    module = MergedEmbeddingBagWithSGD(TABLES, momentum=0.9)
    tables = [weight.detach() for weight in module.weights]
    given = [factor.detach() for factor in factors()]
    common = module._number, *lookups(), given, SUM, False
    check("merged_embedding_bag_update_", gradients(), tables, module._states, [], [], *common)


def compare(one: Any, compiled: Any, *, steps: int = 2) -> None:
    """Let both train on the same data, with per-sample weights that need a gradient."""
    for _ in range(steps):
        data, drawn, given = lookups(), gradients(), factors()
        found = []
        for module in (one, compiled):
            ours = [factor.detach().clone().requires_grad_() for factor in given]
            results = module(*data, ours)
            torch.autograd.backward(results, drawn)
            tables = [weight.grad for weight in module.weights if weight.grad is not None]
            dense = [grad.to_dense() if grad.is_sparse else grad for grad in tables]
            found.append([*results, *(factor.grad for factor in ours), *dense, *module.weights])
            module.zero_grad()
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


def compiled(module: Any, backend: str) -> Any:
    torch.compiler.reset()
    return torch.compile(copy.deepcopy(module), fullgraph=True, backend=backend)


@pytest.mark.parametrize("sparse", [False, True])
def test_compiled_modules_train_alike(sparse: bool) -> None:
    module = MergedEmbeddingBag(TABLES, sparse=sparse)
    compare(module, compiled(module, "aot_eager"))


@pytest.mark.parametrize("cls", [MergedEmbeddingBagWithSGD, MergedEmbeddingBagWithAdaGrad])
def test_compiled_modules_are_updated_at_the_present_learning_rate(cls: type) -> None:
    module = cls(TABLES, lr=0.1)
    other = compiled(module, "aot_eager")
    for lr in (0.1, 0.05):
        for one in (module, other):
            one.optimizer.param_groups[0]["lr"] = lr
        compare(module, other, steps=1)


@pytest.mark.long
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (MergedEmbeddingBag, {}),
        (MergedEmbeddingBag, {"sparse": True}),
        (MergedEmbeddingBagWithSGD, {"lr": 0.1, "momentum": 0.9}),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch 2.11's compiler
def test_modules_compiled_by_inductor_train_alike(cls: type, options: dict[str, Any]) -> None:
    module = cls(TABLES, **options)
    compare(module, compiled(module, "inductor"))


def test_compilation_does_not_depend_on_the_number_of_indices() -> None:
    module = MergedEmbeddingBag(TABLES)
    other = compiled(module, "aot_eager")
    with torch.no_grad():
        for bags in (6, 7, 9):
            data = lookups(bags)
            # The second number makes the size a symbol; the third needs no compilation.
            with torch.compiler.set_stance("fail_on_recompile" if bags == 9 else "default"):
                found = other(*data)
            for a, b in zip(module(*data), found, strict=True):
                assert torch.equal(a, b)


def test_bad_indices_are_an_error_of_compiled_code_too() -> None:
    other = compiled(MergedEmbeddingBag(TABLES), "aot_eager")
    indices, offsets = lookups()
    indices[1][3] = 9
    # libxoperators.so raises the only exception that torch's stable ABI has.
    with pytest.raises(RuntimeError if LIBRARY.path else IndexError, match="index 9 at position 3"):
        other(indices, offsets)


def test_export() -> None:
    module = MergedEmbeddingBag(TABLES).eval()
    data = lookups()
    exported = torch.export.export(module, data)
    for a, b in zip(exported.module()(*data), module(*data), strict=True):
        assert torch.equal(a, b)
