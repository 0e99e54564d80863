# SPDX-License-Identifier: Apache-2.0
"""Steps that compiled code calls: they run outside of its graphs, and do what they do without compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.runtime_ext.optim.training import EVERY, ours
from tests.tiers import quick_first
from torch._dynamo.exc import Unsupported

from xruntime.optim.native_optimizer import NativeOptimizer

Step = Callable[[], Any]


@pytest.fixture(autouse=True)
def forget_compiled_code() -> Iterator[None]:
    yield
    torch.compiler.reset()


class Training:
    """A network with its optimizer: a step of training, in parts that can be compiled."""

    def __init__(self, name: str, dtype: torch.dtype, **options: Any) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)]
        self.network = torch.nn.Sequential(*layers).to(dtype)
        self.optimizer: NativeOptimizer = ours(name, self.network.parameters(), **options)
        self.inputs = torch.randn(5, 8).to(dtype)

    def loss(self) -> torch.Tensor:
        return self.network(self.inputs).float().square().mean()

    def backward(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss

    def step(self) -> None:
        self.backward()
        self.optimizer.step()

    def run(self, step: Step) -> list[torch.Tensor]:
        """All weights and states after some steps."""
        for _ in range(4):
            step()
        parameters = list(self.network.parameters())
        states = [value for p in parameters for value in self.optimizer.state[p].values()]
        return [value.detach() for value in [*parameters, *states]]


def compiled_step(training: Training) -> Step:
    step = torch.compile(training.optimizer.step, backend="eager")

    def run() -> None:
        training.backward()
        step()

    return run


def compiled_step_with_closure(training: Training) -> Step:
    step = torch.compile(training.optimizer.step, backend="eager")
    return lambda: step(training.backward)


def assert_equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


# Dynamo looks at the gradient of a closure's loss; its filter for the warning does not hold here.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", quick_first(EVERY))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("compiled", [compiled_step, compiled_step_with_closure])
def test_a_compiled_step_does_what_it_does_uncompiled(
    compiled: Callable[[Training], Step], dtype: torch.dtype, name: str
) -> None:
    one, other = Training(name, dtype), Training(name, dtype)
    assert_equal(one.run(compiled(one)), other.run(other.step))


@pytest.mark.long
def test_a_compiled_step_draws_the_same_random_numbers() -> None:
    found = []
    for compiled in (False, True):
        generator = torch.Generator().manual_seed(1)
        training = Training("adamw", torch.bfloat16, rounding="stochastic", generator=generator)
        found.append(training.run(compiled_step(training) if compiled else training.step))
    assert_equal(*found)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_forward_backward_and_step_in_one_compiled_function(
    compiler: None, dtype: torch.dtype
) -> None:
    """Inductor's arithmetic differs in the last bits of a loss, a gradient."""
    one, other = Training("adamw", dtype), Training("adamw", dtype)
    found, wanted = one.run(torch.compile(one.step)), other.run(other.step)
    for mine, theirs in zip(found, wanted, strict=True):
        if mine.is_floating_point():  # remainders of weights that differ a little differ greatly
            close = (
                {"rtol": 1e-5, "atol": 1e-6}
                if dtype == torch.float32
                else {"rtol": 0.02, "atol": 1e-3}
            )
            torch.testing.assert_close(mine, theirs, **close)


def test_a_step_is_no_part_of_a_graph() -> None:
    training = Training("adamw", torch.bfloat16)
    training.backward()
    before = [parameter.detach().clone() for parameter in training.network.parameters()]
    with pytest.raises(Unsupported, match=r"steps of xruntime\.optim are native code"):
        torch.compile(training.optimizer.step, backend="eager", fullgraph=True)()
    assert_equal([parameter.detach() for parameter in training.network.parameters()], before)
