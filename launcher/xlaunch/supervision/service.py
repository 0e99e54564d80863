# SPDX-License-Identifier: Apache-2.0
"""The parts of the supervisor that serve whoever runs a service: health, and the socket of the run."""

from __future__ import annotations

from xlaunch.supervision.part import Part
from xlaunch.supervision.replacements import Replacements
from xlaunch.supervision.run_state import RunState

LATE_S = 0.2
"""Age of a run at which `make_late_parts` is called: shorter runs do not pay for them."""


def make_health(run: RunState, replacements: Replacements) -> list[Part]:
    """The part that `--health` needs."""
    if run.asked.health is None:
        return []
    from xlaunch.supervision.health import Health

    return [Health(run, replacements, run.asked.health)]


def make_late_parts(run: RunState, replacements: Replacements) -> list[Part]:
    """The parts that no instance needs, for a run that goes on."""
    from xlaunch.supervision.state_socket import open_state_socket

    return open_state_socket(run, replacements)
