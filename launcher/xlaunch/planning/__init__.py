# SPDX-License-Identifier: Apache-2.0
"""From a request and a machine to a plan: pure functions on immutable values."""

from __future__ import annotations

from xlaunch.planning.planner import plan
from xlaunch.planning.plans import Decision, Instance, Plan
from xlaunch.planning.request import (
    MAX,
    ECores,
    LayoutRequest,
    Max,
    MemoryPolicy,
    Mode,
    OnFailure,
    Place,
    ProgramRequest,
    Request,
    RestartLimit,
    RunRequest,
)

__all__ = [
    "MAX",
    "Decision",
    "ECores",
    "Instance",
    "LayoutRequest",
    "Max",
    "MemoryPolicy",
    "Mode",
    "OnFailure",
    "Place",
    "Plan",
    "ProgramRequest",
    "Request",
    "RestartLimit",
    "RunRequest",
    "plan",
]
