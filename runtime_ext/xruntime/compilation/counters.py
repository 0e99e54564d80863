# SPDX-License-Identifier: Apache-2.0
"""Torch's counters of this process's compilation, for the report of the launch it belongs to."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys

VARIABLE = "XLAUNCH_COMPILE_COUNTERS"
"""The directory that a launch with a report names; see `xlaunch.supervision.watches`."""

BACKEND = "backend_compile"
"""Torch's name of the phase in which Inductor compiles a graph or loads it."""


def report_counters_at_exit() -> None:
    """Write the counters when this process ends, if a launch asked for them."""
    directory = os.environ.get(VARIABLE)
    if directory:
        atexit.register(_write, directory, os.getpid())


def _write(directory: str, pid: int) -> None:
    utilities = sys.modules.get("torch._dynamo.utils")
    if utilities is None or os.getpid() != pid:  # nothing was compiled; or a forked child ends
        return
    from xlaunch.files import write_whole

    inductor = utilities.counters["inductor"]
    values = {
        "backend_compile_s": utilities.calculate_time_spent().get(BACKEND, 0.0),
        "graph_hits": inductor["fxgraph_cache_hit"],
        "graph_misses": inductor["fxgraph_cache_miss"],
    }
    with contextlib.suppress(OSError):
        write_whole(os.path.join(directory, f"{pid}.json"), json.dumps(values).encode())
