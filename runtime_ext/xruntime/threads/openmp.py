# SPDX-License-Identifier: Apache-2.0
"""The OpenMP team that native code, torch's and ours, runs on."""

from __future__ import annotations

from typing import NamedTuple

from xruntime.native import CTeamMember, library


class TeamMember(NamedTuple):
    """One thread of a team.

    **Ex.:** ``TeamMember(openmp_id=1, thread_id=4127, cpu=3)`` is the first worker, on CPU 3.
    """

    openmp_id: int
    """Its number in the team; 0 is the thread that called."""

    thread_id: int
    """The kernel's id of the thread, a name in /proc/self/task."""

    cpu: int
    """The CPU it ran on when it was asked; -1 where the kernel does not tell."""


class OpenMPTeam(NamedTuple):
    """The threads that took part in one parallel region, in order of `openmp_id`."""

    members: tuple[TeamMember, ...]

    @property
    def size(self) -> int:
        """How many threads the team has."""
        return len(self.members)


def openmp_team() -> OpenMPTeam:
    """Run one parallel region on the calling thread's team, the one torch uses, and report it.

    Each host thread has a team of its own; its size follows torch.set_num_threads() in that thread.
    Raises KernelsUnavailableError where the native library is absent.
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
