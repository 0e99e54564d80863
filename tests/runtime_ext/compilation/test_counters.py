# SPDX-License-Identifier: Apache-2.0
"""What a process tells the launch that it belongs to of its compilation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.runtime_ext.interpreters import python

PROGRAM = """
import os, sys
from xruntime.compilation.counters import report_counters_at_exit
report_counters_at_exit()
if "compiles" in sys.argv:
    import torch._dynamo.utils as utilities
    utilities.counters["inductor"].update(fxgraph_cache_hit=3, fxgraph_cache_miss=2)
if os.fork() == 0:
    sys.exit()  # a child of its own number ends by its handlers, and writes nothing
os.wait()
print(os.getpid())
"""


@pytest.mark.parametrize("what", ["", pytest.param("compiles", marks=pytest.mark.long)])
def test_a_process_that_compiles_writes_its_counters_when_it_ends(
    native: None, tmp_path: Path, what: str
) -> None:
    out = python("-c", PROGRAM, what, XLAUNCH_COMPILE_COUNTERS=str(tmp_path))
    files = list(tmp_path.iterdir())
    if not what:
        assert files == []
        return
    (file,) = files
    assert file.name == f"{out.strip()}.json"
    assert json.loads(file.read_text()) == {
        "backend_compile_s": 0.0,
        "graph_hits": 3,
        "graph_misses": 2,
    }
