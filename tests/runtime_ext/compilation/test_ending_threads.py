# SPDX-License-Identifier: Apache-2.0
"""Threads that compile and end."""

from __future__ import annotations

import pytest
from tests.runtime_ext.interpreters import python

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("compiler")]


def test_threads_that_compile_may_end() -> None:
    # A process of its own: whatever traces first in it, is in a thread that ends.
    program = """
import threading, torch
from xruntime.streams.compiled_module import compile_for_streams
from xruntime.threads.team import resize_team

made = []
def in_thread(call):
    def run():
        resize_team(1)
        made.append(call())
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

linear = torch.nn.Linear(4, 2).eval()
in_thread(lambda: compile_for_streams(linear, torch.ones(3, 4), threads=1))
for items in (5, 1):
    in_thread(lambda: made[0](torch.ones(items, 4)))
print([tuple(output.shape) for output in made[1:]])
"""
    assert python("-c", program) == "[(5, 2), (1, 2)]\n"
