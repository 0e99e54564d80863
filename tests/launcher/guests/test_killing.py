# SPDX-License-Identifier: Apache-2.0
"""A launch that is killed without warning, at every moment of its start, leaves nobody behind.

The control group that it lives in counts: whatever a process does, the kernel has it there.
"""

from __future__ import annotations

import pytest
from tests.launcher.guests.conftest import MakeGroup
from tests.launcher.guests.guest import Guest
from tests.launcher.guests.initramfs import PROGRAMS

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("victims", "occupant", "code"),
    [
        ("keeper", "--daemon", -9),
        ("supervisor", "--daemon", 125),
        # Nobody is left who could look for daemons; the instances themselves must end.
        ("keeper,supervisor", "--mib=1", -9),
        ("supervisor,keeper", "--mib=1", -9),
    ],
)
def test_killed_launch_leaves_nobody_behind(
    server: Guest, make_group: MakeGroup, victims: str, occupant: str, code: int
) -> None:
    group = make_group("killing")
    outcome = server.python(f"{PROGRAMS}/killing.py", group, victims, occupant)
    launches = outcome.json_lines()
    for launch in launches:
        assert launch == {**launch, "reached": True, "left": [], "code": code}
    assert len(launches) >= 5
