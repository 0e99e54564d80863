# SPDX-License-Identifier: Apache-2.0
"""Run a workload as fast as its CPUs allow.

    machine = xlaunch.read_machine()
    plan = xlaunch.plan(xlaunch.Request(program=("infer.py",), instances=2), machine)
    report = xlaunch.launch(plan)
"""

from __future__ import annotations

__version__ = "0.1.0"
