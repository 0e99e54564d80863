# SPDX-License-Identifier: Apache-2.0
"""Control over threads and CPUs from inside a script.

Native code runs on the threads that torch runs on:

    from xruntime import openmp_team

    torch.set_num_threads(4)
    openmp_team().size  # 4
"""

from __future__ import annotations

from xruntime.errors import KernelsUnavailableError
from xruntime.openmp import OpenMPTeam, TeamMember, openmp_team

__all__ = ["KernelsUnavailableError", "OpenMPTeam", "TeamMember", "openmp_team"]
__version__ = "0.1.0"
