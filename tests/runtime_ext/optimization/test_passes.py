# SPDX-License-Identifier: Apache-2.0
"""Where passes must not apply: to the weights of hooked modules, to few convolutions, to changed inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from xruntime import optimize
from xruntime.optimization import PassOutcome, explain


class Siblings(nn.Module):
    """Two linears with one input, which a shift changes in place between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)
        self.eval()

    def forward(self, values: Tensor, shift: Tensor | None = None) -> tuple[Tensor, Tensor]:
        first = self.first(values)
        if shift is not None:
            values.add_(shift)
        return first, self.second(values)


def test_joined_linears_see_an_input_that_was_changed_in_place() -> None:
    model, values, shift = Siblings(), torch.randn(2, 4), torch.ones(4)
    optimized = optimize(model, sample_input=values, graph="none")
    assert explain(optimized).step("join_linears").outcome is PassOutcome.APPLIED
    for given in ((), (shift,), ()):
        expected = model(values.clone(), *given)
        torch.testing.assert_close(optimized(values.clone(), *given), expected)


def test_weights_of_modules_with_hooks_stay_in_float32() -> None:
    """A hook may read the weight, and expects what the model has."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()
    seen: list[torch.dtype] = []
    model[2].register_forward_hook(lambda module, *_: seen.append(module.weight.dtype))
    optimized = optimize(model, dtype=torch.bfloat16)
    assert explain(optimized).step("weights").outcome is PassOutcome.APPLIED
    assert optimized[0].weight.dtype == torch.bfloat16
    optimized(torch.randn(3, 4))
    assert seen == [torch.float32]


@pytest.mark.parametrize(
    ("features", "share", "outcome"),
    [
        (12, "20%", PassOutcome.SKIPPED),
        (3, "50%", PassOutcome.APPLIED),
        (1, "75%", PassOutcome.APPLIED),
    ],
)
def test_convolutions_are_stored_channels_last_if_they_are_half_of_the_work(
    features: int, share: str, outcome: PassOutcome
) -> None:
    # 8 x 16 values of 3 products each, and `features` values of 8 x 16 products.
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Flatten(), nn.Linear(128, features)).eval()
    optimized = optimize(model, sample_input=torch.randn(2, 3, 4, 4), graph="none")
    step = explain(optimized).step("channels_last")
    assert step.outcome is outcome
    assert f"convolutions are {share} of the multiplications" in step.reason
