# SPDX-License-Identifier: Apache-2.0
"""The native optimizer steps on every instruction set: rounding and refusals.

`recorded/ops/optimizers.py` compares them with the formulas, and their bits with each other.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from tests.kernels.ops.instruction_sets import ISAS  # noqa: E402

from xruntime.native import NO_ISA, ArgumentProblem  # noqa: E402
from xruntime.optim import step_call  # noqa: E402
from xruntime.optim.split_bf16 import join, split  # noqa: E402
from xruntime.optim.step_call import Arrays, Formats, StepCall  # noqa: E402

# Odd, empty, a block and a chunk of the kernels with one element less and more; enough for a team.
SIZES = (1, 0, 7, 255, 256, 257, 513, 8193, 25_001)
LR, DECAY, EPS, BETA1, BETA2, MOMENTUM, DAMPENING, LR_DECAY, TRUST = (
    *(0.1, 0.03, 1e-6, 0.9, 0.99, 0.8, 0.25, 0.01, 0.02),
)
STEPS_BEFORE = 3

Library = ctypes.CDLL
Load = Callable[[str], Library]


class Case(NamedTuple):
    """Tensors of one call, at addresses that are aligned to an element and nothing more."""

    weights: list[torch.Tensor]
    remainders: list[torch.Tensor]
    gradients: list[torch.Tensor]
    first: list[torch.Tensor]
    second: list[torch.Tensor]
    steps: list[torch.Tensor]
    fresh: torch.Tensor
    formats: Formats

    def copy(self) -> Case:
        lists = [[unaligned(tensor) for tensor in field] for field in self[:6]]
        return Case(*lists, self.fresh.clone(), self.formats)

    def everything(self) -> list[torch.Tensor]:
        return [*itertools.chain(*self[:6]), self.fresh]


def unaligned(values: torch.Tensor) -> torch.Tensor:
    whole = torch.empty(values.numel() + 1, dtype=values.dtype)
    return whole[1:].copy_(values) if values.dim() else values.clone()


def make(weight_format: int, gradient: torch.dtype, state: torch.dtype, seed: int = 0) -> Case:
    drawn = torch.Generator().manual_seed(seed)

    def normal(size: int) -> torch.Tensor:
        return torch.randn(size, generator=drawn)

    halves = [split(normal(size)) for size in SIZES]
    split_up = weight_format == step_call.WEIGHTS_SPLIT
    case = Case(
        weights=[half for half, _ in halves],
        remainders=[rest for _, rest in halves] if split_up else [],
        gradients=[normal(size).to(gradient) for size in SIZES],
        first=[normal(size).abs().to(state) for size in SIZES],
        second=[normal(size).square().to(state) for size in SIZES],
        steps=[torch.tensor(float(STEPS_BEFORE)) for _ in SIZES],
        fresh=torch.tensor([index % 2 for index in range(len(SIZES))], dtype=torch.int32),
        formats=Formats(weight_format, gradient, state),
    )
    return case.copy()


def stateless(
    weight_format: int,
    weights: list[torch.Tensor],
    gradients: list[torch.Tensor],
    remainders: list[torch.Tensor],
) -> Case:
    """What a step of plain SGD needs."""
    fresh = torch.zeros(len(weights), dtype=torch.int32)
    formats = Formats(weight_format, gradients[0].dtype, torch.float32)
    return Case(weights, remainders, gradients, [], [], [], fresh, formats)


def addresses(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    return torch.tensor([tensor.data_ptr() for tensor in tensors]) if tensors else None


def arrays_of(case: Case) -> Arrays:
    weights, gradients = addresses(case.weights), addresses(case.gradients)
    assert weights is not None
    assert gradients is not None
    return Arrays(
        sizes=torch.tensor([weight.numel() for weight in case.weights]),
        weights=weights,
        gradients=gradients,
        remainders=addresses(case.remainders),
        first=addresses(case.first),
        second=addresses(case.second),
        steps=addresses(case.steps),
        fresh=case.fresh,
    )


CALLS: dict[str, Callable[[Any, Any], int]] = {
    "sgd": lambda of, t: of.xk_sgd(t, LR, MOMENTUM, DAMPENING, DECAY, 0),
    "nesterov": lambda of, t: of.xk_sgd(t, LR, MOMENTUM, 0, DECAY, 1),
    "plain": lambda of, t: of.xk_sgd(t, LR, 0, 0, 0, 0),
    "adagrad": lambda of, t: of.xk_adagrad(t, LR, LR_DECAY, DECAY, EPS),
    "adam": lambda of, t: of.xk_adam(t, LR, BETA1, BETA2, EPS, DECAY, 0),
    "adamw": lambda of, t: of.xk_adam(t, LR, BETA1, BETA2, EPS, DECAY, 1),
    "lamb": lambda of, t: of.xk_lamb(t, LR, BETA1, BETA2, EPS, DECAY, 1),
    "lars": lambda of, t: of.xk_lars(t, LR, MOMENTUM, DAMPENING, DECAY, 0, TRUST, EPS, 1),
}


def run(library: Library, name: str, case: Case, *, seed: int = 0, maximize: bool = False) -> None:
    call = StepCall(arrays_of(case), case.formats)
    call.run(lambda _, tensors: CALLS[name](library, tensors), maximize=maximize, seed=seed)


@pytest.mark.parametrize("isa", ISAS)
def test_stochastic_rounding_takes_a_neighbour_and_is_right_on_average(
    load: Load, isa: str
) -> None:
    before = make(step_call.WEIGHTS_STOCHASTIC, torch.float32, torch.float32)
    steps = []
    for seed in range(4):
        case = before.copy()
        run(load(isa), "plain", case, seed=seed)
        exact = before.weights[-1].double() - LR * before.gradients[-1].double()
        # The distance of bf16 neighbours at the exact value.
        _, exponent = torch.frexp(exact)
        unit = torch.ldexp(torch.ones_like(exact), exponent - 8)
        steps.append((case.weights[-1].double() - exact) / unit)
        assert steps[-1].abs().max() < 1.001
    every = torch.stack(steps)
    assert abs(float(every.mean())) < 5 * 0.5 / every.numel() ** 0.5
    # Neither seeds nor neighbouring elements draw alike.
    assert abs(float(torch.corrcoef(every)[0, 1:].mean())) < 0.02
    assert abs(float((every[:, 1:] * every[:, :-1]).mean())) < 0.01


def test_no_block_is_rounded_as_another(load: Load) -> None:
    """Neither of one tensor nor of two: else the errors of sums over a tensor would not be independent."""
    sizes = (25_001, 9_000)
    weights = [torch.ones(size, dtype=torch.bfloat16) for size in sizes]
    # Half way to the next number of bf16.
    gradients = [torch.full((size,), -(2**-8) / LR) for size in sizes]
    case = stateless(step_call.WEIGHTS_STOCHASTIC, weights, gradients, [])
    run(load(ISAS[-1]), "plain", case)
    blocks = torch.cat([weight[: len(weight) // 256 * 256].view(-1, 256) for weight in weights])
    assert len(blocks.float().unique(dim=0)) == len(blocks) > 100


def every_pattern() -> torch.Tensor:
    """fp32 values: every upper half, each with lower halves at the edges and some others."""
    upper = torch.arange(65_536, dtype=torch.int64)
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    drawn = torch.randint(65_536, (65_536, 4), generator=torch.Generator().manual_seed(1))
    bits = (upper[:, None] << 16) + torch.cat([lower.expand(65_536, -1), drawn], 1)
    return bits.flatten().to(torch.int32).view(torch.float32)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all are bit for bit alike, a NaN like any NaN of the same sign."""
    a, b = one.view(torch.int32), other.view(torch.int32)
    both_nan = one.isnan() & other.isnan() & ((a < 0) == (b < 0))
    return bool(((a == b) | both_nan).all())


