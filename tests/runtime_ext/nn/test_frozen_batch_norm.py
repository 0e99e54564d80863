# SPDX-License-Identifier: Apache-2.0
"""FrozenBatchNorm2d against its formula in fp64."""

from __future__ import annotations

import pytest
import torch

from xruntime.errors import OperatorError
from xruntime.nn import FrozenBatchNorm2d

NAMES = ["weight", "bias", "running_mean", "running_var"]


def make(dtype: torch.dtype = torch.float32) -> FrozenBatchNorm2d:
    module = FrozenBatchNorm2d(5, eps=1e-3)
    values = {name: torch.randn(5) for name in NAMES[:3]} | {"running_var": torch.rand(5)}
    module.load_state_dict(values)
    return module.to(dtype)


def formula(module: FrozenBatchNorm2d, x: torch.Tensor) -> torch.Tensor:
    buffers = [getattr(module, name).double()[:, None, None] for name in NAMES]
    weight, bias, mean, variance = buffers
    return (x.double() - mean) / (variance + module.eps).sqrt() * weight + bias


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("buffers", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_results_and_gradients_are_those_of_fp64(
    dtype: torch.dtype, buffers: torch.dtype, memory_format: torch.memory_format
) -> None:
    module = make(buffers)
    x = torch.randn(3, 5, 7, 9).to(dtype).contiguous(memory_format=memory_format)
    x.requires_grad_()
    exact = x.detach().double().requires_grad_()
    wanted = formula(module, exact)
    output = module(x)
    assert output.dtype == dtype
    assert output.is_contiguous(memory_format=memory_format)
    # The mean over a small deviation is subtracted after both were scaled.
    tolerance = max(2e-5, 8 * torch.finfo(dtype).eps)
    torch.testing.assert_close(output.double(), wanted, rtol=tolerance, atol=tolerance)
    gradient = torch.randn(wanted.shape).to(dtype)
    output.backward(gradient)
    wanted.backward(gradient.double())
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)
    assert all(buffer.grad is None for buffer in module.buffers())


def test_it_has_buffers_and_no_parameters() -> None:
    module = FrozenBatchNorm2d(5)
    assert not list(module.parameters())
    assert list(module.state_dict()) == NAMES
    assert module.eps == 1e-5
    assert repr(module) == "FrozenBatchNorm2d(5, eps=1e-05)"


def test_training_changes_nothing() -> None:
    module, x = make(), torch.randn(2, 5, 3, 3)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    wanted = module.eval()(x)
    assert torch.equal(module.train()(x), wanted)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_batch_norm_can_be_loaded_and_frozen() -> None:
    norm = torch.nn.BatchNorm2d(5, eps=1e-3)
    norm(torch.randn(4, 5, 6, 6))
    with torch.no_grad():
        norm.weight.normal_()
    x = torch.randn(2, 5, 3, 3)
    wanted = norm.eval()(x)
    loaded = FrozenBatchNorm2d(5, eps=1e-3)
    loaded.load_state_dict(norm.state_dict())
    frozen = FrozenBatchNorm2d.from_batch_norm(norm)
    with torch.no_grad():
        norm.weight.zero_()
    for module in (loaded, frozen):
        torch.testing.assert_close(module(x), wanted)
        assert not module(x).requires_grad


def test_a_batch_norm_without_affine_parameters_can_be_frozen() -> None:
    norm = torch.nn.BatchNorm2d(5, affine=False, dtype=torch.float64)
    norm(torch.randn(4, 5, 6, 6).double())
    x = torch.randn(2, 5, 3, 3).double()
    torch.testing.assert_close(FrozenBatchNorm2d.from_batch_norm(norm)(x), norm.eval()(x))


def test_a_batch_norm_without_statistics_is_refused() -> None:
    with pytest.raises(OperatorError, match="track_running_stats=False"):
        FrozenBatchNorm2d.from_batch_norm(torch.nn.BatchNorm2d(5, track_running_stats=False))


@pytest.mark.parametrize("shape", [(5, 3, 3), (2, 4, 3, 3), (2, 5, 3)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(OperatorError, match=r"allowed is \(N, 5, H, W\)"):
        make()(torch.ones(shape))


def test_empty_batches() -> None:
    assert make()(torch.empty(0, 5, 3, 3)).shape == (0, 5, 3, 3)


def test_autocast_keeps_the_dtype() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert make()(torch.randn(1, 5, 2, 2)).dtype == torch.float32
        assert make()(torch.randn(1, 5, 2, 2).bfloat16()).dtype == torch.bfloat16


def test_it_can_be_exported() -> None:
    module, x = make(), torch.randn(2, 5, 3, 3)
    exported = torch.export.export(module, (x,))
    torch.testing.assert_close(exported.module()(x), module(x))


def test_it_can_be_captured_with_its_gradient() -> None:
    module, x = make(), torch.randn(2, 5, 3, 3, requires_grad=True)
    output = torch.compile(module, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(output, module(x))
    gradients = [torch.autograd.grad(one.sum(), x)[0] for one in (output, module(x))]
    torch.testing.assert_close(*gradients)
