# SPDX-License-Identifier: Apache-2.0
"""Pin processes to cores and NUMA nodes, tune allocator and threads, and supervise them.

>>> machine = xlaunch.read_machine()
>>> request = xlaunch.Request.of("infer.py", "--batch=8", instances=2, timeout_s=60)
>>> plan = xlaunch.plan(request.layout, machine)
>>> report = xlaunch.launch(plan, request.program, request.run)

The command line is a thin user of these. Their arguments and results are immutable values:
`Machine`, `Request` with its three parts, `Plan`, `Report`. `xlaunch.start` does not wait: it returns
a `RunningLaunch`, which returns metric values as they come in and can end the instances.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlaunch.errors import UsageError, XLaunchError
    from xlaunch.launching import launch, start
    from xlaunch.machine import read_machine
    from xlaunch.machine.topology import Machine
    from xlaunch.planning import MAX, LayoutRequest, Plan, ProgramRequest, Request, RunRequest, plan
    from xlaunch.report import Report
    from xlaunch.supervision.keeper_client import RunningLaunch

__version__ = "0.1.0"

__all__ = [
    "MAX",
    "LayoutRequest",
    "Machine",
    "Plan",
    "ProgramRequest",
    "Report",
    "Request",
    "RunRequest",
    "RunningLaunch",
    "UsageError",
    "XLaunchError",
    "launch",
    "plan",
    "read_machine",
    "start",
]

_NAMES_OF = {
    "errors": ("UsageError", "XLaunchError"),
    "launching": ("launch", "start"),
    "machine": ("read_machine",),
    "machine.topology": ("Machine",),
    "planning": ("MAX", "LayoutRequest", "Plan", "ProgramRequest", "Request", "RunRequest", "plan"),
    "report": ("Report",),
    "supervision.keeper_client": ("RunningLaunch",),
}
"""The modules of these names."""


def __getattr__(name: str) -> Any:
    # Imported on first use: `xlaunch --version` needs none of it.
    for module, names in _NAMES_OF.items():
        if name in names:
            return globals().setdefault(name, getattr(import_module(f"xlaunch.{module}"), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