def test_split_weights_have_every_bit_of_fp32() -> None:
    values = every_pattern()
    half, rest = split(values)
    assert same_bits(join(half, rest), values)
    assert torch.equal(half.isnan(), values.isnan())


def test_the_upper_half_is_rounded_to_nearest_ties_away() -> None:
    values = every_pattern()
    values = values[values.abs() < torch.finfo(torch.bfloat16).max]
    below = (values.view(torch.int32) & -65_536).view(torch.float32).double()
    above = ((values.view(torch.int32) & -65_536) + 65_536).view(torch.float32).double()
    exact = values.double()
    nearest = torch.where((exact - below).abs() < (above - exact).abs(), below, above)
    assert torch.equal(split(values)[0].double(), nearest)


def every_half_with_any_remainder() -> tuple[torch.Tensor, torch.Tensor]:
    """As after a change of halves from outside: remainders at the edges, and some of other weights."""
    halves = torch.arange(65_536).to(torch.int16)[:, None].expand(-1, 9)
    edges = torch.tensor([0, 1, -1, 0x7FFF, -0x8000], dtype=torch.int16).expand(65_536, -1)
    drawn = torch.randint(-0x8000, 0x8000, (65_536, 4), generator=torch.Generator().manual_seed(2))
    rest = torch.cat([edges, drawn.to(torch.int16)], 1).flatten()
    return halves.flatten().view(torch.bfloat16), rest


def test_a_weight_rounds_to_its_half_whatever_its_remainder_is() -> None:
    half, rest = every_half_with_any_remainder()
    rounded, _ = split(join(half, rest))
    assert torch.equal(rounded.isnan(), half.isnan())
    numbers = ~half.isnan()
    assert torch.equal(rounded[numbers].view(torch.int16), half[numbers].view(torch.int16))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("pairs", ["of weights", "of any remainder"])
