# SPDX-License-Identifier: Apache-2.0
"""The smallest module that is compiled for streams; `test_compiled` has more, and takes minutes."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from tests.runtime_ext.tiny_models import eager

from xruntime.streams.compiled_module import compile_for_streams
from xruntime.streams.multi_stream_module import MultiStreamModule
from xruntime.threads.cpu_pool import CPUPool

pytestmark = [
    # torch warns of what it imports itself.
    pytest.mark.filterwarnings("ignore:.*torch.jit.*"),
    pytest.mark.usefixtures("compiler"),
]


def test_streams_of_a_compiled_module(needs: Callable[[object, str], None]) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    needs(len(allowed) >= 2, "two CPUs")
    model, batch = torch.nn.Linear(4, 3).eval(), torch.randn(4, 4)
    compiled = compile_for_streams(model, batch[:2], threads=1)
    with MultiStreamModule(compiled, 2, CPUPool(allowed[:2])) as streams:
        torch.testing.assert_close(streams(batch), eager(model, batch))
