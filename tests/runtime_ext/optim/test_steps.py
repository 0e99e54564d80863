# SPDX-License-Identifier: Apache-2.0
"""Steps against torch's optimizers in fp64: options, dtypes, layouts, groups, gradients that come and go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.runtime_ext.conftest import Needs
from tests.runtime_ext.optim.training import (
    EVERY,
    ONLY_OURS,
    OPTIONS,
    masters,
    ours,
    parameters_of,
    set_gradients,
    torchs,
    train,
)

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_split_weights_follow_torch_in_fp64(name: str, maximize: bool) -> None:
    parameters, exact = parameters_of(torch.bfloat16), parameters_of(torch.float64)
    optimizer = ours(name, parameters, maximize=maximize)
    reference = torchs(name, exact, maximize=maximize)
    train(optimizer, parameters, range(10))
    train(reference, exact, range(10))
    for master, wanted in zip(masters(optimizer, parameters), exact, strict=True):
        torch.testing.assert_close(master.double(), wanted.detach(), **CLOSE)
    for parameter, wanted in zip(parameters, exact, strict=True):
        for key, value in reference.state[wanted].items():
            found = optimizer.state[parameter][key]
            torch.testing.assert_close(found.double(), value.double(), **CLOSE)
            assert found.dtype == torch.float32


@pytest.mark.parametrize("name", OPTIONS)
def test_fp32_parameters_are_torchs_fused(name: str) -> None:
    parameters, same = parameters_of(torch.float32), parameters_of(torch.float32)
    optimizer, reference = ours(name, parameters), torchs(name, same, fused=True)
    train(optimizer, parameters, range(5))
    train(reference, same, range(5))
    for parameter, wanted in zip(parameters, same, strict=True):
        assert torch.equal(parameter, wanted)
        for key, value in reference.state[wanted].items():
            assert torch.equal(optimizer.state[parameter][key], value)


@pytest.mark.parametrize("name", ONLY_OURS)
def test_lamb_and_lars_update_fp32_as_split_bf16(name: str) -> None:
    half, full = parameters_of(torch.bfloat16), parameters_of(torch.float32)
    first, second = ours(name, half), ours(name, full)
    train(first, half, range(5))
    train(second, full, range(5))
    for master, parameter in zip(masters(first, half), full, strict=True):
        assert torch.equal(master, parameter)


@pytest.mark.parametrize("name", EVERY)
def test_groups_of_mixed_dtypes_and_options(name: str) -> None:
    """Each parameter takes the step that it takes in an optimizer of its own."""
    dtypes = (torch.bfloat16, torch.float32) * 2
    together = [parameters_of(dtype)[3] for dtype in dtypes]
    alone = [parameters_of(dtype)[3] for dtype in dtypes]
    optimizer = ours(name, [{"params": together[:2]}, {"params": together[2:], "lr": 0.5}])
    others = [ours(name, [p], **({"lr": 0.5} if at >= 2 else {})) for at, p in enumerate(alone)]
    for seed in range(3):
        set_gradients(together, alone, seed=seed)
        optimizer.step()
        for other in others:
            other.step()
    for one, wanted in zip(together, alone, strict=True):
        assert torch.equal(one, wanted)
    assert not torch.equal(together[0], together[2])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("gradient_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rounding", ["split", "stochastic"])
def test_state_can_be_bf16(
    name: str, gradient_dtype: torch.dtype, rounding: str, needs: Needs
) -> None:
    parameters, reference = parameters_of(torch.bfloat16), parameters_of(torch.bfloat16)
    options = {"rounding": rounding, "generator": torch.Generator().manual_seed(1)}
    optimizer = ours(name, parameters, state_dtype=torch.bfloat16, **options)
    full = ours(name, reference)
    if gradient_dtype == torch.float32:
        needs(
            hasattr(parameters[0], "grad_dtype"),
            "torch 2.10 or newer, for gradients of another dtype",
        )
        for parameter in parameters:
            parameter.grad_dtype = torch.float32
    for seed in range(3):
        set_gradients(reference, seed=seed)
        for parameter, other in zip(parameters, reference, strict=True):
            parameter.grad = other.grad.to(gradient_dtype, copy=True)
        optimizer.step()
        full.step()
    for parameter, wanted in zip(parameters, masters(full, reference), strict=True):
        torch.testing.assert_close(parameter.float(), wanted, rtol=0.03, atol=0.03)
        for key, value in optimizer.state[parameter].items():
            if key not in ("step", "remainder"):
                assert value.dtype == torch.bfloat16


def laid_out() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    return {
        "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
        "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        "every second": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
        "offset": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    }


@pytest.mark.parametrize("name", ["sgd", "adam", "lamb"])
@pytest.mark.parametrize("gradient_layout", [None, *laid_out()])
@pytest.mark.parametrize("layout", laid_out())
def test_any_layout_gives_the_same_step(
    name: str, layout: str, gradient_layout: str | None
) -> None:
    start = torch.randn(4, 3, 5, 2).bfloat16()
    moved = torch.nn.Parameter(laid_out()[layout](start))
    assert moved.is_contiguous() == (layout == "offset")
    plain = torch.nn.Parameter(start.clone())
    optimizers = ours(name, [moved]), ours(name, [plain])
    for _ in range(3):
        gradient = torch.randn(4, 3, 5, 2).bfloat16()
        plain.grad = gradient
        moved.grad = laid_out()[gradient_layout](gradient) if gradient_layout else gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    if name == "lamb":  # Its norms are sums in the order of memory.
        torch.testing.assert_close(moved, plain)
    else:
        assert torch.equal(moved, plain)
        assert torch.equal(
            optimizers[0].state[moved]["remainder"], optimizers[1].state[plain]["remainder"]
        )


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("layout", laid_out())
def test_fp32_parameters_and_gradients_of_any_layout_take_torchs_step(
    name: str, layout: str
) -> None:
    """Also beside others that torch's fused loop updates, and after a change of the layout."""
    start = torch.randn(4, 3, 5, 2)
    mine = [torch.nn.Parameter(laid_out()[layout](start)), torch.nn.Parameter(start.clone())]
    exact = [torch.nn.Parameter(start.clone()) for _ in mine]
    optimizer, reference = ours(name, mine), torchs(name, exact, foreach=False)
    for gradient_layout in (*laid_out(), layout):
        if gradient_layout == "offset":
            mine[0].data = laid_out()["transposed"](mine[0].data)
        gradient = torch.randn(4, 3, 5, 2)
        for one, other in zip(mine, exact, strict=True):
            one.grad, other.grad = laid_out()[gradient_layout](gradient), gradient.clone()
        optimizer.step()
        reference.step()
    for one, wanted in zip(mine, exact, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_parameter_that_is_part_of_a_tensor_leaves_the_rest_alone(name: str) -> None:
    whole = torch.ones(6, 4)
    parameter = torch.nn.Parameter(whole[:, ::2])
    parameter.grad = torch.ones(6, 2)
    ours(name, [parameter]).step()
    assert (whole[:, ::2] < 1).all()
    assert (whole[:, 1::2] == 1).all()


DTYPES = (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_expanded_gradient_is_read_whole(dtype: torch.dtype) -> None:
    parameter = torch.nn.Parameter(torch.ones(1000, 300, dtype=dtype))
    parameter.grad = torch.full((1, 1), 0.5, dtype=dtype).expand(1000, 300)
    ours("plain", [parameter]).step()
    wanted = torch.full((1000, 300), 0.95)
    torch.testing.assert_close(parameter.float(), wanted, rtol=0.01, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EVERY)
def test_a_view_that_negates_its_memory_is_read_as_it_is(name: str, dtype: torch.dtype) -> None:
    """Such as the imaginary part of a conjugate."""
    one, other = parameters_of(dtype), parameters_of(dtype)
    optimizers = ours(name, one), ours(name, other)
    for seed in range(3):
        set_gradients(one, other, seed=seed)
        if seed:
            for parameter in one:
                negated = torch.complex(
                    torch.zeros_like(parameter.grad).float(), -parameter.grad.float()
                ).conj()
                parameter.grad = (
                    negated.imag if dtype == torch.float32 else torch._neg_view(-parameter.grad)
                )
                assert parameter.grad.is_neg()
        for optimizer in optimizers:
            optimizer.step()
    for parameter, wanted in zip(one, other, strict=True):
        torch.testing.assert_close(parameter, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EVERY)
def test_parameters_without_a_gradient_are_left_alone(name: str, dtype: torch.dtype) -> None:
    """And their steps are counted from their own first one, their momentum is set by it."""
    parameters, alone = parameters_of(dtype), parameters_of(dtype)
    optimizer, reference = ours(name, parameters), ours(name, alone[:1])
    for seed in range(4):
        set_gradients(parameters, alone, seed=seed)
        if seed < 2:
            parameters[0].grad = None
        optimizer.step()
        if seed < 2:
            assert torch.equal(parameters[0], parameters_of(dtype)[0])
        else:
            reference.step()
    assert torch.equal(parameters[0], alone[0])
    if dtype == torch.bfloat16:
        assert torch.equal(masters(optimizer, parameters[:1])[0], masters(reference, alone[:1])[0])


@pytest.mark.parametrize("name", EVERY)
def test_a_parameter_whose_gradient_comes_and_goes_takes_the_same_steps(name: str) -> None:
    """As one that is prepared anew for every step."""
    torch.manual_seed(1)
    kept = parameters_of(torch.bfloat16)
    anew = [torch.nn.Parameter(one.detach().clone()) for one in kept]
    first, second = ours(name, kept), ours(name, anew)
    for absent in (None, 1, None, 0, 3, 3, None):
        for at, (one, other) in enumerate(zip(kept, anew, strict=True)):
            one.grad = None if at == absent else torch.randn_like(one)
            other.grad = one.grad
        second._forget()
        first.step()
        second.step()
        for one, other in zip(kept, anew, strict=True):
            assert torch.equal(one, other)
            for key, value in first.state[one].items():
                assert torch.equal(value, second.state[other][key])


def test_what_moves_between_steps_is_found() -> None:
    """New gradients, a parameter with other memory, state with other memory."""
    parameters, reference = parameters_of(torch.bfloat16), parameters_of(torch.bfloat16)
    optimizer, still = ours("adam", parameters), ours("adam", reference)
    kept = []
    for seed in range(6):
        set_gradients(parameters, reference, seed=seed)
        kept.append([p.grad for p in parameters])
        if seed == 2:
            parameters[3].data = parameters[3].detach().clone()
        if seed == 3:
            state = optimizer.state[parameters[3]]
            state["exp_avg"] = state["exp_avg"].clone()
        if seed == 4:
            parameters[3].data = parameters[3].detach().t().contiguous().t()
        optimizer.step()
        still.step()
    for one, other in zip(parameters, reference, strict=True):
        assert torch.equal(one, other)


def cloned(tensor: torch.Tensor) -> None:
    tensor.data = tensor.clone()


def transposed(tensor: torch.Tensor) -> None:
    tensor.data = tensor.t().contiguous().t() if tensor.dim() == 2 else tensor.clone()


@pytest.mark.parametrize("move", [torch.Tensor.share_memory_, cloned, transposed])
@pytest.mark.parametrize("name", EVERY)
def test_a_state_whose_tensor_has_other_memory_is_found(
    name: str, move: Callable[[torch.Tensor], object]
) -> None:
    """The old memory, which is free then, is neither read nor written: a large block is unmapped."""
    shapes = ((2000, 300),)
    parameters, reference = (parameters_of(torch.bfloat16, shapes) for _ in range(2))
    optimizer, still = ours(name, parameters), ours(name, reference)
    for seed in range(4):
        set_gradients(parameters, reference, seed=seed)
        optimizer.step()
        still.step()
        for value in optimizer.state[parameters[0]].values():
            move(value)
    assert torch.equal(masters(optimizer, parameters)[0], masters(still, reference)[0])
    for key, value in still.state[reference[0]].items():
        assert torch.equal(optimizer.state[parameters[0]][key], value)


@pytest.mark.parametrize("name", ["adam", "adagrad", "lamb"])
def test_steps_are_counted_in_fp32_whatever_the_default_dtype_is(name: str) -> None:
    parameters, reference = parameters_of(torch.bfloat16), parameters_of(torch.bfloat16)
    still = ours(name, reference)
    torch.set_default_dtype(torch.float64)
    try:
        optimizer = ours(name, parameters)
        for seed in range(4):
            set_gradients(parameters, reference, seed=seed)
            optimizer.step()
            still.step()
            optimizer.load_state_dict(optimizer.state_dict())
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(parameters, reference, strict=True):
        assert torch.equal(one, other)
    assert float(optimizer.state[parameters[0]]["step"]) == 4


def scale(parameter: torch.Tensor) -> None:
    """What a pruning mask, a clamp, an initialization do."""
    mask = torch.arange(parameter.numel()).view(parameter.shape) % 3
    parameter.copy_(parameter * (mask - 1))
    parameter.clamp_(-1, 1)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("change", [torch.Tensor.zero_, scale])
def test_a_weight_that_was_changed_from_outside_trains_from_its_new_value(
    name: str, change: Callable[[torch.Tensor], object]
) -> None:
    """To half a unit of bf16 at most, which the remainder of the old weight may add."""
    parameters = parameters_of(torch.bfloat16)
    optimizer = ours(name, parameters)
    for seed in range(3):
        set_gradients(parameters, seed=seed)
        optimizer.step()
    with torch.no_grad():
        for parameter in parameters:
            change(parameter)
    joined = masters(optimizer, parameters)
    for parameter, master in zip(parameters, joined, strict=True):
        _, exponent = torch.frexp(parameter.detach().float())
        half_unit = torch.ldexp(torch.ones_like(master), exponent - 9).clamp_min(2.0**-134)
        assert ((master - parameter.detach().float()).abs() <= half_unit).all()
    full = [torch.nn.Parameter(master) for master in joined]
    set_gradients(full, parameters, seed=4)
    reference = ours(name, full)
    reference.load_state_dict(optimizer.state_dict())
    optimizer.step()
    reference.step()
    for master, wanted in zip(masters(optimizer, parameters), full, strict=True):
        torch.testing.assert_close(master, wanted.detach(), rtol=1e-6, atol=1e-7)


def test_no_parameter_with_a_gradient_is_no_step() -> None:
    optimizer = ours("adam", parameters_of(torch.bfloat16))
    assert optimizer.step() is None
    assert not optimizer.state


def test_a_closure_is_called_with_gradients_and_its_loss_returned() -> None:
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = ours("plain", [weight])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss.detach()

    assert float(optimizer.step(closure)) == 3
    torch.testing.assert_close(weight.float(), torch.full((3,), 0.8), rtol=0.01, atol=0)


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_schedulers_change_the_rate(lr: float) -> None:
    half, exact = parameters_of(torch.bfloat16), parameters_of(torch.float64)
    optimizer, reference = ours("sgd", half, lr=lr), torchs("sgd", exact, lr=0.1)
    schedulers = [
        torch.optim.lr_scheduler.OneCycleLR(of, max_lr=0.3, total_steps=10)
        for of in (optimizer, reference)
    ]
    for seed in range(9):
        set_gradients(half, exact, seed=seed)
        optimizer.step()
        reference.step()
        for scheduler in schedulers:
            scheduler.step()
    for master, wanted in zip(masters(optimizer, half), exact, strict=True):
        torch.testing.assert_close(master.double(), wanted.detach(), **CLOSE)


@pytest.mark.parametrize("name", OPTIONS)
def test_nan_and_infinity_are_where_torch_has_them(name: str) -> None:
    special = [float("nan"), float("inf"), -float("inf"), 3.3e38, -3.3e38, 1e-40, 0.0, -0.0, 1.0]
    weights, gradients = torch.cartesian_prod(torch.tensor(special), torch.tensor(special)).T
    half = torch.nn.Parameter(weights.bfloat16())
    full = torch.nn.Parameter(half.detach().float())
    optimizer, reference = ours(name, [half]), torchs(name, [full], foreach=False)
    for _ in range(2):
        half.grad = gradients.bfloat16()
        full.grad = half.grad.float()
        optimizer.step()
        reference.step()
    (master,) = masters(optimizer, [half])
    assert torch.equal(master.isnan(), full.isnan())
    assert torch.equal(master.isinf(), full.isinf())
    assert torch.equal(half.isnan(), full.isnan())
    finite = full.isfinite()
    torch.testing.assert_close(master[finite], full.detach()[finite])


def test_gradients_accumulate_in_fp32_if_torch_is_asked_to(
    needs: Needs,
) -> None:
    half = torch.nn.Parameter(torch.ones(100, dtype=torch.bfloat16))
    needs(hasattr(half, "grad_dtype"), "torch 2.10 or newer, for gradients of another dtype")
    half.grad_dtype = torch.float32
    exact = torch.nn.Parameter(half.detach().double())
    for factor in torch.rand(256).bfloat16():
        (half * factor).sum().backward()
        (exact * factor.double()).sum().backward()
    torch.testing.assert_close(half.grad.double(), exact.grad, rtol=1e-6, atol=0)
    optimizer = ours("plain", [half])
    optimizer.step()
    torchs("plain", [exact]).step()
    torch.testing.assert_close(masters(optimizer, [half])[0].double(), exact.detach())


def test_autograd_notices_that_a_saved_weight_has_changed() -> None:
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = ours("plain", [weight])
    loss = weight.square().sum()
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