def test_the_kernels_split_as_torch_does_here(load: Load, isa: str, pairs: str) -> None:
    """A step with a learning rate of 0 joins and splits each weight."""
    given = split(every_pattern()) if pairs == "of weights" else every_half_with_any_remainder()
    half, rest = split(join(*given))
    new_half, new_rest = given[0].clone(), given[1].clone()
    case = stateless(step_call.WEIGHTS_SPLIT, [new_half], [torch.zeros_like(half)], [new_rest])
    call = StepCall(arrays_of(case), case.formats)
    call.run(lambda _, t: load(isa).xk_sgd(t, 0, 0, 0, 0, 0), maximize=False, seed=0)
    assert torch.equal(new_half.view(torch.int16), half.view(torch.int16))
    assert torch.equal(new_rest, rest)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_format", [step_call.WEIGHTS_SPLIT, step_call.WEIGHTS_STOCHASTIC])
def test_a_weight_that_becomes_a_nan_is_stored_as_one(
    load: Load, isa: str, weight_format: int
) -> None:
    """Rounding a NaN as a number could make a zero of it: its lower bits may all be set."""
    payloads = torch.tensor([0x7FFFFFFF, 0x7FC00000, 0x7FC07FFF, -1, -0x400000], dtype=torch.int32)
    weights, rest = torch.ones(5, dtype=torch.bfloat16), torch.zeros(5, dtype=torch.int16)
    case = stateless(weight_format, [weights], [payloads.view(torch.float32)], [rest])
    run(load(isa), "plain", case, seed=3)
    assert case.weights[0].isnan().all()


# Refusals: nothing is changed.


def set_field(name: str, value: object) -> Callable[[step_call.CTensors], None]:
    return lambda tensors: setattr(tensors, name, value)


def edit_array(name: str, value: int) -> Callable[[step_call.CTensors], None]:
    def edit(tensors: step_call.CTensors) -> None:
        ctypes.cast(getattr(tensors, name), ctypes.POINTER(ctypes.c_int64))[4] = value

    return edit


WRONG: dict[str, tuple[Callable[[step_call.CTensors], None], ArgumentProblem]] = {
    "a negative count": (set_field("count", -1), ArgumentProblem.INVALID_SIZE),
    **{
        f"no {name}": (set_field(name, None), ArgumentProblem.INVALID_POINTER)
        for name in (*("sizes", "weights", "remainders", "gradients", "first", "second", "steps"),)
    },
    "an unknown weight format": (set_field("weight_format", 3), ArgumentProblem.INVALID_TYPE),
    "an unknown gradient type": (set_field("gradient_type", 2), ArgumentProblem.INVALID_TYPE),
    "an unknown state type": (set_field("state_type", -1), ArgumentProblem.INVALID_TYPE),
    "a negative size": (edit_array("sizes", -1), ArgumentProblem.INVALID_SIZE),
    "a size that is too large": (edit_array("sizes", 2**62), ArgumentProblem.INVALID_SIZE),
    "a null pointer": (edit_array("gradients", 0), ArgumentProblem.INVALID_POINTER),
    "a null step": (edit_array("steps", 0), ArgumentProblem.INVALID_POINTER),
    "an odd address": (edit_array("second", 4097), ArgumentProblem.INVALID_POINTER),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", ["adam", "lamb"])
def test_a_wrong_argument_is_refused_before_anything_changes(
    load: Load, wrong: str, name: str
) -> None:
    case = make(step_call.WEIGHTS_SPLIT, torch.bfloat16, torch.float32)
    before = case.copy()
    call = StepCall(arrays_of(case), case.formats)
    change, problem = WRONG[wrong]
    change(call._tensors)
    result = CALLS[name](load(ISAS[-1]), ctypes.byref(call._tensors))
    assert result == problem
    for one, other in zip(case.everything(), before.everything(), strict=True):
        assert torch.equal(one, other)


def test_no_tensors_struct_is_refused(load: Load) -> None:
    for call in CALLS.values():
        assert call(load(ISAS[-1]), None) == ArgumentProblem.INVALID_POINTER


def test_momentum_needs_to_know_which_are_fresh(load: Load) -> None:
    case = make(step_call.WEIGHTS_SPLIT, torch.bfloat16, torch.float32)
    call = StepCall(arrays_of(case)._replace(fresh=None), case.formats)
    for name in ("sgd", "lars"):
        assert CALLS[name](load(ISAS[-1]), call._pointer) == ArgumentProblem.INVALID_POINTER
    assert CALLS["plain"](load(ISAS[-1]), call._pointer) == 0


def test_without_an_isa_operators_refuse(load: Load) -> None:
    library = load("v9")
    assert library.xk_isa_name() is None
    assert library.xk_isa_supported().decode().split(",") == ISAS
    case = make(step_call.WEIGHTS_SPLIT, torch.bfloat16, torch.float32)
    before = case.copy()
    call = StepCall(arrays_of(case), case.formats)
    for act in CALLS.values():
        assert act(library, call._pointer) == NO_ISA
    for one, other in zip(case.everything(), before.everything(), strict=True):
        assert torch.equal(one, other)
