# SPDX-License-Identifier: Apache-2.0
"""`interaction` as a torch operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.runtime_ext.nn.vision_references import interaction_reference
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from xruntime.errors import OperatorError
from xruntime.nn import interaction

OPERATOR = torch.ops.xruntime.interaction


def make(
    count: int = 4, batch: int = 3, features: int = 5, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    return [torch.randn(batch, features, dtype=dtype, requires_grad=True) for _ in range(count)]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(6, 5)

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return interaction(self.dense(x), *others).relu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_and_gradients_are_those_of_fp64(dtype: torch.dtype) -> None:
    inputs = make(dtype=dtype)
    exact = [one.detach().double().requires_grad_() for one in inputs]
    wanted = interaction_reference(exact)
    output = interaction(*inputs)
    assert output.dtype == dtype
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), wanted, rtol=tolerance, atol=tolerance)
    gradient = torch.randn(wanted.shape).to(dtype)
    output.backward(gradient)
    wanted.backward(gradient.double())
    for one, reference in zip(inputs, exact, strict=True):
        assert one.grad.dtype == dtype
        torch.testing.assert_close(
            one.grad.double(), reference.grad, rtol=tolerance, atol=4 * tolerance
        )


def test_a_sequence_is_the_same_as_arguments() -> None:
    inputs = make()
    assert torch.equal(interaction(*inputs), interaction(inputs))
    assert torch.equal(interaction(*inputs), interaction(tuple(inputs)))


def test_inputs_of_any_layout_and_gradients_of_some() -> None:
    """Columns of one tensor, a transposed and an expanded one; the gradient is a slice too."""
    joined = torch.randn(6, 12, requires_grad=True)
    turned = torch.randn(4, 6, requires_grad=True)
    constant = torch.randn(1, 4)
    inputs = [joined[:, :4], joined[:, 8:], turned.t(), constant.expand(6, 4)]
    output = interaction(inputs)
    wide = torch.randn(6, 20)[:, ::2]
    output.backward(wide)
    found = joined.grad, turned.grad
    exact = joined.detach().double().requires_grad_(), turned.detach().double().requires_grad_()
    wanted = interaction_reference(
        [exact[0][:, :4], exact[0][:, 8:], exact[1].t(), constant.double().expand(6, 4)]
    )
    wanted.backward(wide.double())
    torch.testing.assert_close(output.double(), wanted, rtol=1e-5, atol=1e-5)
    for one, reference in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), reference.grad, rtol=1e-5, atol=1e-5)


def test_one_tensor_is_copied() -> None:
    (given,) = make(1)
    output = interaction(given)
    assert torch.equal(output, given)
    assert output.data_ptr() != given.data_ptr()
    output.backward(torch.full((3, 5), 2.0))
    assert torch.equal(given.grad, torch.full((3, 5), 2.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch", "features"), [(0, 5), (3, 0), (0, 0)])
def test_empty_tensors(batch: int, features: int) -> None:
    inputs = make(3, batch, features)
    output = interaction(*inputs)
    assert torch.equal(output, torch.zeros(batch, features + 3))
    output.sum().backward()
    assert all(one.grad is not None and one.grad.shape == one.shape for one in inputs)


def test_in_autocast_all_have_its_dtype() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        inputs = [*make(2), *make(2, dtype=dtype)]
        with torch.autocast("cpu", dtype=dtype):
            output = interaction(*inputs)
        assert torch.equal(output, interaction([one.to(dtype) for one in inputs]))
        output.sum().backward()
        assert [one.grad.dtype for one in inputs if one.grad is not None] == [
            one.dtype for one in inputs
        ]


def test_torch_accepts_the_operator() -> None:
    torch.library.opcheck(OPERATOR.default, (make(),))
    torch.library.opcheck(OPERATOR.default, ([one.detach() for one in make(3, 1, 1)],))
    gradient = torch.randn(3, 11)
    torch.library.opcheck(
        torch.ops.xruntime.interaction_backward.default,
        (gradient, [one.detach() for one in make()]),
    )


def test_it_can_be_exported() -> None:
    model, inputs = Model(), [torch.randn(4, 6), *(one.detach() for one in make(3, 4))]
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(
        model, tuple(inputs), dynamic_shapes=({0: batch}, ({0: batch},) * 3)
    )
    larger = [torch.randn(9, 6), *(one.detach() for one in make(3, 9))]
    assert torch.equal(exported.module()(*larger), model(*larger))


@pytest.mark.long
def test_it_can_be_compiled(compiler: None) -> None:
    model, inputs = Model(), [torch.randn(4, 6), *make(3, 4)]
    compiled = torch.compile(model, fullgraph=True)
    for autocast in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            wanted, output = model(*inputs), compiled(*inputs)
        assert output.dtype == wanted.dtype
        # Under autocast, compiled code rounds to bf16 in fewer places.
        tolerance = 0.02 if autocast else 1e-5
        torch.testing.assert_close(output, wanted, rtol=tolerance, atol=tolerance)
        gradients = [
            torch.autograd.grad(one.float().sum(), [*model.parameters(), *inputs[1:]])
            for one in (output, wanted)
        ]
        torch.testing.assert_close(*gradients, rtol=tolerance, atol=20 * tolerance)


def test_the_second_derivative_is_refused() -> None:
    inputs = make()
    (first,) = torch.autograd.grad(interaction(*inputs).sum(), inputs[0], create_graph=True)
    with pytest.raises(OperatorError, match="second derivative is not defined"):
        first.sum().backward()


def test_derivatives_in_forward_mode_are_refused_and_not_dropped() -> None:
    inputs = [one.detach() for one in make()]
    with (
        forward_ad.dual_level(),
        pytest.raises(OperatorError, match="interaction: derivatives in forward mode"),
    ):
        interaction(forward_ad.make_dual(inputs[0], inputs[1]), *inputs[1:])
    with pytest.raises(OperatorError, match="not defined, only those of backward"):
        torch.func.jvp(interaction, tuple(inputs), tuple(inputs))
    with forward_ad.dual_level():
        torch.testing.assert_close(interaction(inputs), interaction_reference(inputs))


class Failing(TorchDispatchMode):
    """Fails in the operator, for a reason that has nothing to do with its arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is OPERATOR.default:
            raise RuntimeError("the disk is full")
        return func(*args, **(kwargs or {}))


def test_an_error_with_another_cause_is_raised_as_it_is() -> None:
    with Failing(), pytest.raises(RuntimeError, match="the disk is full"):
        interaction(torch.ones(3, 2), torch.ones(3, 4))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([], "no tensors"),
        ([torch.ones(3)], r"tensor 0 has shape \(3,\); allowed is \(B, D\)"),
        ([torch.ones(3, 2).double()], "dtype torch.float64; allowed are torch.float32"),
        (
            [torch.ones(3, 2), torch.ones(3, 4)],
            r"tensor 1 has shape \(3, 4\) .* tensor 0 has \(3, 2\)",
        ),
        ([torch.ones(3, 2), torch.ones(3, 2).half()], "all must have the same"),
        ([torch.ones(3, 2), torch.ones(3, 2, device="meta")], "tensors on cpu and meta"),
        ([torch.ones(3, 1).expand(3, 2**31)] * 2, r"allowed is .* at most 2147483647 columns"),
    ],
)
def test_what_is_refused(tensors: list[torch.Tensor], message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        interaction(tensors)
    assert len(str(caught.value).splitlines()) == 1


def test_a_wrong_gradient_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"the gradient has shape \(3, 10\)"):
        torch.ops.xruntime.interaction_backward(torch.ones(3, 10), make())
