# SPDX-License-Identifier: Apache-2.0
"""Linears of few rows: which calls native code computes, and that all of them are right."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from xruntime.errors import OperatorError  # noqa: E402
from xruntime.generation import linear_blocks  # noqa: E402
from xruntime.generation import linear_rows as linear_rows_module  # noqa: E402
from xruntime.generation.linear_layers import matrix  # noqa: E402
from xruntime.generation.linear_rows import (  # noqa: E402
    MAX_ROWS,
    few_rows,
    linear_rows,
    linears_of_torch,
    row_class,
)

BF16, FP32 = torch.bfloat16, torch.float32


def linear(dtype: torch.dtype = BF16, *, bias: bool = True) -> nn.Linear:
    return nn.Linear(130, 140, bias=bias).to(dtype).eval()


def conv1d(dtype: torch.dtype = BF16) -> Any:
    from transformers.pytorch_utils import Conv1D

    layer = Conv1D(140, 130).to(dtype).eval()
    nn.init.normal_(layer.bias)
    return layer


def row_linear(dtype: torch.dtype = BF16, *, widens: bool = False) -> Any:
    made = linear(dtype)
    made.__class__ = row_class(nn.Linear, widens=widens)  # type: ignore[assignment]
    return made


def exact(layer: Any, value: torch.Tensor) -> torch.Tensor:
    bias = None if layer.bias is None else layer.bias.double()
    return nn.functional.linear(value.double(), matrix(layer).double(), bias)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(130,), (1, 130), (1, 1, 130), (3, 1, 130), (1, 2, 1, 130)])
def test_few_rows_are_computed(dtype: torch.dtype, bias: bool, shape: tuple[int, ...]) -> None:
    layer, value = linear(dtype, bias=bias), torch.randn(shape).to(dtype)
    with torch.no_grad():
        output = few_rows(layer, value)
    assert output is not None
    assert output.dtype == dtype
    assert output.shape == (*shape[:-1], 140)
    expected = exact(layer, value)
    tolerance = 2**-8 if dtype is BF16 else 1e-5
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("shape", [(130,), (3, 1, 130)])
def test_few_rows_of_a_conv1d(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    layer, value = conv1d(dtype), torch.randn(shape).to(dtype)
    kind = type(layer)
    layer.__class__ = row_class(kind, widens=False)
    assert few_rows(layer, value) is None  # weights that may get a gradient
    with torch.no_grad():
        assert few_rows(layer, torch.randn(1, 140).to(dtype)) is None
        output = few_rows(layer, value)
        assert output is not None
        assert torch.equal(layer(value), output)
    tolerance = 2**-8 if dtype is BF16 else 1e-5
    torch.testing.assert_close(output.double(), exact(layer, value), rtol=tolerance, atol=1e-5)
    assert type(copy.deepcopy(layer)) is kind
    assert not isinstance(layer, nn.Linear)


def test_values_that_are_not_dense() -> None:
    layer, value = linear(FP32), torch.randn(130, 3).T
    with torch.no_grad():
        output = few_rows(layer, value)
    assert output is not None
    torch.testing.assert_close(output.double(), exact(layer, value), rtol=1e-5, atol=1e-5)


def test_float32_with_weights_in_bf16_is_not_rounded() -> None:
    layer, value = linear(), torch.randn(1, 130)
    with torch.no_grad():
        assert few_rows(layer, value) is None  # torch raises for it
        output = few_rows(layer, value, widens=True)
    assert output is not None
    assert output.dtype == FP32
    torch.testing.assert_close(output.double(), exact(layer, value), rtol=1e-5, atol=1e-5)


class Subclass(torch.Tensor):
    pass


def declined() -> dict[str, tuple[nn.Linear, Any]]:
    value = torch.randn(1, 130).to(BF16)
    transposed = linear()
    transposed.weight = nn.Parameter(torch.randn(130, 140).to(BF16).T)
    special = linear()
    special.weight = nn.Parameter(special.weight.data.as_subclass(Subclass))
    mixed = linear()
    mixed.bias = nn.Parameter(torch.zeros(140))
    return {
        "more rows": (linear(FP32), torch.randn(MAX_ROWS + 1, 130)),
        "no rows": (linear(), torch.randn(0, 130).to(BF16)),
        "other features": (linear(), torch.randn(1, 131).to(BF16)),
        "a number": (linear(), 3),
        "another dtype": (linear(), value.to(torch.float16)),
        "float16": (linear(torch.float16), value.to(torch.float16)),
        "few weights": (nn.Linear(8, 8).to(BF16), torch.randn(1, 8).to(BF16)),
        "a subclass": (linear(), value.as_subclass(Subclass)),
        "weights of a subclass": (special, value),
        "transposed weights": (transposed, value),
        "a bias of another dtype": (mixed, value),
        "another device": (linear(), value.to("meta")),
        "sparse": (linear(), value.to_sparse()),
    }


@pytest.mark.parametrize("case", declined())
def test_what_is_left_to_torch(case: str) -> None:
    with torch.no_grad():
        assert few_rows(*declined()[case]) is None


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("block", [1 << 22, 130 * 33])
@pytest.mark.parametrize("by_input", [False, True])
def test_more_rows_in_bf16(
    native: bool, block: int, by_input: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_rows_module, "has_bf16_products", lambda: native)
    monkeypatch.setattr(linear_blocks, "has_bf16_products", lambda: native)
    monkeypatch.setattr(linear_blocks, "BLOCK_WEIGHTS", block)
    layer = conv1d() if by_input else linear()
    value = torch.randn(2, MAX_ROWS, 130).to(BF16)
    with torch.inference_mode():
        output = few_rows(layer, value)
        with linears_of_torch():
            assert few_rows(layer, value) is None
    assert few_rows(layer, value) is None  # weights that may get a gradient
    assert (output is None) == native
    if output is not None:
        assert output.dtype == BF16
        torch.testing.assert_close(output.double(), exact(layer, value), rtol=2**-8, atol=1e-6)


def test_gradients() -> None:
    layer, value = row_linear(FP32), torch.randn(2, 130, requires_grad=True)
    output = layer(value)
    output.sum().backward()
    assert value.grad is not None
    assert layer.weight.grad is not None
    layer.requires_grad_(False)
    assert few_rows(layer, value) is None
    assert few_rows(layer, value.detach()) is not None


def test_autocast() -> None:
    value = torch.randn(1, 130)
    with torch.no_grad(), torch.autocast("cpu", dtype=BF16):
        assert few_rows(linear(FP32), value) is None
        layer = linear()
        output = few_rows(layer, value, widens=True)
        assert output is not None
        assert output.dtype == BF16
        torch.testing.assert_close(output, layer(value), rtol=0.02, atol=0.02)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        assert few_rows(linear(), value.to(BF16)) is None


@pytest.mark.filterwarnings("ignore:.*trace:DeprecationWarning")
def test_traces_see_torchs_linear() -> None:
    layer, value = row_linear(FP32), torch.randn(1, 130)
    with torch.no_grad():
        expected = layer(value)
        traced = torch.jit.trace(layer, value)
        assert "aten::linear" in str(traced.inlined_graph)
        torch.testing.assert_close(traced(value), expected)
        graph = torch.fx.experimental.proxy_tensor.make_fx(layer)(value)
        assert "addmm" in graph.code
        mapped = torch.vmap(layer)(torch.randn(3, 1, 130))
        assert mapped.shape == (3, 1, 140)
        exported = torch.export.export(nn.Sequential(layer), (value,))
        assert "linear" in exported.graph_module.code
        torch.testing.assert_close(exported.module()(value), expected)


@pytest.mark.long
@pytest.mark.usefixtures("compiler")
def test_compiled_code_has_torchs_linear() -> None:
    layer, value = nn.Sequential(row_linear(FP32)), torch.randn(1, 130)
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True)
        torch.testing.assert_close(compiled(value), layer(value))


def test_copies_and_pickles_are_plain_layers() -> None:
    layer = row_linear()
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for other in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(buffer, weights_only=False),
    ):
        assert type(other) is nn.Linear
        assert torch.equal(other.weight, layer.weight)
    assert isinstance(layer, nn.Linear)
    assert repr(layer) == repr(linear())


def test_hooks_run() -> None:
    layer, seen = row_linear(), []
    layer.register_forward_hook(lambda _layer, _args, output: seen.append(output.shape))
    with torch.no_grad():
        layer(torch.randn(1, 130).to(BF16))
    assert seen == [(1, 140)]


def test_wrong_dtypes_are_named() -> None:
    value, weight = torch.ones(1, 4), torch.ones(3, 4, dtype=torch.float16)
    with pytest.raises(OperatorError, match=r"weights in torch.float16 .* \(INVALID_TYPE\)"):
        linear_rows(value, weight, None)
    assert linear_rows(torch.ones(2, 0), torch.ones(3, 0), None).tolist() == [[0] * 3] * 2
