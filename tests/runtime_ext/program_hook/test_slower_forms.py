# SPDX-License-Identifier: Apache-2.0
"""`auto` leaves bf16 where its calls take longer than the program's."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from xruntime.program_hook.refusals import SlowerError
from xruntime.program_hook.routed import Routed


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
@pytest.mark.parametrize("form_s", [0.0, 0.3])
def test_a_form_that_is_slower_than_the_module(form_s: float, must_be_faster: bool) -> None:
    module, form = Waiting(0.03), Waiting(form_s)
    form.layer = module.layer

    def run(called: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs)

    args = (torch.randn(2, 4),)
    with torch.no_grad():
        routed = Routed(module, run, args, {}, 0.01)
        outputs, failure = routed.prepare(
            *(module, args, {}, lambda *_: form), must_be_faster=must_be_faster
        )
        assert torch.equal(outputs, module.layer(*args))
    if must_be_faster and form_s:
        assert isinstance(failure, SlowerError)
        assert str(failure).startswith("a call takes ")
        assert routed.optimized is None
    else:
        assert failure is None
        assert routed.optimized is form
