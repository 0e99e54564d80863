# SPDX-License-Identifier: Apache-2.0
"""The directory of compile caches: whether it may be used, has room, and is on a local disk."""

from __future__ import annotations

import os
from collections.abc import Iterator

from xlaunch.doctor.checks.findings import Check, Facts, Finding, advice, is_live, ok, warning
from xlaunch.machine.tree import file_system_of
from xlaunch.text import size

MIN_FREE_BYTES = 1 << 30
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "9p")
"""Types of file systems on other machines."""
WHY = (
    "torch.compile makes its code again at each start: the first result of ResNet-50 took 22.3 s without "
    "its cache and 3.4 s with it (docs/measurements.md)"
)
OPTION = "xlaunch --cache-dir DIRECTORY PROGRAM"


def show_directory(facts: Facts) -> Iterator[Finding]:
    """Why a launch could not use its default directory. Nothing is created."""
    from xlaunch.cache.store import why_unusable, why_unwritable
    from xlaunch.cache.use import default_directory, missing_home

    base = default_directory(facts.environment)
    if base is None:
        yield advice("HOME is not set: caches are not kept", WHY, OPTION)
        return
    here = base
    while not os.path.lexists(here):
        here = os.path.dirname(here)
    try:
        refusal = why_unusable(base) or missing_home(facts.environment) or why_unwritable(base)
        status = os.statvfs(here)
    except OSError as error:
        refusal = f"{here}: {error.strerror}"
    if refusal is not None:
        yield advice(f"caches are not kept: {refusal}", WHY, OPTION)
        return
    free = status.f_bavail * status.f_frsize
    kind = file_system_of(facts.tree, here)
    if free < MIN_FREE_BYTES:
        yield warning(
            f"{base}: {size(free)} are free",
            f"compilations fail on a full disk; {WHY}",
            "xlaunch cache prune\n" + OPTION,
        )
    elif kind in NETWORK:
        yield advice(
            f"{base} is on a network file system ({kind})",
            "each start reads hundreds of small files of it, and locks may not hold between machines",
            OPTION,
        )
    else:
        yield ok(f"caches: {base}, {size(free)} free")


CHECKS = (Check("cache-directory", show_directory, is_live),)
