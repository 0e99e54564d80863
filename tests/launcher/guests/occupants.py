# SPDX-License-Identifier: Apache-2.0
"""A launch of occupants in a guest: what the report says of them, and what they say themselves."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.launcher.guests.guest import Guest
from tests.launcher.guests.initramfs import PROGRAMS, PYTHON

OCCUPANT = (PYTHON, f"{PROGRAMS}/occupant.py")
REPORT = "/tmp/report.json"


class Launch(NamedTuple):
    """A launch that ended."""

    code: int
    stderr: str
    said: dict[int, dict[str, Any]]
    """What occupants printed, by their index; those that were killed before are not here."""
    report: dict[int, dict[str, Any]]
    """The report's instances, by their index."""
    warnings: list[str]
    """The report's warnings."""


def occupy(
    guest: Guest, *options: str, occupant: tuple[str, ...] = (), check: bool = True, group: str = ""
) -> Launch:
    """Launch occupants; `options` are xlaunch's, `occupant` theirs."""
    words = ("--report", REPORT, "--no-tag", *options, "--", *OCCUPANT, *occupant)
    outcome = guest.xlaunch(*words, check=check, group=group)
    said = {line["index"]: line for line in outcome.json_lines()}
    report = json.loads(guest.read(REPORT))
    instances = {instance["index"]: instance for instance in report["instances"]}
    return Launch(outcome.code, outcome.stderr, said, instances, report["warnings"])
