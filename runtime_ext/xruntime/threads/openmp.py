# SPDX-License-Identifier: Apache-2.0
"""The OpenMP team that torch and the native library share."""

from __future__ import annotations

from typing import NamedTuple

from xruntime.native import CTeamMember, library


class TeamMember(NamedTuple):
    """One thread of a team.

    **Ex.:** ``TeamMember(openmp_id=1, thread_id=4127, cpu=3)`` is the first worker, on CPU 3.
    """

    openmp_id: int
    """Its number in the team; 0 is the calling thread."""

    thread_id: int
    """The kernel's thread id, as in /proc/self/task."""

    cpu: int
    """The CPU that it ran on; -1 if the kernel does not say."""


class OpenMPTeam(NamedTuple):
    """The threads that took part in one parallel region, in order of `openmp_id`."""

    members: tuple[TeamMember, ...]

    @property
    def size(self) -> int:
        """The number of threads."""
        return len(self.members)


def openmp_team() -> OpenMPTeam:
    """Run one parallel region on the calling thread's team, which torch uses too; return its threads.

    Each host thread has a team of its own; its size follows torch.set_num_threads() in that thread.
    Raises KernelsUnavailableError without the native library.
    """
    kernels = library()
    capacity = 256
    while True:
        members = (CTeamMember * capacity)()
        size = kernels.xk_openmp_team(members, capacity)
        if size <= capacity:
            break
        capacity = size
    return OpenMPTeam(
        tuple(TeamMember(m.openmp_id, m.thread_id, m.cpu) for m in members[:size]),
    )
