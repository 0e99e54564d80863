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

    parts = open_state_socket(run, replacements)
    if run.asked.exports_metrics:
        parts += _start_exporter(run)
    return parts


def _start_exporter(run: RunState) -> list[Part]:
    from xlaunch.supervision.exporter_process import ExporterProcess

    path, why = "" if run.lease is None else run.lease.socket, "the run has no socket"
    if path:
        try:
            return [ExporterProcess(run, path)]
        except OSError as error:
            why = str(error)
    run.messages.warn(f"metrics are not exported: {why}")
    return []
