# SPDX-License-Identifier: Apache-2.0
"""Programs that change what a module reads beside itself, between calls that compiled code computes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tests.runtime_ext.optimization.exported_code import ExportedLibrary, exported_code
from torch import Tensor, nn

import xruntime
from xruntime.optimization.runner import SlowCallWarning
from xruntime.program_hook.interception import _optimized_form
from xruntime.program_hook.routed import RoutedModule

__all__ = ["exported_code"]

SCALE = {"by": 1.0}


class Scaled(nn.Module):
    shift = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values) * SCALE["by"] + self.shift


def test_both_ways_to_optimize_see_changes_between_calls(
    monkeypatch: pytest.MonkeyPatch, exported_code: list[ExportedLibrary]
) -> None:
    def run(called: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs)

    net, x = Scaled().eval().requires_grad_(False), torch.randn(3, 4)
    changes = (
        lambda patch: patch.setitem(SCALE, "by", 3.0),
        lambda patch: patch.setattr(Scaled, "shift", 3.0),
    )
    for change in changes:
        routed = RoutedModule(net, run, (x,), {}, 0.01)
        form = partial(_optimized_form, dtype=None, wait=True)
        _, failure = routed.prepare(net, (x,), {}, form, must_be_faster=False)
        assert failure is None
        fast = xruntime.optimize(net, sample_input=x, wait=True)
        routed_code, own_code = exported_code[-2:]
        for _ in range(4):  # the modules and the code alternate
            routed(net, (x,), {})
            fast(x)
        assert min(routed_code.calls, own_code.calls) > 2
        with monkeypatch.context() as patch:
            change(patch)
            assert torch.equal(routed(net, (x,), {}), net(x))
            assert "the program changed it" in str(routed.failure)
            with pytest.warns(SlowCallWarning, match="was changed"):
                assert torch.allclose(fast(x), net(x))
