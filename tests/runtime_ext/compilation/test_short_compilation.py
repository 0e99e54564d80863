# SPDX-License-Identifier: Apache-2.0
"""The smallest module that is compiled for streams; `test_compiled` has more, and takes minutes."""

from __future__ import annotations

import os

import pytest
import torch
from tests.runtime_ext.conftest import Needs
from tests.runtime_ext.tiny_models import eager

from xruntime.streams.compiled_module import compile_for_streams
from xruntime.streams.multi_stream_module import MultiStreamModule
from xruntime.threads.cpu_pool import CPUPool

pytestmark = pytest.mark.usefixtures("compiler")


def test_streams_of_a_compiled_module(needs: Needs) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    needs(len(allowed) >= 2, "two CPUs")
    model, batch = torch.nn.Linear(4, 3).eval(), torch.randn(4, 4)
    compiled = compile_for_streams(model, batch[:2], threads=1)
    with MultiStreamModule(compiled, 2, CPUPool(allowed[:2])) as streams:
        torch.testing.assert_close(streams(batch), eager(model, batch))
