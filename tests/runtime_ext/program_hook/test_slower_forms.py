# SPDX-License-Identifier: Apache-2.0
"""`auto` leaves bf16 where it takes longer: products of matrices, or calls of the model."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from xruntime.compilation.judge import MIN_PAIRS
from xruntime.program_hook import interception
from xruntime.program_hook.refusals import SlowerError
from xruntime.program_hook.routed import RoutedModule


class Waiting(nn.Module):
    """Takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer, self.seconds = nn.Linear(4, 4), seconds
        self.eval()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.layer(values)


@pytest.mark.parametrize("must_be_faster", [True, False])
@pytest.mark.parametrize("form_s", [0.0, 0.1])
def test_a_form_that_is_slower_than_the_module(form_s: float, must_be_faster: bool) -> None:
    module, form = Waiting(0.03), Waiting(form_s)
    form.layer = module.layer

    def run(called: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs)

    args = (torch.randn(2, 4),)
    with torch.no_grad():
        routed = RoutedModule(module, run, args, {}, 0.01)
        outputs, failure = routed.prepare(
            *(module, args, {}, lambda *_: form), must_be_faster=must_be_faster
        )
        assert failure is None
        for _ in range(2 * MIN_PAIRS):  # half of them by the module, half by its form
            assert torch.equal(routed(module, args, {}), outputs)
        assert torch.equal(outputs, module.layer(*args))
    if form_s:
        assert isinstance(routed.failure, SlowerError)
        assert str(routed.failure).startswith("a call takes ")
    else:
        assert routed.failure is None


@pytest.mark.parametrize(
    ("asked", "flags", "time_of_bf16", "bf16", "reason"),
    [
        ("bf16", (), None, True, "bf16"),
        ("fp32", ("amx_bf16",), None, False, "fp32"),
        ("auto", None, None, False, "fp32 (auto: this CPU has no instructions for bf16)"),
        ("auto", ("amx_bf16", "avx512_bf16"), None, True, "bf16 (auto: this CPU has amx_bf16)"),
        ("auto", ("avx512_bf16",), 0.6, True, "bf16 (auto: this CPU has avx512_bf16)"),
        (
            *("auto", ("avx512_bf16",), 1.74, False),
            "fp32 (auto: this CPU has avx512_bf16, and takes 1.7 times as long to multiply matrices in bf16)",
        ),
    ],
)
def test_the_precision_that_auto_chooses(
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    flags: tuple[str, ...] | None,
    time_of_bf16: float | None,
    bf16: bool,
    reason: str,
) -> None:
    def timed() -> float:
        assert time_of_bf16 is not None, "this decides without a measurement"
        return time_of_bf16

    monkeypatch.setattr(interception, "cpu_bf16_flags", lambda: flags)
    monkeypatch.setattr(interception, "_bf16_time", timed)
    assert interception.chosen_precision(asked) == (bf16, reason)


def test_products_of_matrices_are_timed() -> None:
    assert 0.01 < interception._bf16_time() < 1000.0
